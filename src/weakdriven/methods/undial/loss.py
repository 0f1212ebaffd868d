"""UNDIAL as published: self-distillation on adjusted teacher logits.

T = tokens, R = rows of a tile, D / E = trained / teacher width, V = vocabulary.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from weakdriven.losses.branch import Branch
from weakdriven.losses.head import Head, as_head
from weakdriven.losses.mix_rows import capped
from weakdriven.losses.tiled_loss import log_softmax_, overwrite, tiled_loss

LOGGED = ("soft_loss", "true_loss", "teacher_probability", "adjusted_probability")
"""Cross-entropy with the adjusted teacher, and with the true token; the teacher's P(y), and q(y)."""


def adjusted_logit_loss_reference(
    logits_TV: Tensor, teacher_TV: Tensor, target_T: Tensor, *, strength: float
) -> Tensor:
    hit_TV = F.one_hot(target_T, logits_TV.shape[1])
    return -((teacher_TV - strength * hit_TV).softmax(-1) * logits_TV.log_softmax(-1)).sum()


def adjusted_logit_loss(
    hidden_TD: Tensor,
    head_VD: Tensor | Head,
    teacher_TE: Tensor,
    teacher_head_VE: Tensor | Head,
    target_T: Tensor,
    *,
    strength: float = 1.0,
    ce_weight: float = 0.0,
    scale: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the cross-entropy with q = softmax(z_teacher - strength * onehot(y)) (Dong et al., 2024).

    The loss of a token is -sum_k q_k log P(k) - ce_weight * log P(y). The teacher gets no gradient. The logits of both
    are held for one tile of tokens at a time. The gradient can be taken only once.

    Args:
        target_T: Supervised targets only, no -100.
        scale: Factor of the summed loss, such as 1 / tokens of the step (default: 1 / T).

    >>> trained, teacher = torch.tensor([[2, 1.5, 0.5, 0]]), torch.tensor([[4.0, 1, 0, -1]])
    >>> loss, _ = adjusted_logit_loss(trained, torch.eye(4), teacher, torch.eye(4), torch.tensor([0]))
    >>> round(loss.item(), 6)
    0.824214
    """
    head, teacher = as_head(head_VD), as_head(teacher_head_VE)
    bias_V = None if teacher.bias_V is None else teacher.bias_V.detach()
    branch = Branch(teacher_TE.detach(), teacher.weight_VD.detach(), bias_V, [False] * 3)

    def rows(raw_RV: Tensor, begin: int, end: int, gradient: bool) -> Tensor:
        place_R1 = target_T[begin:end, None]
        q_RV = capped(branch.logits(begin, end, None), teacher.scale, teacher.cap or 0.0)
        teacher_p_R = (q_RV.gather(1, place_R1)[:, 0] - q_RV.logsumexp(-1)).exp()
        q_RV.scatter_add_(1, place_R1, torch.full_like(place_R1, -strength, dtype=q_RV.dtype))
        q_RV.sub_(q_RV.logsumexp(-1, keepdim=True)).exp_()
        log_p_RV = log_softmax_(capped(raw_RV, head.scale, head.cap or 0.0))
        ce_R = -log_p_RV.gather(1, place_R1)[:, 0]
        soft_R = -(q_RV * log_p_RV).sum(-1)
        results = soft_R + ce_weight * ce_R, soft_R, ce_R, teacher_p_R, q_RV.gather(1, place_R1)[:, 0]
        if gradient:
            by_z_RV = log_p_RV.exp_().mul_(1 + ce_weight).sub_(q_RV)
            by_z_RV.scatter_add_(1, place_R1, torch.full_like(place_R1, -ce_weight, dtype=by_z_RV.dtype))
            overwrite(raw_RV, by_z_RV, head)
        return torch.stack(results, 1)

    loss, sums_5 = tiled_loss(hidden_TD, head, rows, columns=5, scale=scale)
    return loss, dict(zip(LOGGED, sums_5[1:], strict=True))
