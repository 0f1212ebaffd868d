"""Rows of logits to loss, statistics and gradient for the baselines: in plain torch, or by `kernels/soft_rows.py`.

R = rows of a tile, K = stored teacher logits of a token, V = vocabulary. Each function takes raw logits and, where a
gradient is asked for, overwrites them with that of the row's loss; a `Shape` says what a head does to its raw logits.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from weakdriven.losses.head import Head
from weakdriven.losses.mix_rows import by_raw, capped
from weakdriven.methods.undial.noise import standard_normal

NOISE_ROWS = 16
"""Rows whose noise is held at a time: it takes four times the memory of float32 logits to make."""


class Shape(NamedTuple):
    scale: float
    cap: float
    """0: none."""

    @classmethod
    def of(cls, head: Head) -> "Shape":
        return cls(head.scale, head.cap or 0.0)


def adjusted_rows(
    raw_RV: Tensor,
    teacher_RV: Tensor,
    target_R: Tensor,
    *,
    strength: float,
    ce_weight: float,
    shape: Shape,
    teacher_shape: Shape,
    gradient: bool,
    triton: bool = False,
) -> Tensor:
    """Loss, cross-entropy with the adjusted teacher and with the target, teacher's P(y), q(y); teacher is overwritten.

    q = softmax(z_teacher - strength * onehot(y)), loss = -sum_k q_k log P(k) - ce_weight * log P(y).
    """
    if triton:
        from weakdriven.losses.triton import soft_rows

        options = {"strength": strength, "ce_weight": ce_weight, "shape": shape, "teacher_shape": teacher_shape}
        return soft_rows.adjusted_rows(raw_RV, teacher_RV, target_R, gradient=gradient, **options)
    place_R1 = target_R[:, None]
    q_RV = capped(teacher_RV, *teacher_shape)
    teacher_p_R = (q_RV.gather(1, place_R1)[:, 0] - q_RV.logsumexp(-1)).exp()
    q_RV.scatter_add_(1, place_R1, torch.full_like(place_R1, -strength, dtype=q_RV.dtype))
    q_RV.sub_(q_RV.logsumexp(-1, keepdim=True)).exp_()
    log_p_RV = _log_softmax_(capped(raw_RV, *shape))
    ce_R = -log_p_RV.gather(1, place_R1)[:, 0]
    soft_R = -(q_RV * log_p_RV).sum(-1)
    results = soft_R + ce_weight * ce_R, soft_R, ce_R, teacher_p_R, q_RV.gather(1, place_R1)[:, 0]
    if gradient:
        by_z_RV = log_p_RV.exp_().mul_(1 + ce_weight).sub_(q_RV)
        by_z_RV.scatter_add_(1, place_R1, torch.full_like(place_R1, -ce_weight, dtype=by_z_RV.dtype))
        _put(by_z_RV, raw_RV, shape)
    return torch.stack(results, 1)


def noised_rows(
    raw_RV: Tensor,
    target_R: Tensor,
    deviation_R: Tensor,
    key_R: Tensor,
    *,
    seed: int,
    everywhere: bool,
    absolute: bool,
    shape: Shape,
    gradient: bool,
    triton: bool = False,
) -> Tensor:
    """Cross-entropy of the logits minus noise, and that without noise.

    Args:
        deviation_R: Standard deviation of a token's noise.
        everywhere: Noise on all logits, not only on that of the target.
        absolute: The size of the noise only, so that it always lowers a logit.
        triton: For noise on the target alone.
    """

    def noise(rows: slice, places: int) -> Tensor:
        normal_RP = standard_normal(seed, key_R[rows], places)
        return (normal_RP.abs_() if absolute else normal_RP).mul_(-deviation_R[rows, None])

    if triton and not everywhere:
        from weakdriven.losses.triton import soft_rows

        return soft_rows.noised_rows(raw_RV, target_R, noise(slice(None), 1)[:, 0], shape=shape, gradient=gradient)
    place_R1 = target_R[:, None]
    z_RV = capped(raw_RV, *shape)
    clean_R = z_RV.logsumexp(-1) - z_RV.gather(1, place_R1)[:, 0]
    if everywhere:
        for begin in range(0, len(z_RV), NOISE_ROWS):
            rows = slice(begin, begin + NOISE_ROWS)
            z_RV[rows] += noise(rows, z_RV.shape[1])
    else:
        z_RV.scatter_add_(1, place_R1, noise(slice(None), 1).to(z_RV.dtype))
    log_p_RV = _log_softmax_(z_RV)
    results = -log_p_RV.gather(1, place_R1)[:, 0], clean_R
    if gradient:
        by_z_RV = log_p_RV.exp_()
        by_z_RV.scatter_add_(1, place_R1, torch.full_like(place_R1, -1, dtype=by_z_RV.dtype))
        _put(by_z_RV, raw_RV, shape)
    return torch.stack(results, 1)


def distilled_rows(
    raw_RV: Tensor,
    target_R: Tensor,
    teacher_ids_RK: Tensor,
    teacher_logits_RK: Tensor,
    teacher_lse_R: Tensor,
    *,
    temperature: float,
    kd_weight: float,
    ce_weight: float,
    renormalize: bool,
    whole_vocabulary: bool,
    shape: Shape,
    gradient: bool,
    triton: bool = False,
) -> Tensor:
    """Loss, KL(q || P) at the temperature, cross-entropy with the target, and the teacher's probability that is stored.

    loss = kd_weight * temperature**2 * KL + ce_weight * CE; the logits are read for both at once.
    """
    place_R1, ids_RK = target_R[:, None], teacher_ids_RK.long()
    z_RK = capped(raw_RV.gather(1, ids_RK), *shape)  # before the kernel writes over them

    log_q_RK = teacher_logits_RK.to(z_RK.dtype) / temperature
    stored_R1 = log_q_RK.logsumexp(-1, keepdim=True)
    teacher_lse_R1 = teacher_lse_R[:, None].to(z_RK.dtype)
    log_q_RK -= stored_R1 if renormalize else teacher_lse_R1
    q_RK = log_q_RK.exp()
    push = kd_weight * temperature  # temperature**2 of the loss, over the temperature that divides the logits
    pushed_R1 = push * q_RK.sum(-1, keepdim=True)  # the sum is 1 unless q is a part of a distribution

    z_RV = None
    if triton:
        from weakdriven.losses.triton import soft_rows

        options = {"temperature": temperature, "ce_weight": ce_weight, "tempered": whole_vocabulary, "shape": shape}
        found_R3 = soft_rows.tempered_rows(raw_RV, target_R, pushed_R1[:, 0], gradient=gradient, **options)
        ce_R, lse_R1, tempered_lse_R1 = found_R3[:, 0].to(z_RK.dtype), found_R3[:, 1:2], found_R3[:, 2:]
    else:
        z_RV = capped(raw_RV, *shape)
        lse_R1 = z_RV.logsumexp(-1, keepdim=True)
        ce_R = (lse_R1 - z_RV.gather(1, place_R1))[:, 0]
        tempered_lse_R1 = lse_R1
        if whole_vocabulary and temperature != 1:
            tempered_lse_R1 = (z_RV / temperature).logsumexp(-1, keepdim=True)

    log_p_RK = z_RK / temperature
    log_p_RK -= tempered_lse_R1 if whole_vocabulary else log_p_RK.logsumexp(-1, keepdim=True)
    p_RK = log_p_RK.exp()
    kl_R = (torch.xlogy(q_RK, q_RK) - q_RK * _finite(log_p_RK)).sum(-1)
    loss_R = kd_weight * temperature**2 * kl_R + ce_weight * ce_R
    results = loss_R, kl_R, ce_R, (stored_R1 - teacher_lse_R1).exp()[:, 0]
    if not gradient:
        return torch.stack(results, 1)

    if z_RV is None:  # the kernel wrote what all logits get; the stored ones get theirs anew, so as to be rounded once
        by_z_RK = ((z_RK - lse_R1).exp_() - (ids_RK == place_R1).to(z_RK.dtype)).mul_(ce_weight)
        by_z_RK += pushed_R1 * p_RK - push * q_RK
        raw_RV.scatter_(1, ids_RK, by_raw(by_z_RK, z_RK, *shape).to(raw_RV.dtype))
        return torch.stack(results, 1)
    by_z_RV = (z_RV - lse_R1).exp_().mul_(ce_weight)
    by_z_RV.scatter_add_(1, place_R1, torch.full_like(place_R1, -ce_weight, dtype=by_z_RV.dtype))
    if whole_vocabulary:
        by_z_RV.addcmul_((z_RV / temperature).sub_(tempered_lse_R1).exp_(), pushed_R1)
        by_z_RV.scatter_add_(1, ids_RK, -push * q_RK)
    else:
        by_z_RV.scatter_add_(1, ids_RK, pushed_R1 * p_RK - push * q_RK)
    _put(by_z_RV, raw_RV, shape)
    return torch.stack(results, 1)


def _log_softmax_(z_RV: Tensor) -> Tensor:
    """In place, and finite, so that a logit of minus infinity to which the target gives nothing adds 0 to the loss."""
    return _finite(z_RV.sub_(z_RV.logsumexp(-1, keepdim=True)))


def _finite(log_p: Tensor) -> Tensor:
    return log_p.clamp_min_(torch.finfo(log_p.dtype).min)


def _put(by_z_RV: Tensor, raw_RV: Tensor, shape: Shape) -> None:
    """The gradient by the raw logits, over them."""
    if shape.cap:
        by_z_RV = by_raw(by_z_RV, capped(raw_RV, *shape), shape.scale, shape.cap)
    elif shape.scale != 1:
        by_z_RV.mul_(shape.scale)
    if by_z_RV is not raw_RV:
        raw_RV.copy_(by_z_RV)
