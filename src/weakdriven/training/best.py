"""The best model of a phase by its validation loss, and ending a phase that no longer gets better."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from weakdriven.runs.directory import METRICS
from weakdriven.runs.files import link
from weakdriven.runs.processes import is_main
from weakdriven.training.callbacks import refuse_broken_weights
from weakdriven.training.checkpoints import checkpoints, step_of
from weakdriven.training.snapshots import Keep, keep_in

BEST = "best"
"""Folder in a stage's work folder: a model for each step whose validation loss was the lowest so far."""


class BestCallback(TrainerCallback):
    """Saves the model after each evaluation with the lowest loss so far; ends training if none follows.

    All it knows is in Trainer's log history, which checkpoints hold. A model is on disk before the checkpoint of its
    step, and stays while training may resume from a checkpoint whose best model it is.
    """

    def __init__(self, work: Path, keep: Keep, patience: int | None):
        self.folder, self.keep, self.patience = work / BEST, keep, patience
        self.is_over = False
        """Whether training was ended."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What training did after the checkpoint from which it resumes never happened."""
        if is_main():
            for step, folder in saved_models(self.folder).items():
                if step > state.global_step:
                    shutil.rmtree(folder)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        since = evaluations_since_best([row["eval_loss"] for row in state.log_history if "eval_loss" in row])
        if since == 0:
            refuse_broken_weights(kwargs["model"], state.global_step)
            keep_in(self.folder / str(state.global_step), self.keep)
            if is_main():
                self._tidy([step_of(path) for path in checkpoints(Path(args.output_dir))])
        if self.patience is not None and since >= self.patience:
            # without a checkpoint here, because training that resumed from it would not end
            self.is_over, control.should_training_stop, control.should_save = True, True, False

    def _tidy(self, resumable: Sequence[int]) -> None:
        """Remove models that are not the best at the last evaluation, or at a checkpoint."""
        saved = saved_models(self.folder)
        wanted = {max(saved), *(max((step for step in saved if step <= at), default=0) for at in resumable)}
        for step in saved.keys() - wanted:
            shutil.rmtree(saved[step])


def evaluations_since_best(losses: Sequence[float]) -> int:
    """Evaluations after the first one with the lowest loss.

    >>> evaluations_since_best([3.0, 2.0, 2.0, 2.5]), evaluations_since_best([3.0, 2.0])
    (2, 0)
    """
    return len(losses) - 1 - losses.index(min(losses))


def saved_models(folder: Path) -> dict[int, Path]:
    """The models that `BestCallback` saved, by step."""
    return {int(path.name): path for path in folder.glob("*") if path.name.isdecimal()}


def publish_best(work: Path, out: Path) -> dict[str, Any]:
    """Make the best model the result of a stage; `work` keeps its own, so that a kill before the end loses none.

    Returns its step.
    """
    step, folder = max(saved_models(work / BEST).items())
    if is_main():
        shutil.copytree(folder, out, copy_function=link, dirs_exist_ok=True)
        shutil.copy(work / METRICS, out / METRICS)
    return {"best_step": step}
