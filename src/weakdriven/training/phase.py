"""A training phase of any method: prepares its trainer, and trains to the end from the last good checkpoint."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from datasets import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback

from weakdriven.config.recipe import Recipe, SftSettings
from weakdriven.config.settings import SupervisedSettings, TrainSettings
from weakdriven.data.tokenize import row_lengths
from weakdriven.errors import UserError, is_disk_full
from weakdriven.models.adapters import has_adapter
from weakdriven.runs.directory import Progress
from weakdriven.runs.disk import CHECKPOINTS, disk_need, held, too_little_room
from weakdriven.runs.processes import agree, on_main, size
from weakdriven.runs.signals import Stopped
from weakdriven.training import checkpoints
from weakdriven.training.arguments import alike_together, training_arguments, training_order
from weakdriven.training.attention import trained_attention
from weakdriven.training.callbacks import BestCallback, PhaseCallback, SnapshotCallback
from weakdriven.training.optimizer import optimizer_class, state_bytes
from weakdriven.training.packing import packed_order
from weakdriven.training.snapshots import Keep, snapshot_steps
from weakdriven.training.upstream import require_hooks


@dataclass(frozen=True)
class Phase:
    """Where and when a training phase runs."""

    stage: str
    number: int
    """0 for SFT and controls, t for round t."""
    epochs: int
    work: Path
    """Work folder; training resumes from what an interrupted attempt left here."""
    progress: Progress
    epoch_rows: int | None = None
    """Number of rows that sets the steps of an epoch (default: the rows of the training set)."""
    keep: Keep | None = None
    """Writes the model into a folder; needed if the settings ask for snapshots."""
    force: bool = False
    """Train even if too little disk space is predicted."""
    validation: Dataset | None = None
    """Rows on which the model is evaluated during training, if the settings ask for it."""
    watchers: Sequence[TrainerCallback] = ()
    """Callbacks of the stage."""

    def prepare(
        self,
        rows: Dataset,
        settings: TrainSettings,
        recipe: Recipe,
        columns: Sequence[str] = ("input_ids", "labels"),
        *,
        packing: bool = False,
    ) -> dict[str, Any]:
        """Return what every trainer needs: the rows in order, the arguments, our callbacks."""
        count, epochs = len(rows), self.epochs
        options = {"seed": recipe.seed, "phase": self.number, "epoch_rows": self.epoch_rows}
        order = training_order(count, epochs=epochs, batch_size=settings.batch_size, **options)  # pyright: ignore
        count = self.epoch_rows or count
        batch, length_N, packed = min(settings.batch_size, count), padded_lengths(rows), None
        if packing:
            capacity = settings.micro_batch_size * recipe.data.max_length
            order, packed = packed_order(order, length_N, batch, processes=size(), capacity=capacity)
        else:
            order = alike_together(order, length_N, batch)
        folder = self.work / "checkpoints"
        ours = PhaseCallback(self.work, self.progress, self.stage, settings, recipe)
        ours.force = self.force
        callbacks: list[TrainerCallback] = [ours, *self.watchers]
        if settings.snapshots and self.keep:
            kept = snapshot_steps(settings.snapshots, settings.steps(count, epochs), self.stage)
            callbacks.append(SnapshotCallback(self.work, kept, self.keep))
        if self.validation and isinstance(settings, SftSettings) and settings.keep == "best" and self.keep:
            callbacks.append(BestCallback(self.work, self.keep, settings.patience))
        # by default, TensorBoard's logs are among the checkpoints, which are deleted with the finished stage
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(self.work.parents[2] / "trackers" / self.stage)
        where: dict[str, Any] = {"stage": self.stage, "folder": folder}
        validation = self._validation_rows(settings)
        where["evaluates"] = validation is not None
        return {
            "args": training_arguments(settings, recipe, rows=count, epochs=epochs, packed=packed, **where),
            "train_dataset": rows.select_columns(list(columns)).select(order),
            "callbacks": callbacks,
            "optimizer_cls_and_kwargs": optimizer_class(settings),
            **({} if validation is None else {"eval_dataset": validation}),
        }

    def _validation_rows(self, settings: TrainSettings) -> Dataset | None:
        """Return the validation rows if the settings ask for evaluations; longest first, so that padding is small."""
        if self.validation is None or not isinstance(settings, SupervisedSettings) or settings.eval_steps is None:
            return None
        order = np.argsort(-row_lengths(self.validation), kind="stable")
        return self.validation.select_columns(["input_ids", "labels"]).select(order)


def fit(trainer: Trainer, rows: Dataset | None = None) -> dict[str, Any]:
    """Train to the end, from the last intact checkpoint if there is one; return counters (of `rows` if given)."""
    require_hooks(type(trainer))
    trainer.remove_callback(PrinterCallback)  # logs go to metrics.jsonl and the progress bar
    folder = Path(str(trainer.args.output_dir))
    phase = next(one for one in trainer.callback_handler.callbacks if isinstance(one, PhaseCallback))
    checkpoint = agree(on_main(lambda: checkpoints.usable_checkpoint(folder, phase.progress)))
    check_disk(trainer, phase)
    phase.trainer = trainer
    if checkpoint and hasattr(trainer, "_total_train_tokens"):
        trainer._total_train_tokens = checkpoints.tokens_so_far(checkpoint)  # pyright: ignore  # TRL starts again at 0
    try:
        with phase.sealing(), trained_attention(trainer.model):  # pyright: ignore
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except Exception as error:
        if not is_disk_full(error):
            raise
        good = checkpoints.usable_checkpoint(folder, phase.progress)  # removes the incomplete one
        start = f"step {checkpoints.step_of(good)}" if good else "its start"
        raise UserError(
            f"The disk is full: {phase.stage}, at step {trainer.state.global_step}, could not save a checkpoint. Free "
            f"some space and run the same command again; it resumes from {start}."
        ) from error
    best = next((one for one in trainer.callback_handler.callbacks if isinstance(one, BestCallback)), None)
    if phase.stopped and not (best and best.is_over):
        raise Stopped(phase.stopped, trainer.state.global_step if phase.settings.save_steps else None)
    if rows is None:
        ordered, state = cast(Dataset, trainer.train_dataset), trainer.state
        rows = ordered.select(range(len(ordered) * state.global_step // state.max_steps))
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)  # pyright: ignore
    counters = {"steps": trainer.state.global_step, "rows": len(rows), "parameters": trained}
    return counters | {"trained_tokens": trained_tokens(rows)}


def check_disk(trainer: Trainer, phase: PhaseCallback) -> None:
    """Raise an error if the phase will write more than its disk has room for; with `force`, only report it."""
    settings, recipe, folder = phase.settings, phase.recipe, Path(str(trainer.args.output_dir))
    folder.mkdir(parents=True, exist_ok=True)
    model: Any = trainer.model
    adapter = has_adapter(model)
    saved = [weight for weight in model.parameters() if weight.requires_grad or not adapter]
    weights = sum(weight.numel() * weight.element_size() for weight in saved)
    trained = [weight for weight in saved if weight.requires_grad]
    optimizer = math.ceil(sum(one.numel() * state_bytes(settings.optimizer, one.element_size()) for one in trained))
    steps = settings.steps(len(cast(Dataset, trainer.train_dataset)), epochs=1)  # it holds the rows of all epochs
    saves = settings.saves(steps)
    models = 1 + len(settings.snapshots) + getattr(settings, "save_weak", False)
    if any(isinstance(one, BestCallback) for one in trainer.callback_handler.callbacks):
        models += 1 + min(saves, CHECKPOINTS)  # the next, and the best at each checkpoint
    kept = weights // (2 if hasattr(model, "weak") else 1)  # of a pair, the strong model is kept
    kept = kept // 2 if recipe.precision.endswith("-mixed") and not adapter else kept
    need = disk_need(weights=weights, optimizer=optimizer, model=kept, models=models, saves=saves)
    need -= held(folder.parent)
    sentence = too_little_room(folder, need, stage=phase.stage, checkpoint=weights + optimizer, saves=saves)
    if sentence and not phase.force:
        raise UserError(f"{sentence} To try it nevertheless, use weakdriven run --force.")
    if sentence:
        phase.progress.note(f"{sentence} Trying nevertheless (--force).")


def padded_lengths(rows: Dataset) -> np.ndarray:
    """Return the length of each row; for preference pairs, of the longer side."""
    if "input_ids" in rows.column_names:
        return row_lengths(rows)
    prompt_N, chosen_N, rejected_N = (row_lengths(rows, name) for name in ("prompt_ids", "chosen_ids", "rejected_ids"))
    return prompt_N + np.maximum(chosen_N, rejected_N)


def trained_tokens(rows: Dataset) -> int:
    """Count the tokens read in training; a preference pair's prompt counts twice, once for each completion."""
    times = {"input_ids": 1, "prompt_ids": 2, "chosen_ids": 1, "rejected_ids": 1}
    return sum(times[name] * int(row_lengths(rows, name).sum()) for name in rows.column_names if name in times)
