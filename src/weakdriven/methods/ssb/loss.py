"""Distillation from stored top-k teacher logits (SSB), and their extraction, without a (T, V) tensor.

T = tokens, R = rows of a tile, K = stored logits of a token, D = width, V = vocabulary.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from weakdriven.errors import UserError
from weakdriven.losses.branch import Branch
from weakdriven.losses.head import Head, as_head
from weakdriven.losses.mix_rows import NO_GRADIENT, capped
from weakdriven.losses.tiled_loss import finite, overwrite, tiled_loss
from weakdriven.losses.tiles import tile_rows


class TopLogits(NamedTuple):
    """The stored part of a teacher's distribution; logits may be stored in bfloat16, ids in int32."""

    ids_TK: Tensor
    """Tokens in falling order of their logits."""
    logits_TK: Tensor
    lse_T: Tensor
    """Log-sum-exp of all logits divided by the temperature."""
    coverage_T: Tensor
    """Probability of these tokens at temperature 1."""


LOGGED = ("kd_loss", "true_loss", "coverage")
"""KL divergence at the temperature, without the factor temperature**2; cross-entropy with the true token at temperature
1; the teacher's probability of the stored tokens at the temperature."""


def topk_distillation(
    hidden_TD: Tensor,
    head_VD: Tensor | Head,
    target_T: Tensor,
    teacher: tuple[Tensor, Tensor, Tensor],
    *,
    temperature: float = 1.5,
    kd_weight: float = 0.5,
    ce_weight: float = 0.5,
    renormalize: bool = True,
    support: Literal["full", "topk"] = "full",
    scale: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the loss of SSB: kd_weight * temperature**2 * KL(q || P at the temperature) + ce_weight * CE.

    The gradient can be taken only once. `SsbSettings` explains the options.

    Args:
        target_T: Supervised targets only, no -100.
        teacher: The first three fields of `TopLogits`, at the same temperature; the ids of a token are all different.
        scale: Factor of the summed loss, such as 1 / tokens of the step (default: 1 / T).

    >>> trained, teacher = torch.tensor([[2, 1.5, 0.5, 0]]), torch.tensor([[4.0, 1, 0, -1]])
    >>> top = top_logits(teacher, torch.eye(4), k=2, temperature=1.5)
    >>> round(topk_distillation(trained, torch.eye(4), torch.tensor([0]), top[:3])[0].item(), 6)
    0.931709
    """
    head, whole_vocabulary = as_head(head_VD), support == "full"
    ids_TK, logits_TK, lse_T = teacher
    push = kd_weight * temperature  # temperature**2 of the loss / temperature of the logits

    def rows(raw_RV: Tensor, begin: int, end: int, gradient: bool) -> Tensor:
        place_R1, ids_RK = target_T[begin:end, None], ids_TK[begin:end].long()
        z_RV = capped(raw_RV, head.scale, head.cap or 0.0)
        z_RK = z_RV.gather(1, ids_RK)

        log_q_RK = logits_TK[begin:end].to(z_RK.dtype) / temperature
        stored_R1 = log_q_RK.logsumexp(-1, keepdim=True)
        teacher_lse_R1 = lse_T[begin:end, None].to(z_RK.dtype)
        log_q_RK -= stored_R1 if renormalize else teacher_lse_R1
        q_RK = log_q_RK.exp()
        pushed_R1 = push * q_RK.sum(-1, keepdim=True)  # the sum is 1 unless q is part of a distribution

        lse_R1 = z_RV.logsumexp(-1, keepdim=True)
        ce_R = (lse_R1 - z_RV.gather(1, place_R1))[:, 0]
        tempered_lse_R1 = lse_R1
        if whole_vocabulary and temperature != 1:
            tempered_lse_R1 = (z_RV / temperature).logsumexp(-1, keepdim=True)
        log_p_RK = z_RK / temperature
        log_p_RK -= tempered_lse_R1 if whole_vocabulary else log_p_RK.logsumexp(-1, keepdim=True)
        p_RK = log_p_RK.exp()
        kl_R = (torch.xlogy(q_RK, q_RK) - q_RK * finite(log_p_RK)).sum(-1)
        loss_R = kd_weight * temperature**2 * kl_R + ce_weight * ce_R
        if gradient:
            by_z_RV = (z_RV - lse_R1).exp_().mul_(ce_weight)
            by_z_RV.scatter_add_(1, place_R1, torch.full_like(place_R1, -ce_weight, dtype=by_z_RV.dtype))
            if whole_vocabulary:
                by_z_RV.addcmul_((z_RV / temperature).sub_(tempered_lse_R1).exp_(), pushed_R1)
                by_z_RV.scatter_add_(1, ids_RK, -push * q_RK)
            else:
                by_z_RV.scatter_add_(1, ids_RK, pushed_R1 * p_RK - push * q_RK)
            overwrite(raw_RV, by_z_RV, head)
        return torch.stack([loss_R, kl_R, ce_R, (stored_R1 - teacher_lse_R1).exp()[:, 0]], 1)

    loss, sums_4 = tiled_loss(hidden_TD, head, rows, columns=4, scale=scale)
    return loss, dict(zip(LOGGED, sums_4[1:], strict=True))


@torch.no_grad()
def top_logits(hidden_TD: Tensor, head_VD: Tensor | Head, *, k: int = 20, temperature: float = 1.5) -> TopLogits:
    """Return the k largest logits of each token and the log-sum-exp of all, without a gradient.

    >>> top = top_logits(torch.tensor([[1.0, 4, 0, -1]]), torch.eye(4), k=2)
    >>> top.ids_TK.tolist(), top.logits_TK.tolist(), round(top.coverage_T.item(), 6)
    ([[1, 0]], [[4.0, 1.0]], 0.976691)
    """
    head = as_head(head_VD)
    tokens, vocabulary = len(hidden_TD), len(head.weight_VD)
    if not 1 <= k <= vocabulary:
        raise UserError(f"k is {k}; it must be between 1 and the {vocabulary} rows of the head.")
    branch = Branch(hidden_TD, head.weight_VD, head.bias_V, [False] * 3)
    tile, _ = tile_rows(hidden_TD, vocabulary, triton=False, pair=False, gradients=NO_GRADIENT)
    buffer_RV = hidden_TD.new_empty(min(tile, tokens), vocabulary)
    ids_TK = torch.empty(tokens, k, dtype=torch.long, device=hidden_TD.device)
    logits_TK = torch.empty(tokens, k, dtype=branch.wide, device=hidden_TD.device)
    lse_T, coverage_T = torch.empty_like(logits_TK[:, 0]), torch.empty_like(logits_TK[:, 0])
    with torch.autocast(hidden_TD.device.type, enabled=False):
        for begin in range(0, tokens, tile):
            rows = slice(begin, begin + tile)
            raw_RV = branch.logits(begin, min(begin + tile, tokens), buffer_RV)
            z_RV = capped(raw_RV, head.scale, head.cap or 0.0)
            logits_TK[rows], ids_TK[rows] = z_RV.topk(k)
            coverage_T[rows] = (logits_TK[rows].logsumexp(-1) - z_RV.logsumexp(-1)).exp().clamp_max_(1)
            lse_T[rows] = (z_RV / temperature).logsumexp(-1)
    return TopLogits(ids_TK, logits_TK, lse_T, coverage_T)
