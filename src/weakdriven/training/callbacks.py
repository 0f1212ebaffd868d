"""The callback of every training phase: metrics, progress, verified checkpoints, and a stop on NaN or a signal.

Two more callbacks save models during training: snapshots after given steps, and the best model by validation loss.
"""

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from weakdriven.config.recipe import Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.errors import UserError
from weakdriven.models.adapters import has_adapter
from weakdriven.runs.directory import METRICS, SNAPSHOTS, VALIDATION_LOSS, Progress
from weakdriven.runs.files import append_jsonl, salvage_jsonl
from weakdriven.runs.processes import gathered, is_main, size
from weakdriven.runs.signals import saves_when_stopped, stop_requested
from weakdriven.training.best import BEST, evaluations_since_best, saved_models
from weakdriven.training.checkpoints import checkpoints, seal, step_of
from weakdriven.training.snapshots import Keep, keep_in

REMEDY = (
    "Lower learning_rate, or try float32 and eager attention: precision=fp32 and attention=eager in a recipe; in a "
    "script bf16=False, and models loaded with dtype=torch.float32 and attn_implementation='eager'."
)


class PhaseCallback(TrainerCallback):
    """Follows a phase and writes its metrics.jsonl into a folder; `fit` reads the phase's settings from it."""

    def __init__(self, folder: Path, progress: Progress, stage: str, settings: TrainSettings, recipe: Recipe):
        self.metrics, self.progress = folder / METRICS, progress
        self.stage, self.settings, self.recipe = stage, settings, recipe
        self.trainer: Any = None
        """Set by `fit`. If its model is a pair, events get only the strong model."""
        self.force = False
        """Train even if too little disk space is predicted."""
        self.stopped: str | None = None
        """Name of the signal after which training ended early."""
        self._sealing: Future[None] | None = None

    @contextmanager
    def sealing(self) -> Iterator[None]:
        """Let checkpoints be sealed in the background; wait for the last one at the end of the block."""
        try:
            with saves_when_stopped(self.settings.save_steps > 0):
                yield
        except BaseException:  # training will resume from it; a second Ctrl-C ends the wait
            wait([self._sealing] if self._sealing else [])
            raise
        self.wait_for_seal()

    def wait_for_seal(self) -> None:
        """Wait until the previous checkpoint is sealed, and raise its error if there was one."""
        pending, self._sealing = self._sealing, None
        if pending:
            pending.result()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        rows = [row for row in salvage_jsonl(self.metrics) if row.get("step", math.inf) <= state.global_step]
        self.metrics.unlink(missing_ok=True)
        append_jsonl(self.metrics, rows)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs and (validation := validation_loss(logs)) is not None:
            self.show_evaluation(state, validation)
        if not logs or "loss" not in logs:
            return
        if self.recipe.precision == "fp16-mixed" and not math.isfinite(logs.get("grad_norm", 0.0)):
            logs.pop("grad_norm")  # the gradient scaler skips such steps while it searches for its scale
        if state.is_world_process_zero:
            append_jsonl(self.metrics, [{"step": state.global_step, **logs}])
        if not math.isfinite(logs["loss"]) or not math.isfinite(logs.get("grad_norm", 0.0)):
            raise UserError(
                f"Training diverged: at step {state.global_step} the loss is {logs['loss']} and the gradient norm "
                f"{logs.get('grad_norm')}. {REMEDY}"
            )
        if not stop_requested():  # a signal would stop us here, before the checkpoint is written
            self.progress.update(state.global_step, state.max_steps, loss=logs["loss"], lr=logs["learning_rate"])

    def show_evaluation(self, state: Any, loss: float) -> None:
        if state.is_world_process_zero:
            append_jsonl(self.metrics, [{"step": state.global_step, VALIDATION_LOSS: loss}])
            self.progress.note(f"step {state.global_step} of {state.max_steps}: validation loss {loss:.4f}")
        if not math.isfinite(loss):
            raise UserError(f"Training diverged: at step {state.global_step} the validation loss is {loss}. {REMEDY}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        last = state.global_step >= state.max_steps  # then the stage is finished, not stopped
        if (name := signalled()) and not last:
            self.stopped = name
            control.should_save, control.should_training_stop = self.settings.save_steps > 0, True
        if last and args.eval_strategy != "no":
            control.should_evaluate = True
        if last and size() == 1 and not has_adapter(self.trainer.model):
            control.should_save = False  # the result is saved next, perhaps with a merged adapter
        if control.should_save or (self._sealing and self._sealing.done()):
            self.wait_for_seal()  # before the next checkpoint needs space, or to raise its error now

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        refuse_broken_weights(self.trainer.model, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        refuse_broken_weights(self.trainer.model, state.global_step)
        gathered([None])  # wait for all processes, as each may have written a part
        if state.is_world_process_zero:
            self.wait_for_seal()
            self._sealing = in_background(seal, Path(args.output_dir) / f"checkpoint-{state.global_step}")


def validation_loss(logs: dict[str, float]) -> float | None:
    """Read from an evaluation's logs the loss of the model that the phase produces; of a pair, the strong one."""
    return logs.get("eval_strong_loss") if "eval_mixed_loss" in logs else logs.get("eval_loss")


def in_background(work: Callable[[Path], None], folder: Path) -> Future[None]:
    """Work on a folder in a daemon thread."""
    done = Future[None]()

    def run() -> None:
        try:
            done.set_result(work(folder))
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return done


def signalled() -> str | None:
    """Return the signal that any process of this training has received, as all must stop at the same step."""
    return next((name for name in gathered([stop_requested()]) if name), None)


def refuse_broken_weights(model: Any, step: int) -> None:
    parts = (weight.to_local() if isinstance(weight, DTensor) else weight for weight in model.parameters())
    if not all(gathered([all(torch.isfinite(part).all() for part in parts)])):
        raise UserError(f"Training diverged: at step {step} a weight is not finite. {REMEDY}")


class SnapshotCallback(TrainerCallback):
    """Saves the model after given steps.

    A snapshot is written before the checkpoint of its step, so a resumed run has all earlier ones. Later ones are
    written again, because they must come from the resumed training.
    """

    def __init__(self, work: Path, steps: dict[int, str], keep: Keep):
        self.folder, self.steps, self.keep = work / SNAPSHOTS, steps, keep

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        name = self.steps.get(state.global_step)
        if name is None:
            return
        refuse_broken_weights(kwargs["model"], state.global_step)
        keep_in(self.folder / name, self.keep)


class BestCallback(TrainerCallback):
    """Saves the model after each evaluation with the lowest loss so far; stops training if the loss no longer falls.

    Its state is Trainer's log history, which checkpoints hold. A model is written before the checkpoint of its step and
    kept while training may resume from a checkpoint whose best model it is.
    """

    def __init__(self, work: Path, keep: Keep, patience: int | None):
        self.folder, self.keep, self.patience = work / BEST, keep, patience
        self.is_over = False
        """Whether it stopped training."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove models that were saved after the checkpoint from which training resumes."""
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
            # no checkpoint here: training that resumed from it would not stop
            self.is_over, control.should_training_stop, control.should_save = True, True, False

    def _tidy(self, resumable: Sequence[int]) -> None:
        """Remove models that are the best neither at the last evaluation nor at a checkpoint."""
        saved = saved_models(self.folder)
        wanted = {max(saved), *(max((step for step in saved if step <= at), default=0) for at in resumable)}
        for step in saved.keys() - wanted:
            shutil.rmtree(saved[step])
