"""Cross-entropy of mixed weak and strong logits (WD-JT) that never builds them all.

T = supervised tokens, R = rows of a tile, D / E = strong / weak width, V = vocabulary.

The matrix library computes the logits of a chunk of tokens, one element-wise pass (torch or Triton) turns them into
their own gradient in place, and two more products per model consume them. These are six products of T x D x V, the
minimum. Nothing of size (T, V) exists.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from weakdriven.errors import UserError
from weakdriven.losses.branch import Branch, late_scale, scaled_once
from weakdriven.losses.head import Head, as_head, first_rows
from weakdriven.losses.mix_rows import NO_GRADIENT, SEPARATE, SHARED, Mixing, mix_rows
from weakdriven.losses.tiled_loss import refuse_negative
from weakdriven.losses.tiles import Implementation, row_function, tile_rows, use_triton

IGNORE = -100


class MixStatistics(NamedTuple):
    """Sums over supervised tokens, for logging, without a gradient; NaN for a model that did not run."""

    mixed_loss: Tensor
    strong_loss: Tensor
    weak_loss: Tensor
    mixed_probability: Tensor
    """Sum of P_mix(y)."""
    strong_probability: Tensor
    """Sum of P_strong(y)."""
    margin_tokens: Tensor
    """Number of tokens where no weak margin exceeds the strong one, so that mixing can only lower P(y) (Thm. 1)."""
    mixed_entropy: Tensor
    strong_entropy: Tensor
    weak_entropy: Tensor


def mixed_cross_entropy_reference(strong_TV: Tensor, weak_TV: Tensor, target_T: Tensor, *, strong_weight: float):
    wide = torch.promote_types(strong_TV.dtype, torch.float32)
    # 0 * -inf would be NaN
    strong_TV, weak_TV = (
        z if share else z.nan_to_num() for z, share in ((strong_TV, strong_weight), (weak_TV, 1 - strong_weight))
    )
    mixed_TV = strong_weight * strong_TV.to(wide) + (1 - strong_weight) * weak_TV.to(wide)
    return F.cross_entropy(mixed_TV, target_T, ignore_index=IGNORE, reduction="sum")


def mixed_cross_entropy(
    strong_TD: Tensor,
    strong_head_VD: Tensor | Head,
    weak_TE: Tensor,
    weak_head_VE: Tensor | Head,
    target_T: Tensor,
    *,
    strong_weight: float = 0.5,
    reduction: Literal["sum", "mean"] = "sum",
    implementation: Implementation = "auto",
) -> Tensor:
    """Compute the cross-entropy of softmax(strong_weight * z_strong + (1 - strong_weight) * z_weak).

    Targets of -100 are dropped first. Products run in the precision of the hidden states, sums in float32. Heads of
    different length are mixed over their common rows.

    Args:
        strong_head_VD: Weights, or a `Head` if the model has a bias or caps or scales its logits.
        strong_weight: Share of the strong logits, in [0, 1]; a model with share 0 is not computed, and the other one
            keeps all rows of its head. Paper: lambda.
        reduction: `sum` over tokens, or `mean` over tokens that are not ignored.
        implementation: `triton` (CUDA) and `chunked` (plain torch) hold one tile of logits, `reference` all of them.

    >>> strong, weak = torch.tensor([[4.0, 1, 0, -1]]), torch.tensor([[2, 1.5, 0.5, 0]])
    >>> round(mixed_cross_entropy(strong, torch.eye(4), weak, torch.eye(4), torch.tensor([0])).item(), 6)
    0.237361
    """
    if reduction not in ("sum", "mean"):
        raise UserError(f"reduction is {reduction!r}; expected 'sum' or 'mean'.")
    kept = target_T != IGNORE
    if not kept.all():  # copies only if there is something to drop
        strong_TD, weak_TE, target_T = strong_TD[kept], weak_TE[kept], target_T[kept]
    strong, weak = as_head(strong_head_VD), as_head(weak_head_VE)
    rows = min(len(head.weight_VD) for head, share in ((strong, strong_weight), (weak, 1 - strong_weight)) if share)
    if len(strong.weight_VD) != len(weak.weight_VD) and len(target_T) and (largest := int(target_T.max())) >= rows:
        raise UserError(
            f"Cannot mix logits: target {largest} is outside the {rows} rows that the heads share (strong has "
            f"{len(strong.weight_VD)}, weak {len(weak.weight_VD)}). Use two models with one vocabulary."
        )
    scale = 1.0 if reduction == "sum" else 1 / len(target_T) if len(target_T) else float("nan")
    options: dict[str, Any] = {"strong_weight": strong_weight, "implementation": implementation, "statistics": False}
    return mixed_cross_entropy_with_statistics(strong_TD, strong, weak_TE, weak, target_T, scale=scale, **options)[0]


def mixed_cross_entropy_with_statistics(
    strong_TD: Tensor | None,
    strong: Head,
    weak_TE: Tensor | None,
    weak: Head,
    target_T: Tensor,
    *,
    strong_weight: float = 0.5,
    strong_anchor: float = 0.0,
    scale: float = 1.0,
    implementation: Implementation = "auto",
    statistics: bool = True,
) -> tuple[Tensor, MixStatistics]:
    """Compute the sum of `mixed_cross_entropy` over supervised targets, and statistics for logging in the same pass.

    Args:
        strong_TD: Hidden states; may be None for a model with weight 0.
        strong_anchor: Weight of the strong model's own cross-entropy, added to the mixed one.
        scale: Factor of the loss, such as 1 / tokens of the step; not of the statistics. If it is given here and not
            applied to the result, gradients are rounded to the tensors' precision only once.
    """
    if not 0 <= strong_weight <= 1:
        raise UserError(f"strong_weight is {strong_weight}; it must be between 0 and 1.")
    refuse_negative(strong_anchor=strong_anchor)
    triton = use_triton(implementation, weak_TE if strong_TD is None else strong_TD)
    strong_runs, weak_runs = strong_weight > 0 or strong_anchor > 0, strong_weight < 1
    if strong_runs and weak_runs:
        rows = min(len(strong.weight_VD), len(weak.weight_VD))
        strong, weak = first_rows(strong, rows), first_rows(weak, rows)
    if not strong_runs:  # only the weak model runs
        same: dict[str, Any] = {"scale": scale, "implementation": implementation, "statistics": statistics}
        loss, alone = mixed_cross_entropy_with_statistics(weak_TE, weak, None, weak, target_T, strong_weight=1, **same)
        of_weak = {"weak_loss": alone.strong_loss, "weak_entropy": alone.strong_entropy}
        nan = torch.full_like(alone.mixed_loss, torch.nan)
        of_strong = dict.fromkeys(("strong_loss", "strong_probability", "margin_tokens", "strong_entropy"), nan)
        return loss, alone._replace(**of_weak, **of_strong)
    lengths = [None if x is None else len(x) for x in (strong_TD, weak_TE if weak_runs else target_T, target_T)]
    if strong_TD is None or len(set(lengths)) > 1:
        raise UserError(
            f"Strong hidden states have {lengths[0]} rows, weak ones {lengths[1]}, and there are {lengths[2]} targets; "
            "expected one row of each for every target."
        )
    if weak_TE is not None and weak_runs and strong_TD.dtype != weak_TE.dtype:  # one tile of logits serves both
        wide = torch.promote_types(strong_TD.dtype, weak_TE.dtype)
        strong_TD, weak_TE = strong_TD.to(wide), weak_TE.to(wide)
    if implementation == "reference":
        weak_TV = weak.logits(weak_TE) if weak_TE is not None and weak_runs else None
        return _reference(strong.logits(strong_TD), weak_TV, target_T, Mixing(strong_weight, strong_anchor), scale)
    mixing = Mixing(strong_weight, strong_anchor, strong.scale, strong.cap or 0.0, weak.scale, weak.cap or 0.0)
    tensors = [strong_TD, strong.weight_VD, strong.bias_V]
    tensors += [weak_TE, weak.weight_VD, weak.bias_V] if weak_runs else [None, None, None]
    needs = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in tensors]
    loss, statistics_9, *_ = _mixed_ce(*tensors, target_T, [*mixing, scale], [statistics, triton], needs)
    return loss, MixStatistics(*statistics_9.unbind())


@torch.library.custom_op("weakdriven::mixed_cross_entropy", mutates_args=())
def _mixed_ce(
    strong_TD: Tensor,
    strong_head_VD: Tensor,
    strong_bias_V: Tensor | None,
    weak_TE: Tensor | None,
    weak_head_VE: Tensor | None,
    weak_bias_V: Tensor | None,
    target_T: Tensor,
    numbers: list[float],
    flags: list[bool],
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return loss, statistics, and the gradient of each of the first six tensors (empty if not needed).

    Gradients are computed tile by tile in the forward pass, so that each logit is computed once and never kept. This is
    a custom operator, so that `torch.compile` treats it as a whole.

    Args:
        numbers: A `Mixing`, and the factor of the loss.
        flags: Whether to compute statistics, and whether Triton computes the rows.
        needs: Which of the first six tensors need a gradient.
    """
    *weights, scale = numbers
    statistics, triton = flags
    target_T, mixing = target_T.contiguous(), Mixing(*weights)
    strong_weight, strong_anchor, strong_scale, strong_cap, weak_scale, weak_cap = mixing
    strong = Branch(strong_TD, strong_head_VD, strong_bias_V, needs[:3])
    weak = None
    if weak_TE is not None and weak_head_VE is not None:
        weak = Branch(weak_TE, weak_head_VE, weak_bias_V, needs[3:])
    gradients, factors = NO_GRADIENT, (1.0, 1.0)
    if any(needs) and (strong_anchor or strong_cap or weak_cap):
        gradients = SEPARATE
    elif any(needs):  # both models' gradients are multiples of the mixed one, in one buffer
        gradients, factors = SHARED, (strong_weight * strong_scale, (1 - strong_weight) * weak_scale)
    fill = partial(row_function(triton), mixing=mixing, statistics=statistics, gradients=gradients)
    chunk, tile = tile_rows(strong_TD, len(strong_head_VD), triton=triton, pair=weak is not None, gradients=gradients)
    chunk = min(chunk, max(len(target_T), 1))
    tile = min(tile, chunk)
    strong_CV = strong_TD.new_empty(chunk, len(strong_head_VD))
    weak_RV = strong_TD.new_empty(tile, len(strong_head_VD)) if weak else None
    results, strong_logits, weak_logits = [], strong_CV, weak_RV
    with torch.autocast(strong_TD.device.type, enabled=False):
        for begin in range(0, len(target_T), chunk):
            end = min(begin + chunk, len(target_T))
            strong_logits = strong.logits(begin, end, strong_CV)
            for first in range(begin, end, tile):
                last = min(first + tile, end)
                if weak:
                    weak_logits = weak.logits(first, last, weak_RV)
                strong_RV = strong_logits[first - begin : last - begin]
                results.append(fill(strong_RV, weak_logits, target_T[first:last]))
            if gradients:
                strong.take(strong_logits, begin, end, scale, factors[0])
            if gradients and weak and weak_logits is not None:
                weak.take(weak_logits if gradients == SEPARATE else strong_logits, begin, end, scale, factors[1])
    del strong_CV, weak_RV, strong_logits, weak_logits
    totals_9 = torch.cat(results).sum(0).to(strong.wide) if results else strong_TD.new_zeros(9, dtype=strong.wide)
    loss = scale * (totals_9[0] + strong_anchor * totals_9[1] if strong_anchor else totals_9[0])
    nothing = strong_TD.new_empty(0), strong_TD.new_empty(0), strong_TD.new_empty(0)
    return loss, totals_9, *strong.gradients(), *(weak.gradients() if weak else nothing)


