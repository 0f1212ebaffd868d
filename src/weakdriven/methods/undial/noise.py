"""Gaussian noise that depends on a seed, a token's key and a place, and on nothing else: not on chunks or batches.

R = rows of a tile, V = places in a row. A hash of 32-bit words (in int64, where no product overflows) stands in for a
generator, which would draw one stream whose order follows the chunks.
"""

import math

import torch
from torch import Tensor

WORD = 2**32 - 1


def standard_normal(seed: int, key_R: Tensor, places: int) -> Tensor:
    """One N(0, 1) value per key and place, in float32, of 2**23 different ones up to 5.3 in size.

    >>> keys = torch.tensor([7, 8, 7])
    >>> one, other, again = standard_normal(0, keys, 3)
    >>> one.equal(again), one.equal(other), one.equal(standard_normal(1, keys, 3)[0])
    (True, False, False)
    """
    words = key_R & WORD, key_R >> 32 & WORD, seed & WORD, seed >> 32 & WORD
    first_R1, second_R1 = (_hash(start, *words)[:, None] for start in (0x243F6A88, 0x85A308D3))  # digits of pi
    place_V = torch.arange(places, device=key_R.device)
    # the second word after a first hash, else the rows would be windows into one long sequence
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
    """A bijection of 32-bit words in which each bit depends on each; constants of hash-prospector (public domain)."""
    word = (word >> 16).bitwise_xor_(word).mul_(0x21F0AAAD).bitwise_and_(WORD)
    word = (word >> 15).bitwise_xor_(word).mul_(0x735A2D97).bitwise_and_(WORD)
    return (word >> 15).bitwise_xor_(word)
