"""Snapshots of a phase: complete models saved after given shares of its steps."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from weakdriven.errors import UserError
from weakdriven.runs.directory import SNAPSHOTS
from weakdriven.runs.files import PART, link, sync, sync_tree
from weakdriven.runs.processes import is_main

Keep = Callable[[Path], None]
"""Writes the model, as it is now, into a folder."""


def percent(share: float) -> int:
    """Name a snapshot by its share of the steps, in whole percents."""
    return round(100 * share)


def snapshot_steps(shares: Sequence[float], steps: int, stage: str) -> dict[int, str]:
    """Map optimizer steps to the names of their snapshots; two snapshots at one step raise an error.

    >>> snapshot_steps([0.25, 0.5], 10, "sft")
    {2: '25', 5: '50'}
    """
    found = dict[int, str]()
    for share in shares:
        step, name = max(round(share * steps), 1), str(percent(share))
        if step in found or step == steps:
            other = f"that at {int(found[step]) / 100}" if step in found else "the end"
            raise UserError(
                f"{stage}: the snapshot at {share} falls on step {step} of {steps}, as does {other}; "
                "leave one out, or train more steps."
            )
        found[step] = name
    return found


def keep_in(place: Path, keep: Keep) -> None:
    """Write the model into a folder, which appears only once it is complete and on disk."""
    part = place.with_name(place.name + PART)
    if is_main():
        for leftover in (part, place):
            shutil.rmtree(leftover, ignore_errors=True)
        part.mkdir(parents=True)
    keep(part)  # in all processes, since each may hold a shard of the weights
    if is_main():
        sync_tree(part)
        os.rename(part, place)
        sync(place.parent)


def snapshot_folders(work: Path, shares: Sequence[float]) -> dict[str, Path]:
    """Return the snapshot folders of a finished phase, by name."""
    return {str(percent(share)): work / SNAPSHOTS / str(percent(share)) for share in shares}


def publish_snapshots(work: Path, out: Path, shares: Sequence[float]) -> None:
    """Link snapshots next to the finished model; `work` keeps them in case of a kill."""
    for name, folder in snapshot_folders(work, shares).items() if is_main() else ():
        shutil.copytree(folder, out / SNAPSHOTS / name, copy_function=link)