@_mixed_ce.register_fake
def _(strong_TD, strong_head_VD, strong_bias_V, weak_TE, weak_head_VE, weak_bias_V, target_T, *rest):
    tensors = (strong_TD, strong_head_VD, strong_bias_V, weak_TE, weak_head_VE, weak_bias_V)
    wide = torch.promote_types(strong_TD.dtype, torch.float32)
    return (
        strong_TD.new_empty((), dtype=wide),
        strong_TD.new_empty(9, dtype=wide),
        *(torch.empty_like(x) if need else strong_TD.new_empty(0) for x, need in zip(tensors, rest[-1], strict=True)),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden_TD, numbers, ctx.needs = inputs[0], inputs[7], inputs[-1]
    ctx.late = late_scale(numbers[-1], hidden_TD)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # else autograd would create zeros in the shape of every output
    ctx.save_for_backward(*output[2:])


def _scale(ctx: Any, scale: Tensor, *_: Any) -> tuple[Any, ...]:
    return *scaled_once(ctx, scale), *(None,) * 4


_mixed_ce.register_autograd(_scale, setup_context=_keep)


def _reference(
    strong_TV: Tensor, weak_TV: Tensor | None, target_T: Tensor, mixing: Mixing, scale: float
) -> tuple[Tensor, MixStatistics]:
    """Compute what the operator does from logits that are already scaled and capped."""
    mixed_with_TV = strong_TV if weak_TV is None else weak_TV
    loss = mixed_cross_entropy_reference(strong_TV, mixed_with_TV, target_T, strong_weight=mixing.strong_weight)
    if mixing.strong_anchor:
        loss = loss + mixing.strong_anchor * F.cross_entropy(strong_TV, target_T, reduction="sum")
    with torch.no_grad():
        columns = mix_rows(strong_TV, weak_TV, target_T, mixing, statistics=True, gradients=NO_GRADIENT)
    return scale * loss, MixStatistics(*columns.sum(0).unbind())


def targets(labels: Tensor, position_ids: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
    """Return the next token of each position, or IGNORE; the end of a packed sequence does not predict the next one."""
    target = labels[:, 1:]
    if position_ids is not None and attention_mask is None:
        target = target.masked_fill(position_ids[:, 1:] == 0, IGNORE)
    return target
