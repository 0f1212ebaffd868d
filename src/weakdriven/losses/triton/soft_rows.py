"""Triton rows of the baselines: cross-entropy with an adjusted teacher, with noise, with a stored teacher beside it.

R = rows of a tile, V = vocabulary. Each program owns one row and reads it twice: once for the log-sum-exps, once to
write the gradient over the logits. All arithmetic is float32 whatever the logits are in. The target's logit, which is
moved, stays out of the first sum and comes to it last, so that nothing cancels.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weakdriven.losses.triton.mixed_ce import BLOCK, WARPS, _capped, _slope

Shape = tuple[float, float]
"""What a head does to its raw logits: a factor, and a cap or 0."""


@triton.jit
def _fold(z, largest, total):
    """Fold a block, lane by lane, into a running max and sum of exp(z - max): one exp each."""
    rise = z - largest
    e = tl.exp(-tl.abs(rise))
    higher = rise > 0
    return tl.where(higher, z, largest), tl.where(higher, total * e + 1, total + e)


@triton.jit
def _lse(largest, total):
    most = tl.max(largest, 0)
    return most + tl.log(tl.sum(total * tl.exp(largest - most), 0))  # pyright: ignore


@triton.jit
def _or(one, other):
    """log(exp(one) + exp(other))"""
    return tl.maximum(one, other) + tl.log(1 + tl.exp(-tl.abs(one - other)))


@triton.jit
def _loss_of(z, others):
    """-log P of a logit beside others whose log-sum-exp is known; finite, so that a weight of 0 makes it 0."""
    rise = others - z
    loss = tl.maximum(rise, 0.0) + tl.log(1 + tl.exp(-tl.abs(rise)))
    return tl.where(loss > 3.4e38, 3.4e38, loss)


@triton.jit
def _adjusted(
    raw_ptr,
    teacher_ptr,
    target_ptr,
    result_ptr,
    raw_stride,
    teacher_stride,
    vocabulary,
    strength,
    ce_weight,
    scale,
    cap,
    teacher_scale,
    teacher_cap,
    CAPPED: tl.constexpr,
    TEACHER_CAPPED: tl.constexpr,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    raw_ptr += row * raw_stride
    teacher_ptr += row * teacher_stride
    result_ptr += row * 5
    target = tl.load(target_ptr + row)
    known = (target >= 0) & (target < vocabulary)  # another target has no logit: its loss is not a number
    # read here, because other warps may have written their gradients over it by the time of its use
    y = tl.load(raw_ptr + target, mask=known, other=float("nan")).to(tl.float32)
    y = _capped(y, scale, cap, CAPPED)
    teacher_y = tl.load(teacher_ptr + target, mask=known, other=float("nan")).to(tl.float32)
    teacher_y = _capped(teacher_y, teacher_scale, teacher_cap, TEACHER_CAPPED)
    lanes = tl.arange(0, BLOCK)
    low = tl.full((BLOCK,), -1e30, tl.float32)  # finite: the difference of two infinities is not a number
    largest, total = low, low * 0
    teacher_largest, teacher_total = low, low * 0
    for start in range(0, vocabulary, BLOCK):
        place = start + lanes
        inside = place < vocabulary
        other = inside & (place != target)
        z = tl.load(raw_ptr + place, mask=inside, other=0.0).to(tl.float32)
        z = tl.where(other, _capped(z, scale, cap, CAPPED), low)
        largest, total = _fold(z, largest, total)
        t = tl.load(teacher_ptr + place, mask=inside, other=0.0).to(tl.float32)
        t = tl.where(other, _capped(t, teacher_scale, teacher_cap, TEACHER_CAPPED), low)
        teacher_largest, teacher_total = _fold(t, teacher_largest, teacher_total)

    others, teacher_others = _lse(largest, total), _lse(teacher_largest, teacher_total)
    ce = _loss_of(y, others)
    lse, teacher_lse = _or(others, y), _or(teacher_others, teacher_y - strength)

    soft = low * 0
    blocks = tl.cdiv(vocabulary, BLOCK)
    for back in range(0, blocks):  # backwards, because the end of the row was read last and may still be in cache
        place = (blocks - 1 - back) * BLOCK + lanes
        inside = place < vocabulary
        z = tl.load(raw_ptr + place, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        z = _capped(z, scale, cap, CAPPED)
        t = tl.load(teacher_ptr + place, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        t = _capped(t, teacher_scale, teacher_cap, TEACHER_CAPPED)
        log_p = z - lse
        q = tl.exp(tl.where(place == target, t - strength, t) - teacher_lse)
        # finite, so that a logit of minus infinity to which the teacher gives nothing adds 0
        soft += tl.where(inside, q * tl.where(log_p < -3.4e38, -3.4e38, log_p), 0.0)
        if GRADIENT:
            gradient = (1 + ce_weight) * tl.exp(log_p) - q - tl.where(place == target, ce_weight, 0.0)
            gradient *= _slope(z, scale, cap, CAPPED)
            tl.store(raw_ptr + place, gradient.to(raw_ptr.dtype.element_ty), mask=inside)

    soft_loss = -tl.sum(soft, 0)  # pyright: ignore
    tl.store(result_ptr, soft_loss + ce_weight * ce)
    tl.store(result_ptr + 1, soft_loss)
    tl.store(result_ptr + 2, ce)
    tl.store(result_ptr + 3, tl.sigmoid(teacher_y - teacher_others))
    tl.store(result_ptr + 4, tl.sigmoid(teacher_y - strength - teacher_others))


@triton.jit
def _noised(
    raw_ptr,
    target_ptr,
    noise_ptr,
    result_ptr,
    raw_stride,
    vocabulary,
    scale,
    cap,
    CAPPED: tl.constexpr,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    raw_ptr += row * raw_stride
    target = tl.load(target_ptr + row)
    known = (target >= 0) & (target < vocabulary)
    y = tl.load(raw_ptr + target, mask=known, other=float("nan")).to(tl.float32)
    y = _capped(y, scale, cap, CAPPED)
    noised_y = y + tl.load(noise_ptr + row).to(tl.float32)
    lanes = tl.arange(0, BLOCK)
    low = tl.full((BLOCK,), -1e30, tl.float32)
    largest, total = low, low * 0
    for start in range(0, vocabulary, BLOCK):
        place = start + lanes
        inside = place < vocabulary
        z = tl.load(raw_ptr + place, mask=inside, other=0.0).to(tl.float32)
        z = tl.where(inside & (place != target), _capped(z, scale, cap, CAPPED), low)
        largest, total = _fold(z, largest, total)

    others = _lse(largest, total)
    tl.store(result_ptr + 2 * row, _loss_of(noised_y, others))
    tl.store(result_ptr + 2 * row + 1, _loss_of(y, others))

    if GRADIENT:
        lse = _or(others, noised_y)
        blocks = tl.cdiv(vocabulary, BLOCK)
        for back in range(0, blocks):
            place = (blocks - 1 - back) * BLOCK + lanes
            inside = place < vocabulary
            z = tl.load(raw_ptr + place, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
            z = _capped(z, scale, cap, CAPPED)
            hit = place == target
            gradient = tl.exp(tl.where(hit, noised_y, z) - lse) - tl.where(hit, 1.0, 0.0)
            gradient *= _slope(z, scale, cap, CAPPED)
            tl.store(raw_ptr + place, gradient.to(raw_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _tempered(
    raw_ptr,
    target_ptr,
    weight_ptr,
    result_ptr,
    raw_stride,
    vocabulary,
    temperature,
    ce_weight,
    scale,
    cap,
    CAPPED: tl.constexpr,
    TEMPERED: tl.constexpr,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    raw_ptr += row * raw_stride
    target = tl.load(target_ptr + row)
    known = (target >= 0) & (target < vocabulary)
    y = tl.load(raw_ptr + target, mask=known, other=float("nan")).to(tl.float32)
    y = _capped(y, scale, cap, CAPPED)
    lanes = tl.arange(0, BLOCK)
    low = tl.full((BLOCK,), -1e30, tl.float32)
    largest, total = low, low * 0
    tempered_largest, tempered_total = low, low * 0
    for start in range(0, vocabulary, BLOCK):
        place = start + lanes
        inside = place < vocabulary
        z = tl.load(raw_ptr + place, mask=inside, other=0.0).to(tl.float32)
        z = _capped(z, scale, cap, CAPPED)
        largest, total = _fold(tl.where(inside, z, low), largest, total)
        if TEMPERED:
            z = tl.where(inside, z / temperature, low)
            tempered_largest, tempered_total = _fold(z, tempered_largest, tempered_total)

    lse = _lse(largest, total)
    tempered_lse = lse
    if TEMPERED:
        tempered_lse = _lse(tempered_largest, tempered_total)
    tl.store(result_ptr + 3 * row, lse - y)
    tl.store(result_ptr + 3 * row + 1, lse)
    tl.store(result_ptr + 3 * row + 2, tempered_lse)

    if GRADIENT:
        weight = tl.load(weight_ptr + row)
        blocks = tl.cdiv(vocabulary, BLOCK)
        for back in range(0, blocks):
            place = (blocks - 1 - back) * BLOCK + lanes
            inside = place < vocabulary
            z = tl.load(raw_ptr + place, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
            z = _capped(z, scale, cap, CAPPED)
            gradient = ce_weight * (tl.exp(z - lse) - tl.where(place == target, 1.0, 0.0))
            if TEMPERED:
                gradient += weight * tl.exp(z / temperature - tempered_lse)
            gradient *= _slope(z, scale, cap, CAPPED)
            tl.store(raw_ptr + place, gradient.to(raw_ptr.dtype.element_ty), mask=inside)


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
) -> Tensor:
    """The same contract as `losses.soft_rows.adjusted_rows`, in one kernel; the teacher's logits are only read."""
    rows, vocabulary = raw_RV.shape
    result_R5 = torch.empty((rows, 5), dtype=torch.float32, device=raw_RV.device)
    with torch.cuda.device_of(raw_RV):  # Triton launches on the current device
        _adjusted[(rows,)](
            raw_RV,
            teacher_RV,
            target_R.contiguous(),
            result_R5,
            raw_RV.stride(0),
            teacher_RV.stride(0),
            vocabulary,
            float(strength),
            float(ce_weight),
            float(shape[0]),
            float(shape[1]),
            float(teacher_shape[0]),
            float(teacher_shape[1]),
            **_constants(vocabulary, CAPPED=shape[1] > 0, TEACHER_CAPPED=teacher_shape[1] > 0, GRADIENT=gradient),
        )
    return result_R5


