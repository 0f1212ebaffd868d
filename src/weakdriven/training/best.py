"""Finds the best model of a phase by validation loss among those saved, and makes it the result."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weakdriven.runs.directory import METRICS
from weakdriven.runs.files import link
from weakdriven.runs.processes import is_main

BEST = "best"
"""Folder in a stage's work folder; it holds a model for each step whose validation loss was the lowest so far."""


def evaluations_since_best(losses: Sequence[float]) -> int:
    """Count the evaluations after the first one with the lowest loss.

    >>> evaluations_since_best([3.0, 2.0, 2.0, 2.5]), evaluations_since_best([3.0, 2.0])
    (2, 0)
    """
    return len(losses) - 1 - losses.index(min(losses))


def saved_models(folder: Path) -> dict[int, Path]:
    """Find the models that `BestCallback` saved, by step."""
    return {int(path.name): path for path in folder.glob("*") if path.name.isdecimal()}


def publish_best(work: Path, out: Path) -> dict[str, Any]:
    """Link the best model into the result of a stage, and return its step; `work` keeps it in case of a kill."""
    step, folder = max(saved_models(work / BEST).items())
    if is_main():
        shutil.copytree(folder, out, copy_function=link, dirs_exist_ok=True)
        shutil.copy(work / METRICS, out / METRICS)
    return {"best_step": step}
