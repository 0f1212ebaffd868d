"""Cross-entropy of mixed weak and strong logits (WD-JT), dense for reference and chunked over tokens.

T = supervised tokens, C = tokens in a chunk, D / E = strong / weak width, V = vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORE = -100


class MixStatistics(NamedTuple):
    """Sums over supervised tokens, for logging; they carry no gradient."""

    strong_loss: Tensor
    weak_loss: Tensor
    mixed_probability: Tensor
    """Sum of P_mix(y)."""
    strong_probability: Tensor
    """Sum of P_strong(y)."""
    margin_tokens: Tensor
    """Tokens on which no weak margin exceeds the strong one, so that mixing can only lower P(y) (paper Thm. 1)."""


def mixed_cross_entropy_reference(strong_TV: Tensor, weak_TV: Tensor, target_T: Tensor, *, strong_weight: float):
    mixed_TV = strong_weight * strong_TV.float() + (1 - strong_weight) * weak_TV.float()
    return F.cross_entropy(mixed_TV, target_T, ignore_index=IGNORE, reduction="sum")


def mixed_cross_entropy(
    strong_TD: Tensor,
    strong_head_VD: Tensor,
    weak_TE: Tensor,
    weak_head_VE: Tensor,
    target_T: Tensor,
    *,
    strong_weight: float = 0.5,
    chunk: int = 1024,
) -> Tensor:
    """Sum over tokens of -log softmax(strong_weight * z_strong + (1 - strong_weight) * z_weak)[target].

    Peak memory is a few (chunk, V) tensors rather than (T, V). Targets of -100 are skipped.

    Args:
        strong_weight: Share of the strong logits, in [0, 1]. Paper: lambda.

    >>> strong, weak = torch.tensor([[4.0, 1, 0, -1]]), torch.tensor([[2, 1.5, 0.5, 0]])
    >>> round(mixed_cross_entropy(strong, torch.eye(4), weak, torch.eye(4), torch.tensor([0])).item(), 6)
    0.237361
    """
    return mixed_cross_entropy_with_statistics(
        strong_TD, strong_head_VD, weak_TE, weak_head_VE, target_T, strong_weight=strong_weight, chunk=chunk
    )[0]


def mixed_cross_entropy_with_statistics(
    strong_TD: Tensor,
    strong_head_VD: Tensor,
    weak_TE: Tensor,
    weak_head_VE: Tensor,
    target_T: Tensor,
    *,
    strong_weight: float = 0.5,
    chunk: int = 1024,
) -> tuple[Tensor, MixStatistics]:
    """As `mixed_cross_entropy`, with what is worth logging about the two branches from the same pass."""
    kept = target_T != IGNORE
    arguments = (strong_TD[kept], strong_head_VD, weak_TE[kept], weak_head_VE, target_T[kept], strong_weight, chunk)
    loss, *sums = _ChunkedMix.apply(*arguments)
    return loss, MixStatistics(*sums)


class _ChunkedMix(torch.autograd.Function):
    """Gradients are taken chunk by chunk in the forward pass, so each logit is computed once and never kept."""

    @staticmethod
    def forward(ctx: Any, strong_TD, strong_head_VD, weak_TE, weak_head_VE, target_T, strong_weight, chunk):
        needs = ctx.needs_input_grad[:4]
        inputs = (strong_TD, strong_head_VD, weak_TE, weak_head_VE)
        # heads add up over many chunks, so their sum is kept in float32 whatever the weights are in
        sums = [
            torch.zeros_like(x, dtype=torch.float32) if need else None for x, need in zip(inputs, needs, strict=True)
        ]
        totals = torch.zeros(6, dtype=torch.float32, device=strong_TD.device)
        for begin in range(0, len(target_T), chunk):
            part = slice(begin, begin + chunk)
            strong_CD, weak_CE, target_C1 = strong_TD[part], weak_TE[part], target_T[part, None]
            strong_CV, weak_CV = (strong_CD @ strong_head_VD.T).float(), (weak_CE @ weak_head_VE.T).float()
            log_mixed_CV = (strong_weight * strong_CV + (1 - strong_weight) * weak_CV).log_softmax(-1)
            totals += _chunk_totals(strong_CV, weak_CV, log_mixed_CV, target_C1)
            if not any(needs):
                continue
            gradient_CV = log_mixed_CV.exp_()
            gradient_CV.scatter_add_(1, target_C1, torch.full_like(target_C1, -1, dtype=gradient_CV.dtype))
            gradient_CV = gradient_CV.to(strong_TD.dtype)
            for hidden_CX, head_VX, hidden_sum, head_sum, share in (
                (strong_CD, strong_head_VD, sums[0], sums[1], strong_weight),
                (weak_CE, weak_head_VE, sums[2], sums[3], 1 - strong_weight),
            ):
                if hidden_sum is not None:
                    hidden_sum[part] = share * (gradient_CV @ head_VX).float()
                if head_sum is not None:
                    head_sum += share * (gradient_CV.T @ hidden_CX).float()
        ctx.save_for_backward(*(None if s is None else s.to(x.dtype) for s, x in zip(sums, inputs, strict=True)))
        ctx.mark_non_differentiable(*(rest := totals[1:].unbind()))
        return totals[0].clone(), *rest

    @staticmethod
    def backward(ctx: Any, scale, *_):  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients = [None if saved is None else scale.to(saved.dtype) * saved for saved in ctx.saved_tensors]
        return *gradients, None, None, None


def _chunk_totals(strong_CV: Tensor, weak_CV: Tensor, log_mixed_CV: Tensor, target_C1: Tensor) -> Tensor:
    log_mixed_C = log_mixed_CV.gather(1, target_C1)[:, 0]
    log_strong_C = strong_CV.gather(1, target_C1)[:, 0] - strong_CV.logsumexp(-1)
    log_weak_C = weak_CV.gather(1, target_C1)[:, 0] - weak_CV.logsumexp(-1)
    # weak margin <= strong margin for every k  <=>  weak - strong is smallest at the target
    difference_CV = weak_CV - strong_CV
    margin_C = difference_CV.gather(1, target_C1)[:, 0] <= difference_CV.amin(-1)
    columns = (-log_mixed_C, -log_strong_C, -log_weak_C, log_mixed_C.exp(), log_strong_C.exp(), margin_C.float())
    return torch.stack([column.sum() for column in columns])