def noised_rows(raw_RV: Tensor, target_R: Tensor, noise_R: Tensor, *, shape: Shape, gradient: bool) -> Tensor:
    """Cross-entropy with noise added to the target's logit, and without, in one kernel."""
    rows, vocabulary = raw_RV.shape
    result_R2 = torch.empty((rows, 2), dtype=torch.float32, device=raw_RV.device)
    with torch.cuda.device_of(raw_RV):
        _noised[(rows,)](
            raw_RV,
            target_R.contiguous(),
            noise_R.contiguous(),
            result_R2,
            raw_RV.stride(0),
            vocabulary,
            float(shape[0]),
            float(shape[1]),
            **_constants(vocabulary, CAPPED=shape[1] > 0, GRADIENT=gradient),
        )
    return result_R2


def tempered_rows(
    raw_RV: Tensor,
    target_R: Tensor,
    weight_R: Tensor,
    *,
    temperature: float,
    ce_weight: float,
    tempered: bool,
    shape: Shape,
    gradient: bool,
) -> Tensor:
    """Cross-entropy, log-sum-exp, and that of the logits over the temperature (where not asked for: the first again).

    The gradient is that of ce_weight * CE + weight * temperature * (log-sum-exp over the temperature).
    """
    rows, vocabulary = raw_RV.shape
    result_R3 = torch.empty((rows, 3), dtype=torch.float32, device=raw_RV.device)
    with torch.cuda.device_of(raw_RV):
        _tempered[(rows,)](
            raw_RV,
            target_R.contiguous(),
            weight_R.contiguous(),
            result_R3,
            raw_RV.stride(0),
            vocabulary,
            float(temperature),
            float(ce_weight),
            float(shape[0]),
            float(shape[1]),
            **_constants(vocabulary, CAPPED=shape[1] > 0, TEMPERED=tempered, GRADIENT=gradient),
        )
    return result_R3


def _constants(vocabulary: int, **constants: bool) -> dict[str, Any]:
    block = min(BLOCK, int(max(16, triton.next_power_of_2(vocabulary))))
    return {**constants, "BLOCK": block, "num_warps": WARPS if block == BLOCK else 4}
