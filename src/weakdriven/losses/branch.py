"""One model's part of a fused loss: computes tiles of its logits, and sums its gradients over tiles.

T = tokens, R = rows of a tile, D = width, V = vocabulary.
"""

import math
from typing import Any

import torch
from torch import Tensor

from weakdriven.errors import UserError


class Branch:
    """One model's hidden states and head, and their gradients, which add up over tiles."""

    def __init__(self, hidden_TD: Tensor, head_VD: Tensor, bias_V: Tensor | None, needs: list[bool]):
        self.hidden_TD, self.head_VD = hidden_TD, head_VD.to(hidden_TD.dtype)
        self.bias_V = None if bias_V is None else bias_V.to(hidden_TD.dtype)
        self.dtypes = head_VD.dtype, head_VD.dtype if bias_V is None else bias_V.dtype
        # a head's gradient adds up over many tiles, so the sum is float32 in any precision of the weights
        self.wide = torch.promote_types(hidden_TD.dtype, torch.float32)
        self.hidden_gradient = torch.zeros_like(hidden_TD) if needs[0] else None
        self.head_sum = torch.empty_like(head_VD, dtype=self.wide) if needs[1] else None
        self.begun = False
        self.bias_sum = torch.zeros_like(bias_V, dtype=self.wide) if needs[2] and bias_V is not None else None

    def logits(self, begin: int, end: int, buffer_RV: Tensor | None) -> Tensor:
        """Compute raw logits, in the buffer if there is one."""
        hidden_RD, logits_RV = self.hidden_TD[begin:end], None if buffer_RV is None else buffer_RV[: end - begin]
        if self.bias_V is None:
            return torch.mm(hidden_RD, self.head_VD.T, out=logits_RV)
        return torch.addmm(self.bias_V, hidden_RD, self.head_VD.T, out=logits_RV)

    def take(self, gradient_RV: Tensor, begin: int, end: int, scale: float, factor: float = 1.0) -> None:
        """Add the gradient of a tile, times a factor and the scale of the loss."""
        hidden_RD = self.hidden_TD[begin:end]
        if self.hidden_gradient is not None:
            into_RD, early = self.hidden_gradient[begin:end], scale / late_scale(scale, hidden_RD)
            torch.addmm(into_RD, gradient_RV, self.head_VD, beta=0, alpha=factor * early, out=into_RD)
        factor *= scale
        if self.head_sum is not None:
            into_VD, gradient_VR, beta = self.head_sum, gradient_RV.T, float(self.begun)  # the first product overwrites
            if hidden_RD.is_cuda and hidden_RD.dtype != self.wide:  # reads bf16, accumulates in float32
                torch.addmm(into_VD, gradient_VR, hidden_RD, out_dtype=self.wide, beta=beta, alpha=factor, out=into_VD)
            else:  # a half-precision product would be rounded once per tile
                gradient_VR, hidden_RD = gradient_VR.to(self.wide), hidden_RD.to(self.wide)
                torch.addmm(into_VD, gradient_VR, hidden_RD, beta=beta, alpha=factor, out=into_VD)
            self.begun = True
        if self.bias_sum is not None:
            self.bias_sum.add_(gradient_RV.sum(0, dtype=self.wide), alpha=factor)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of hidden states, head and bias, each in its own precision, and free the sums."""
        nothing = self.hidden_TD.new_empty(0)
        hidden = nothing if self.hidden_gradient is None else self.hidden_gradient
        if self.head_sum is not None and not self.begun:  # there was no token
            self.head_sum.zero_()
        head = nothing.clone() if self.head_sum is None else self.head_sum.to(self.dtypes[0])
        bias = nothing.clone() if self.bias_sum is None else self.bias_sum.to(self.dtypes[1])
        self.head_sum = self.bias_sum = None
        return hidden, head, bias


def late_scale(scale: float, hidden_TD: Tensor) -> float:
    """Return the part of a loss's factor that gradients of hidden states get only in the backward pass.

    The factor is usually applied in the forward pass, where it is rounded once. In float16, 1 / num_tokens underflows
    most gradients before the GradScaler acts, so its power of two, which is exact, is applied in the backward pass.
    Gradients of heads get all of it in the forward pass, because they are sums and could overflow without it.

    >>> late_scale(1 / 500_000, torch.zeros(1, dtype=torch.float16)) * 2**19, late_scale(0.3, torch.zeros(1))
    (1.0, 1.0)
    """
    late = hidden_TD.dtype == torch.float16 and 0 < scale < math.inf
    return math.ldexp(1.0, math.frexp(scale)[1] - 1) if late else 1.0


def scaled_once(ctx: Any, scale: Tensor) -> list[Tensor | None]:
    """Multiply the gradients that a forward pass saved by the gradient of its result; None if one is not needed.

    Args:
        ctx: Holds the result of `late_scale` as `late`.
    """
    if getattr(ctx, "used", False):
        raise UserError("The gradients of a fused loss can be taken only once; compute all of them in one call.")
    ctx.used = True
    # In place, to avoid a second copy of the heads' gradients. The scale has one dimension to stay float32: a scalar
    # would be rounded to the gradient's precision.
    scales = [factor.reshape(1) for factor in (ctx.late * scale, scale, scale)] * 2  # hidden states, head, bias
    saved = zip(ctx.saved_tensors, ctx.needs, scales, strict=False)
    return [gradient.mul_(scale_1) if need else None for gradient, need, scale_1 in saved]
