"""Turns rows of logits into loss, statistics and gradient in plain torch, as `losses/triton/mixed_ce.py` in one kernel.

R = rows of a tile, V = vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

NO_GRADIENT, SHARED, SEPARATE = 0, 1, 2


class Mixing(NamedTuple):
    """How the logits of two models are scaled, capped (0: no cap) and mixed, in the order of the kernel's arguments."""

    strong_weight: float = 1.0
    strong_anchor: float = 0.0
    strong_scale: float = 1.0
    strong_cap: float = 0.0
    weak_scale: float = 1.0
    weak_cap: float = 0.0


def mix_rows(
    strong_RV: Tensor, weak_RV: Tensor | None, target_R: Tensor, mixing: Mixing, *, statistics: bool, gradients: int
) -> Tensor:
    """Compute each row's loss and statistics, in the order of `MixStatistics`; NaN if not requested.

    Args:
        strong_RV: Raw logits, overwritten by a gradient: P_mix - onehot(y) if `gradients` is SHARED; the gradient of
            the whole loss with respect to the raw strong logits if it is SEPARATE.
        weak_RV: Raw logits; overwritten by their gradient if `gradients` is SEPARATE. None: the mixture is the strong
            model alone.
    """
    strong_weight, strong_anchor, strong_scale, strong_cap, weak_scale, weak_cap = mixing
    place_R1 = target_R[:, None]
    strong = capped(strong_RV, strong_scale, strong_cap)
    weak = None if weak_RV is None else capped(weak_RV, weak_scale, weak_cap)
    result_R9 = torch.full((len(target_R), 9), torch.nan, dtype=strong.dtype, device=strong.device)
    strong_lse_R = None
    if weak is not None and (statistics or strong_anchor):
        strong_lse_R = strong.logsumexp(-1)
        result_R9[:, 1] = strong_lse_R - strong.gather(1, place_R1)[:, 0]
        if statistics:
            weak_lse_R = weak.logsumexp(-1)
            result_R9[:, 2] = weak_lse_R - weak.gather(1, place_R1)[:, 0]
            # weak margin <= strong margin for every k  <=>  weak - strong is smallest at the target
            difference = weak - strong
            at_target_R1 = difference.gather(1, place_R1)
            # a token that both models forbid gives NaN, and a comparison with NaN is False
            result_R9[:, 5] = ~((difference < at_target_R1).any(-1) | at_target_R1[:, 0].isnan())
            del difference
            result_R9[:, 7] = strong_lse_R - _mean(strong, strong_lse_R)
            result_R9[:, 8] = weak_lse_R - _mean(weak, weak_lse_R)
    if weak is None:
        mixed = strong
    elif strong_weight == 0:  # with an anchor; 0 * -inf would be NaN
        mixed = weak.clone()
    else:  # overwrites the strong logits if they are not read again
        mixed = strong.mul_(strong_weight) if gradients == SHARED else strong * strong_weight
        # not torch.lerp, which subtracts: -inf logits would give NaN
        mixed.add_(weak, alpha=1 - strong_weight)
    mixed_lse_R = mixed.logsumexp(-1)
    result_R9[:, 0] = mixed_lse_R - mixed.gather(1, place_R1)[:, 0]
    if weak is None:
        strong_lse_R = mixed_lse_R
        result_R9[:, 1] = result_R9[:, 0]
    if statistics:
        result_R9[:, 3:5] = (-result_R9[:, :2]).exp()
        result_R9[:, 6] = mixed_lse_R - _mean(mixed, mixed_lse_R)
    if statistics and weak is None:
        result_R9[:, 7] = result_R9[:, 6]
    if gradients == NO_GRADIENT:
        return result_R9
    hit = torch.full_like(place_R1, -1, dtype=mixed.dtype)
    residual = mixed.clone() if mixed is strong and gradients == SEPARATE else mixed  # over what is not read again
    residual.sub_(mixed_lse_R[:, None]).exp_().scatter_add_(1, place_R1, hit)
    if gradients == SHARED:
        if residual is not strong_RV:  # it is a wider copy
            strong_RV.copy_(residual)
        return result_R9
    if weak is not None and weak_RV is not None:
        weak_RV.copy_(by_raw(residual, weak, (1 - strong_weight) * weak_scale, weak_cap))
    residual.mul_(strong_weight)
    if strong_anchor and strong_lse_R is not None:
        alone = (strong - strong_lse_R[:, None]).exp_().scatter_add_(1, place_R1, hit)
        residual.add_(alone, alpha=strong_anchor)
    strong_RV.copy_(by_raw(residual, strong, strong_scale, strong_cap))
    return result_R9


def _mean(z_RV: Tensor, lse_R: Tensor) -> Tensor:
    """Compute the expected logit under the softmax; entropy is log-sum-exp minus this."""
    p_RV = (z_RV - lse_R[:, None]).exp_()
    total_R = p_RV.sum(-1)  # not quite 1, as log-sum-exp is rounded; large logits would magnify the difference
    return p_RV.mul_(z_RV).nansum(-1) / total_R  # 0 log 0 is 0; the total keeps any other NaN


def capped(raw_RV: Tensor, scale: float, cap: float) -> Tensor:
    z_RV = raw_RV.to(torch.promote_types(raw_RV.dtype, torch.float32))
    z_RV = z_RV if scale == 1 else z_RV * scale
    return (z_RV / cap).tanh_().mul_(cap) if cap else z_RV


def by_raw(gradient_RV: Tensor, z_RV: Tensor, factor: float, cap: float) -> Tensor:
    """Turn the gradient by capped logits into that by raw logits, times a factor; overwrite the capped logits."""
    return z_RV.div_(cap).square_().neg_().add_(1).mul_(gradient_RV).mul_(factor) if cap else gradient_RV * factor
