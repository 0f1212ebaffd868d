"""The row function in Triton: mixed cross-entropy of a strong and a weak logit row, statistics, gradient in place.

R = rows of a tile, V = vocabulary. Each program owns one row and reads both logit rows twice: once for the
log-sum-exps, once to overwrite the logits by the gradient. All arithmetic is float32 for any precision of the logits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from weakdriven.losses.mix_rows import Mixing

COLUMNS = 9
BLOCK, WARPS = 4096, 16


@triton.jit
def _capped(raw, scale, cap, CAPPED: tl.constexpr):
    z = raw * scale
    if CAPPED:
        z = cap * (2 * tl.sigmoid(2 * z / cap) - 1)  # cap * tanh(z / cap)
    return z


@triton.jit
def _slope(z, scale, cap, CAPPED: tl.constexpr):
    """Return the derivative of the capped logit by the raw one."""
    if CAPPED:
        return scale * (1 - (z / cap) * (z / cap))
    else:
        return scale


@triton.jit
def _mixed(strong, weak, strong_weight, STRONG: tl.constexpr):
    """Mix two logits; without STRONG, leave the strong one out, because its weight is 0 and 0 * -inf is NaN."""
    if STRONG:
        return strong_weight * strong + (1 - strong_weight) * weak
    else:
        return (1 - strong_weight) * weak


@triton.jit
def _add(z, largest, total, weighted):
    """Fold a block, lane by lane, into a running max, sum of exp(z - max) and sum of z exp(z - max): one exp each."""
    rise = z - largest
    e = tl.exp(-tl.abs(rise))
    higher = rise > 0
    total = tl.where(higher, total * e + 1, total + e)
    # 0 * -inf would be NaN; if z itself is NaN, so is e
    weighted = tl.where(higher, weighted * e + z, weighted + e * tl.maximum(z, -1e30))
    return tl.where(higher, z, largest), total, weighted


@triton.jit
def _finish(largest, total, weighted):
    """Return the log-sum-exp of all lanes and their entropy."""
    most = tl.max(largest, 0)
    share = tl.exp(largest - most)
    whole = tl.sum(total * share, 0)
    lse = most + tl.log(whole)
    return lse, lse - tl.sum(weighted * share, 0) / whole  # pyright: ignore


@triton.jit
def _rows(
    strong_ptr,
    weak_ptr,
    target_ptr,
    result_ptr,
    strong_stride,
    weak_stride,
    vocabulary,
    strong_weight,
    strong_anchor,
    strong_scale,
    strong_cap,
    weak_scale,
    weak_cap,
    STRONG: tl.constexpr,
    WEAK: tl.constexpr,
    STRONG_CAPPED: tl.constexpr,
    WEAK_CAPPED: tl.constexpr,
    STATISTICS: tl.constexpr,
    ANCHORED: tl.constexpr,
    GRADIENTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    strong_ptr += row * strong_stride
    weak_ptr += row * weak_stride
    target = tl.load(target_ptr + row)
    known = (target >= 0) & (target < vocabulary)  # other targets have no logit; their loss is NaN
    # read early, because other warps may overwrite it with gradients before it is used
    strong_y = tl.load(strong_ptr + target, mask=known, other=float("nan")).to(tl.float32)
    strong_y = _capped(strong_y, strong_scale, strong_cap, STRONG_CAPPED)
    weak_y = tl.load(weak_ptr + target, mask=known, other=float("nan")).to(tl.float32)
    weak_y = _capped(weak_y, weak_scale, weak_cap, WEAK_CAPPED)
    lanes = tl.arange(0, BLOCK)
    low = tl.full((BLOCK,), -1e30, tl.float32)  # finite, because inf - inf is NaN
    mixed_max, mixed_sum, mixed_dot = low, low * 0, low * 0
    strong_max, strong_sum, strong_dot = low, low * 0, low * 0
    weak_max, weak_sum, weak_dot = low, low * 0, low * 0
    smallest = -low
    for start in range(0, vocabulary, BLOCK):
        place = start + lanes
        inside = place < vocabulary
        strong = tl.load(strong_ptr + place, mask=inside, other=0.0).to(tl.float32)
        strong = _capped(strong, strong_scale, strong_cap, STRONG_CAPPED)
        mixed = strong
        if WEAK:
            weak = tl.load(weak_ptr + place, mask=inside, other=0.0).to(tl.float32)
            weak = _capped(weak, weak_scale, weak_cap, WEAK_CAPPED)
            mixed = _mixed(strong, weak, strong_weight, STRONG)
            if STATISTICS:
                lower = tl.maximum(weak, -1e30) - strong  # inf for a token that both models forbid
                # without the target, whose difference a compiler may round differently here and below
                smallest = tl.minimum(smallest, tl.where(inside & (place != target), lower, smallest))
                weak = tl.where(inside, weak, low)
                weak_max, weak_sum, weak_dot = _add(weak, weak_max, weak_sum, weak_dot)
                strong = tl.where(inside, strong, low)
                strong_max, strong_sum, strong_dot = _add(strong, strong_max, strong_sum, strong_dot)
        mixed = tl.where(inside, mixed, low)
        mixed_max, mixed_sum, mixed_dot = _add(mixed, mixed_max, mixed_sum, mixed_dot)

    mixed_lse, mixed_entropy = _finish(mixed_max, mixed_sum, mixed_dot)
    strong_lse, strong_entropy = mixed_lse, mixed_entropy
    mixed_y = strong_y
    result_ptr += row * COLUMNS
    if WEAK:
        mixed_y = _mixed(strong_y, weak_y, strong_weight, STRONG)
        if STATISTICS:
            strong_lse, strong_entropy = _finish(strong_max, strong_sum, strong_dot)
            weak_lse, weak_entropy = _finish(weak_max, weak_sum, weak_dot)
            tl.store(result_ptr + 2, weak_lse - weak_y)
            # weak margin <= strong margin for every k  <=>  weak - strong is smallest at the target
            tl.store(result_ptr + 5, tl.where(weak_y - strong_y <= tl.min(smallest, 0), 1.0, 0.0))
            tl.store(result_ptr + 8, weak_entropy)
    tl.store(result_ptr, mixed_lse - mixed_y)
    if STATISTICS:
        tl.store(result_ptr + 1, strong_lse - strong_y)
        tl.store(result_ptr + 3, tl.exp(mixed_y - mixed_lse))
        tl.store(result_ptr + 4, tl.exp(strong_y - strong_lse))
        tl.store(result_ptr + 6, mixed_entropy)
        tl.store(result_ptr + 7, strong_entropy)

    if GRADIENTS > 0:
        blocks = tl.cdiv(vocabulary, BLOCK)
        for back in range(0, blocks):  # backwards: the end of the row was read last and may be cached
            place = (blocks - 1 - back) * BLOCK + lanes
            inside = place < vocabulary
            strong = tl.load(strong_ptr + place, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
            strong = _capped(strong, strong_scale, strong_cap, STRONG_CAPPED)
            mixed = strong
            if WEAK:
                weak = tl.load(weak_ptr + place, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
                weak = _capped(weak, weak_scale, weak_cap, WEAK_CAPPED)
                mixed = _mixed(strong, weak, strong_weight, STRONG)
            hit = tl.where(place == target, 1.0, 0.0)
            gradient = tl.exp(mixed - mixed_lse) - hit
            if GRADIENTS == 2:
                if WEAK:
                    slope = (1 - strong_weight) * _slope(weak, weak_scale, weak_cap, WEAK_CAPPED)  # pyright: ignore
                    tl.store(weak_ptr + place, (slope * gradient).to(weak_ptr.dtype.element_ty), mask=inside)
                gradient *= strong_weight
                if ANCHORED:
                    gradient += strong_anchor * (tl.exp(strong - strong_lse) - hit)
                gradient *= _slope(strong, strong_scale, strong_cap, STRONG_CAPPED)
            tl.store(strong_ptr + place, gradient.to(strong_ptr.dtype.element_ty), mask=inside)


def mix_rows(
    strong_RV: Tensor, weak_RV: Tensor | None, target_R: Tensor, mixing: Mixing, *, statistics: bool, gradients: int
) -> Tensor:
    """Do the same as `losses.mix_rows.mix_rows`, in one kernel."""
    rows, vocabulary = strong_RV.shape
    result_R9 = torch.full((rows, COLUMNS), float("nan"), dtype=torch.float32, device=strong_RV.device)
    block = min(BLOCK, max(16, triton.next_power_of_2(vocabulary)))
    other = strong_RV if weak_RV is None else weak_RV
    tensors = strong_RV, other, target_R, result_R9, strong_RV.stride(0), other.stride(0), vocabulary
    with torch.cuda.device_of(strong_RV):  # Triton launches on the current device
        _rows[(rows,)](
            *tensors,
            *mixing,
            STRONG=mixing.strong_weight > 0,
            WEAK=weak_RV is not None,
            STRONG_CAPPED=mixing.strong_cap > 0,
            WEAK_CAPPED=mixing.weak_cap > 0,
            STATISTICS=statistics or mixing.strong_anchor > 0,
            ANCHORED=mixing.strong_anchor > 0,
            GRADIENTS=gradients,
            COLUMNS=COLUMNS,
            BLOCK=block,
            num_warps=WARPS if block == BLOCK else 4,  # pyright: ignore
        )
    return result_R9
