"""Rows that accelerate puts in twice, so that every process gets as many; in an evaluation each counts once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weakdriven.losses.mixed_ce import IGNORE

LENGTHS = "row_lengths"


class WithLengths:
    """A collator that adds the length of each row, by which rows joined into one are told apart."""

    def __init__(self, collate: Callable[[list[Any]], dict[str, Any]]):
        self.collate = collate.collate if isinstance(collate, WithLengths) else collate

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        lengths = [len(row.get("input_ids", ())) for row in rows]
        return {**self.collate(rows), LENGTHS: torch.tensor(lengths)}


def ignore_filler(labels: Tensor, lengths: Tensor, *, left: int, process: int) -> None:
    """Take the filler of an evaluation's last batches out of the labels, in place.

    Args:
        lengths: Of the rows of this process; in `labels` they lie apart, or one after another in a single row.
        left: Rows that the last batches of all processes hold together, without filler.
    """
    rows = len(lengths)
    own = min(max(left - rows * process, 0), rows)
    if len(labels) == rows:
        labels[own:] = IGNORE
    else:
        labels[:, int(lengths[:own].sum()) :] = IGNORE
