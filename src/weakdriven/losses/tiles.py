"""Decides how many rows of logits are held at a time, and whether plain torch or Triton processes them.

V = vocabulary, D = width, T = tokens.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from weakdriven.errors import UserError
from weakdriven.losses.mix_rows import SEPARATE, mix_rows
from weakdriven.losses.tile_bytes import CPU_TILE_BYTES, TILE_BYTES

HAS_TRITON = importlib.util.find_spec("triton") is not None
Implementation = Literal["auto", "reference", "chunked", "triton"]


def use_triton(implementation: Implementation, hidden_TD: Tensor | None) -> bool:
    """Return whether Triton computes the rows; raise an error if the implementation cannot run on this tensor."""
    if implementation not in get_args(Implementation):
        raise UserError(f"implementation is {implementation!r}; expected one of {', '.join(get_args(Implementation))}.")
    on_cuda = hidden_TD is not None and hidden_TD.is_cuda
    if implementation == "triton" and not (HAS_TRITON and (on_cuda or os.environ.get("TRITON_INTERPRET") == "1")):
        raise UserError(
            "implementation='triton' needs tensors on a CUDA device and the package triton; use 'auto' or 'chunked'."
        )
    narrow = hidden_TD is not None and hidden_TD.dtype != torch.float64  # the kernel computes in float32
    return implementation == "triton" or (implementation == "auto" and on_cuda and narrow and HAS_TRITON)


def row_function(triton: bool) -> Callable[..., Tensor]:
    """Return `mix_rows` of `losses/mix_rows.py`, or the Triton kernel with the same contract."""
    if not triton:
        return mix_rows
    from weakdriven.losses.triton.mixed_ce import mix_rows as triton_rows

    return triton_rows


def tile_rows(like: Tensor, vocabulary: int, *, triton: bool, pair: bool, gradients: int) -> tuple[int, int]:
    """Return how many rows of strong and of weak logits to hold at a time: as many as the memory for logits allows.

    Each chunk reads and writes the whole float32 sum of both heads' gradients, so long chunks are faster. Weak logits
    are not needed once they are mixed, so their tiles may be short if the gradient is shared.
    """
    if not triton:  # torch copies in float32
        wide = torch.promote_types(like.dtype, torch.float32)
        copies = 3 if wide == like.dtype and gradients != SEPARATE else 4
        budget = TILE_BYTES if like.is_cuda else CPU_TILE_BYTES
        rows = max(budget // (vocabulary * (2 * like.element_size() + copies * wide.itemsize)), 1)
        return rows, rows
    rows = max(TILE_BYTES // (vocabulary * like.element_size()), 2)
    if not pair:
        return rows, rows
    if gradients == SEPARATE:
        return rows // 2, rows // 2
    tile = rows // 5 // 128 * 128 or max(rows // 5, 1)
    return (rows - tile) // 128 * 128 or rows - tile, tile
