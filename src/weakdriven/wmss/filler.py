"""Rows that accelerate repeats so that every process gets as many; an evaluation counts each row once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weakdriven.losses.mixed_ce import IGNORE

LENGTHS = "row_lengths"


class WithLengths:
    """A collator that adds the length of each row, to separate rows that are joined into one."""

    def __init__(self, collate: Callable[[list[Any]], dict[str, Any]]):
        self.collate = collate.collate if isinstance(collate, WithLengths) else collate

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        lengths = [len(row.get("input_ids", ())) for row in rows]
        return {**self.collate(rows), LENGTHS: torch.tensor(lengths)}


def ignore_filler(labels: Tensor, lengths: Tensor, *, left: int, process: int) -> None:
    """Mask the repeated rows of an evaluation's last batches in the labels, in place.

    Args:
        lengths: Of the rows of this process; in `labels` they are separate, or one after another in a single row.
        left: Rows in the last batches of all processes together, without repeats.
    """
    rows = len(lengths)
    own = min(max(left - rows * process, 0), rows)
    if len(labels) == rows:
        labels[own:] = IGNORE
    else:
        labels[:, int(lengths[:own].sum()) :] = IGNORE
