"""Computes a loss of one model's logits tile by tile, with any row function; nothing of size (T, V) exists.

T = supervised tokens, R = rows of a tile, C = columns of results, D = width, V = vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weakdriven.errors import UserError
from weakdriven.losses.branch import Branch, late_scale, scaled_once
from weakdriven.losses.head import Head
from weakdriven.losses.mix_rows import SEPARATE, by_raw, capped
from weakdriven.losses.tiles import tile_rows

RowFunction = Callable[[Tensor, int, int, bool], Tensor]
"""Takes raw logits (R, V) of tokens `begin` to `end` and returns results (R, C), the loss first. If the last argument
is True, it overwrites the logits by the gradient of their row's loss."""


def tiled_loss(
    hidden_TD: Tensor, head: Head, rows: RowFunction, *, columns: int, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return the scaled sum of the rows' losses, and the sums of all columns, without a gradient.

    Args:
        scale: Factor of the loss (default: 1 / T). Without tokens, the loss is 0.
    """
    scale = 1 / max(len(hidden_TD), 1) if scale is None else scale
    tensors = hidden_TD, head.weight_VD, head.bias_V
    needs = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in tensors]
    return _apply(*tensors, rows, columns, scale, needs)


class _TiledLoss(torch.autograd.Function):
    """Computes gradients tile by tile in the forward pass, so that each logit is computed once and never kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        head_VD: Tensor,
        bias_V: Tensor | None,
        rows: RowFunction,
        columns: int,
        scale: float,
        needs: list[bool],
    ) -> tuple[Tensor, Tensor]:
        branch, tokens = Branch(hidden_TD, head_VD, bias_V, needs), len(hidden_TD)
        # row functions in torch need the memory of separate gradients
        tile, _ = tile_rows(hidden_TD, len(head_VD), triton=False, pair=False, gradients=SEPARATE)
        buffer_RV = hidden_TD.new_empty(min(tile, tokens), len(head_VD))
        sums_C = torch.zeros(columns, dtype=branch.wide, device=hidden_TD.device)
        with torch.autocast(hidden_TD.device.type, enabled=False):
            for begin in range(0, tokens, tile):
                end = min(begin + tile, tokens)
                logits_RV = branch.logits(begin, end, buffer_RV)
                sums_C += rows(logits_RV, begin, end, any(needs)).sum(0)
                if any(needs):
                    branch.take(logits_RV, begin, end, scale)
        ctx.needs, ctx.late = needs, late_scale(scale, hidden_TD)
        ctx.mark_non_differentiable(sums_C)
        ctx.set_materialize_grads(False)
        del buffer_RV
        ctx.save_for_backward(*branch.gradients())
        return scale * sums_C[0], sums_C

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: None) -> tuple[Any, ...]:  # pyright: ignore
        return *scaled_once(ctx, scale), *(None,) * 4


_apply: Any = torch.compiler.disable(_TiledLoss.apply)  # a compiler gains nothing on a loop over tiles


def log_softmax_(z_RV: Tensor) -> Tensor:
    """Compute log-softmax in place and keep it finite, so that a -inf logit adds 0 to the loss if its target is 0."""
    return finite(z_RV.sub_(z_RV.logsumexp(-1, keepdim=True)))


def finite(log_p: Tensor) -> Tensor:
    return log_p.clamp_min_(torch.finfo(log_p.dtype).min)


def overwrite(raw_RV: Tensor, by_z_RV: Tensor, head: Head) -> None:
    """Overwrite raw logits by their gradient, given the gradient by the final logits, which may be overwritten too."""
    if head.cap:
        by_z_RV = by_raw(by_z_RV, capped(raw_RV, head.scale, head.cap), head.scale, head.cap)
    elif head.scale != 1:
        by_z_RV.mul_(head.scale)
    if by_z_RV is not raw_RV:
        raw_RV.copy_(by_z_RV)


def refuse_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < float("inf"):
            raise UserError(f"{name} is {value}; it must be 0 or more.")
