"""The parts of a plan: what a stage is, what is known of the rows, and what the stage takes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from weakdriven.planning.memory import Memory
from weakdriven.runs.processes import divide
from weakdriven.stages.workload import Workload

ANSWER_SHARE, ANSWER_LOW, ANSWER_HIGH = 0.25, 0.1, 1.0
"""Assumed mean length of a completion, as a share of what it may have, and the range that is reported."""


@dataclass(frozen=True)
class Cost:
    """What one stage takes."""

    workload: Workload
    parameters: int = 0
    trained: int = 0
    memory: Memory | None = None
    micro_batch: int = 0
    steps: int = 0
    tokens: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    kept: float = 0.0
    """Bytes on the disk once it is done."""
    work: float = 0.0
    """Bytes more while it runs: checkpoints."""

    def to_json(self) -> dict[str, Any]:
        memory = {name: round(size) for name, size in self.memory.parts().items()} if self.memory else None
        return {
            "stage": self.workload.name,
            "kind": self.workload.kind,
            "parameters": self.parameters,
            "trained": self.trained,
            "memory_bytes": memory,
            "peak_bytes": round(self.memory.total) if self.memory else None,
            "peak_moment": self.memory.moment if self.memory else None,
            "micro_batch_size": self.micro_batch,
            "steps": self.steps,
            "tokens": round(self.tokens),
            "flops": self.flops,
            "hours": [self.low / 3600, self.seconds / 3600, self.high / 3600],
            "disk_bytes": round(self.kept),
            "work_bytes": round(self.work),
        }


@dataclass(frozen=True)
class Change:
    """A setting that would make a stage smaller."""

    override: str
    saves: float
    """Bytes of the peak."""
    time: float
    """How long the stage would take, against now."""
    fits: bool
    result: str = ""
    """What else changes: results, or nothing."""


@dataclass(frozen=True)
class Advice:
    """For a stage that does not fit."""

    stage: str
    needs: float
    has: float
    changes: list[Change]
    together: list[str]
    """The first of them that fit when taken together; empty if none do."""
    micro_batch: int
    """Largest micro_batch_size that fits with nothing else changed; 0: none."""


def disk_bytes(costs: Iterable[Cost]) -> tuple[float, float]:
    """Bytes that stay on the disk once all stages have run, and the most there are at a time."""
    kept, most = 0.0, 0.0
    for cost in costs:
        most = max(most, kept + cost.kept + cost.work)
        kept += cost.kept
    return kept, most


def active_rows(rows: int, multiplier: float, dedup: bool) -> int:
    """Rows of an active set; with `dedup` at most this many, which is what uniform probabilities give.

    >>> active_rows(1000, 1.0, dedup=True), active_rows(1000, 1.0, dedup=False)
    (632, 1000)
    """
    draws = multiplier * rows
    if not dedup:
        return max(round(draws), 1)
    return max(round(rows * -math.expm1(-draws / rows)), 1)


def micro_batch(rows: int, batch: int, micro: int, devices: int = 1) -> tuple[int, int]:
    """Rows of a micro-batch on one device as it is really taken, and how many of them make a step.

    >>> micro_batch(1000, 512, 6), micro_batch(1000, 512, 16, devices=8)
    ((2, 256), (16, 4))
    """
    return divide(max(min(batch, rows), devices), micro, devices)
