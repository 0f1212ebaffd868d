"""What the WMSS paper calls UNDIAL: cross-entropy of logits with noise of size sigma / sqrt(length).

The noise depends only on a seed, a token's key and a place, not on tiles or batches. Therefore it is a hash of 32-bit
words (in int64, where no product overflows) and not the stream of a generator.

T = tokens, R = rows of a tile, D = width, V = vocabulary, or places in a row.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from weakdriven.losses.head import Head, as_head
from weakdriven.losses.mix_rows import capped
from weakdriven.losses.tiled_loss import log_softmax_, overwrite, tiled_loss

NOISE_ROWS = 16
"""Rows whose noise is computed at once, which takes four times the memory of their float32 logits."""
WORD = 2**32 - 1


def noised_cross_entropy(
    hidden_TD: Tensor,
    head_VD: Tensor | Head,
    target_T: Tensor,
    length_T: Tensor,
    *,
    sigma: float = 1.0,
    site: Literal["target_logit", "logits"] = "target_logit",
    sign: Literal["signed", "abs"] = "signed",
    seed: int = 0,
    key_T: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the cross-entropy of z - (sigma * e / sqrt(L)) * onehot(y), e ~ N(0, 1): the paper's "UNDIAL".

    The gradient can be taken only once. `UndialSettings` explains sigma, site and sign.

    Args:
        target_T: Supervised targets only, no -100.
        length_T: Length of each token's sequence, without padding.
        seed: Must differ between steps, unless the keys do.
        key_T: An integer for each token, unique for this seed (default: 0 to T - 1).
        scale: Factor of the summed loss, such as 1 / tokens of the step (default: 1 / T).

    >>> logits, first = torch.tensor([[4.0, 1, 0, -1]]), torch.tensor([0])
    >>> round(noised_cross_entropy(logits, torch.eye(4), first, torch.tensor([4]), sigma=0)[0].item(), 5)
    0.07217
    """
    head = as_head(head_VD)
    keys_T = torch.arange(len(target_T), device=target_T.device) if key_T is None else key_T
    deviation_T = sigma / length_T.float().sqrt()

    def noise(begin: int, end: int, places: int) -> Tensor:
        normal_RP = standard_normal(seed, keys_T[begin:end], places)
        return (normal_RP.abs_() if sign == "abs" else normal_RP).mul_(-deviation_T[begin:end, None])

    def rows(raw_RV: Tensor, begin: int, end: int, gradient: bool) -> Tensor:
        place_R1 = target_T[begin:end, None]
        z_RV = capped(raw_RV, head.scale, head.cap or 0.0)
        clean_R = z_RV.logsumexp(-1) - z_RV.gather(1, place_R1)[:, 0]
        if site == "logits":
            for first in range(begin, end, NOISE_ROWS):
                last = min(first + NOISE_ROWS, end)
                z_RV[first - begin : last - begin] += noise(first, last, z_RV.shape[1])
        else:
            z_RV.scatter_add_(1, place_R1, noise(begin, end, 1).to(z_RV.dtype))
        log_p_RV = log_softmax_(z_RV)
        results = -log_p_RV.gather(1, place_R1)[:, 0], clean_R
        if gradient:
            by_z_RV = log_p_RV.exp_()
            by_z_RV.scatter_add_(1, place_R1, torch.full_like(place_R1, -1, dtype=by_z_RV.dtype))
            overwrite(raw_RV, by_z_RV, head)
        return torch.stack(results, 1)

    loss, sums_2 = tiled_loss(hidden_TD, head, rows, columns=2, scale=scale)
    return loss, {"noised_loss": sums_2[0], "clean_loss": sums_2[1]}


def standard_normal(seed: int, key_R: Tensor, places: int) -> Tensor:
    """Return an N(0, 1) value for each key and place, in float32: one of 2**23, with magnitude up to 5.3.

    >>> keys = torch.tensor([7, 8, 7])
    >>> one, other, again = standard_normal(0, keys, 3)
    >>> one.equal(again), one.equal(other), one.equal(standard_normal(1, keys, 3)[0])
    (True, False, False)
    """
    words = key_R & WORD, key_R >> 32 & WORD, seed & WORD, seed >> 32 & WORD
    first_R1, second_R1 = (_hash(start, *words)[:, None] for start in (0x243F6A88, 0x85A308D3))  # digits of pi
    place_V = torch.arange(places, device=key_R.device)
    # hash once before adding the second word, else the rows would be windows into one long sequence
    bits_RV = _mixed((_mixed(place_V ^ first_R1) + second_R1) & WORD)
    odd_RV = bits_RV.bitwise_right_shift_(9).mul_(2).add_(1)
    uniform_RV = odd_RV.float().mul_(2**-23).sub_(1)  # exact in float32, and never -1 or 1
    return uniform_RV.erfinv_().mul_(math.sqrt(2))


def _hash(start: int, key_R: Tensor, *words: Tensor | int) -> Tensor:
    hash_R = _mixed(key_R ^ start)
    for word in words:
        hash_R = _mixed(hash_R ^ word)
    return hash_R


def _mixed(word: Tensor) -> Tensor:
    """Mix the bits of a 32-bit word, bijectively; the constants are from hash-prospector (public domain)."""
    word = (word >> 16).bitwise_xor_(word).mul_(0x21F0AAAD).bitwise_and_(WORD)
    word = (word >> 15).bitwise_xor_(word).mul_(0x735A2D97).bitwise_and_(WORD)
    return (word >> 15).bitwise_xor_(word)
