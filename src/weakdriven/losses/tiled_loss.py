"""A loss over tiles of one trained model's logits, whatever its rows compute; nothing of size (T, V) exists.

T = supervised tokens, R = rows of a tile, K = rows of a chunk of tiles, C = columns of results, D = width,
V = vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weakdriven.errors import UserError
from weakdriven.losses.branch import Branch, late_scale, scaled_once
from weakdriven.losses.head import Head
from weakdriven.losses.mix_rows import SEPARATE, SHARED
from weakdriven.losses.mixed_ce import IGNORE
from weakdriven.losses.tiles import tile_rows

Rows = Callable[[Tensor, int, int, bool], Tensor]
"""Raw logits (R, V) of tokens `begin` to `end` -> results (R, C), the loss first. If the last argument says so, the
logits are overwritten by the gradient of their row's loss."""


def tiled_loss(
    hidden_TD: Tensor,
    head: Head,
    rows: Rows,
    *,
    columns: int,
    scale: float | None,
    triton: bool = False,
    pair: bool = False,
) -> tuple[Tensor, Tensor]:
    """Scaled sum of the rows' losses, and the sums of all columns, which carry no gradient.

    Args:
        scale: Factor of the loss; None: one over the tokens. Of no tokens at all the loss is 0.
        triton: Whether the rows are a kernel, which needs no wide copies of the logits, so that more fit.
        pair: Whether the rows hold as many logits of another model.
    """
    scale = 1 / max(len(hidden_TD), 1) if scale is None else scale
    tensors = hidden_TD, head.weight_VD, head.bias_V
    needs = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in tensors]
    return _apply(*tensors, rows, columns, scale, needs, triton, pair)


class _TiledLoss(torch.autograd.Function):
    """Gradients are taken tile by tile in the forward pass, so that each logit is computed once and never kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        head_VD: Tensor,
        bias_V: Tensor | None,
        rows: Rows,
        columns: int,
        scale: float,
        needs: list[bool],
        triton: bool,
        pair: bool,
    ) -> tuple[Tensor, Tensor]:
        branch, tokens = Branch(hidden_TD, head_VD, bias_V, needs), len(hidden_TD)
        gradients = SHARED if triton else SEPARATE  # torch rows hold as much as those of two gradients
        chunk, tile = tile_rows(hidden_TD, len(head_VD), triton=triton, pair=pair, gradients=gradients)
        buffer_KV = hidden_TD.new_empty(min(chunk, tokens), len(head_VD))
        sums_C = torch.zeros(columns, dtype=branch.wide, device=hidden_TD.device)
        with torch.autocast(hidden_TD.device.type, enabled=False):
            for begin in range(0, tokens, chunk):
                end = min(begin + chunk, tokens)
                logits_KV = branch.logits(begin, end, buffer_KV)
                for first in range(begin, end, tile):
                    last = min(first + tile, end)
                    sums_C += rows(logits_KV[first - begin : last - begin], first, last, any(needs)).sum(0)
                if any(needs):
                    branch.take(logits_KV, begin, end, scale)
        ctx.needs, ctx.late = needs, late_scale(scale, hidden_TD)
        ctx.mark_non_differentiable(sums_C)
        ctx.set_materialize_grads(False)
        del buffer_KV
        ctx.save_for_backward(*branch.gradients())
        return scale * sums_C[0], sums_C

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: None) -> tuple[Any, ...]:  # pyright: ignore
        return *scaled_once(ctx, scale), *(None,) * 6


_apply: Any = torch.compiler.disable(_TiledLoss.apply)  # a loop over tiles, and nothing that a compiler could gain on


def supervised(target_T: Tensor, *per_token: Tensor, ignored: bool = True) -> tuple[Tensor, ...]:
    """The tensors without the tokens whose target is ignored: a copy only where there is something to leave out.

    Args:
        ignored: Whether there may be such tokens. The answer is worth a wait for the GPU where nobody knows.
    """
    tensors = target_T, *per_token
    if not ignored:
        return tensors
    kept_T = target_T != IGNORE
    return tensors if kept_T.all() else tuple(x[kept_T] for x in tensors)


def refuse_shapes(hidden_TD: Tensor, head: Head, target_T: Tensor, name: str = "Hidden states") -> None:
    if hidden_TD.dim() != 2 or hidden_TD.shape[1] != head.weight_VD.shape[1] or len(hidden_TD) != len(target_T):
        raise UserError(
            f"{name} have shape {tuple(hidden_TD.shape)}, the head {tuple(head.weight_VD.shape)}, and there are "
            f"{len(target_T)} targets; expected (tokens, width), (vocabulary, width) and one target for each token."
        )


def refuse_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < float("inf"):
            raise UserError(f"{name} is {value}; it must be 0 or more.")
