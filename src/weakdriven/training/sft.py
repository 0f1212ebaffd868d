"""One model, one label stream: supervised fine-tuning through TRL."""

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, Trainer, TrainerCallback

from weakdriven.config.recipe import Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.errors import UserError
from weakdriven.models.adapters import has_adapter
from weakdriven.models.head import causal_lm
from weakdriven.models.recompute import keep
from weakdriven.models.sharded import elements
from weakdriven.planning.memory import state_bytes
from weakdriven.runs.directory import METRICS, Progress
from weakdriven.runs.disk import disk_need, held, is_full, refuse_full_disk
from weakdriven.runs.processes import agree, led
from weakdriven.runs.signals import Stopped
from weakdriven.training.arguments import alike_together, training_arguments, training_order
from weakdriven.training.attention import trained_attention
from weakdriven.training.callbacks import PhaseCallback
from weakdriven.training.checkpoints import (
    last_complete_checkpoint,
    remove_unmarked,
    step_of,
    tokens_so_far,
    usable_checkpoint,
)
from weakdriven.training.optimizer import optimizer_class
from weakdriven.training.snapshots import Keep, SnapshotCallback, snapshot_steps
from weakdriven.training.variant import PLAIN, Variant
from weakdriven.wmss.entropy import row_lengths
from weakdriven.wmss.pair import WeakStrongPair


@dataclass(frozen=True)
class Phase:
    """Where and when a training phase runs."""

    stage: str
    number: int
    """0 for SFT and controls, t for round t."""
    epochs: int
    work: Path
    """What a killed try left here is used."""
    progress: Progress
    epoch_rows: int | None = None
    """Rows whose steps an epoch has, if not those of its own rows."""
    keep: Keep | None = None
    """Writes the model into a folder; needed where the settings ask for snapshots."""

    def prepare(
        self,
        dataset: Dataset,
        settings: TrainSettings,
        recipe: Recipe,
        columns: Sequence[str] = ("input_ids", "labels"),
    ) -> dict[str, Any]:
        """What every trainer takes: the rows in order, the arguments, our callback."""
        rows, epochs = len(dataset), self.epochs
        order = training_order(
            rows,
            epochs=epochs,
            batch_size=settings.batch_size,
            seed=recipe.seed,
            phase=self.number,
            epoch_rows=self.epoch_rows,
        )
        rows = self.epoch_rows or rows
        order = alike_together(order, padded_lengths(dataset), min(settings.batch_size, rows))
        folder = self.work / "checkpoints"
        callbacks: list[TrainerCallback] = [PhaseCallback(self.work, self.progress, self.stage, settings, recipe)]
        if settings.snapshots and self.keep:
            kept = snapshot_steps(settings.snapshots, settings.steps(rows, epochs), self.stage)
            callbacks.append(SnapshotCallback(self.work, kept, self.keep))
        # its default is a folder in the checkpoints, which go away with the finished stage
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(self.work.parents[2] / "trackers" / self.stage)
        return {
            "args": training_arguments(settings, recipe, rows=rows, epochs=epochs, stage=self.stage, folder=folder),
            "train_dataset": dataset.select_columns(list(columns)).select(order),
            "callbacks": callbacks,
            "optimizer_cls_and_kwargs": optimizer_class(settings),
        }


def train_supervised(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    settings: TrainSettings,
    recipe: Recipe,
    phase: Phase,
    variant: Variant = PLAIN,
    teacher: PreTrainedModel | None = None,
) -> dict[str, Any]:
    """Train in place; returns counters.

    Args:
        variant: What a method changes.
        teacher: A frozen model, for a variant that needs one.
    """
    if isinstance(settings.gradient_checkpointing, str):
        keep(causal_lm(model), settings.gradient_checkpointing)
    made = phase.prepare(dataset, settings, recipe)
    with variant.training(model, seed=[recipe.seed, phase.number]) as callbacks:
        made["callbacks"] = [*callbacks, *made["callbacks"]]  # ours writes down what they log
        return fit(variant.trainer(teacher=teacher, model=model, processing_class=tokenizer, **made))


def fit(trainer: Trainer, rows: Dataset | None = None) -> dict[str, Any]:
    """Train to the end from the last checkpoint that is whole, if there is one; returns counters.

    Args:
        rows: What is trained on, where the trainer holds it in another form.
    """
    trainer.remove_callback(PrinterCallback)  # it prints every log line; ours go to metrics.jsonl and the bar
    folder = Path(str(trainer.args.output_dir))
    phase = next((one for one in trainer.callback_handler.callbacks if isinstance(one, PhaseCallback)), None)
    checkpoint = agree(led(lambda: usable_checkpoint(folder, phase.progress if phase else Progress())))
    if phase:
        check_disk(trainer, phase)
    if checkpoint and hasattr(trainer, "_total_train_tokens"):
        trainer._total_train_tokens = tokens_so_far(checkpoint)  # pyright: ignore  # TRL begins anew at 0
    try:
        with trained_attention(trainer.model):  # pyright: ignore
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except Exception as error:
        if is_full(error):
            raise disk_is_full(trainer, phase, folder) from error
        raise
    if phase and phase.stopped:
        raise Stopped(phase.stopped, trainer.state.global_step)
    if rows is None:
        rows = cast(Dataset, trainer.train_dataset)
    trained = sum(elements(p) for p in trainer.model.parameters() if p.requires_grad)  # pyright: ignore
    facts = {"steps": trainer.state.global_step, "rows": len(rows), "parameters": trained}
    return facts | {"trained_tokens": trained_tokens(rows)}


def check_disk(trainer: Trainer, phase: PhaseCallback) -> None:
    """Compare what the phase will write with what its disk has left, less what an earlier try has written."""
    settings, recipe, folder = phase.settings, phase.recipe, Path(str(trainer.args.output_dir))
    if settings is None or recipe is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    model: Any = trainer.model
    adapter = has_adapter(model)
    saved = [weight for weight in model.parameters() if weight.requires_grad or not adapter]
    weights = sum(weight.numel() * weight.element_size() for weight in saved)
    trained = [weight for weight in saved if weight.requires_grad]
    states = (elements(weight) * state_bytes(settings.optimizer, weight.element_size()) for weight in trained)
    optimizer = math.ceil(sum(states))
    steps = settings.steps(len(cast(Dataset, trainer.train_dataset)), epochs=1)  # its rows are those of all epochs
    saves = math.ceil(steps / settings.save_steps)  # with one at the last step, or at a signal before it
    models = 1 + len(settings.snapshots) + getattr(settings, "save_weak", False)
    kept = weights // (2 if isinstance(model, WeakStrongPair) else 1)
    kept = kept // 2 if recipe.precision == "bf16-mixed" and not adapter else kept
    need = disk_need(weights=weights, optimizer=optimizer, model=kept, models=models, saves=saves)
    need -= held(folder.parent)
    refuse_full_disk(folder, need, stage=phase.stage, checkpoint=weights + optimizer, saves=saves)


def disk_is_full(trainer: Trainer, phase: PhaseCallback | None, folder: Path) -> UserError:
    """Removes the checkpoint that was not written to its end."""
    remove_unmarked(folder)
    good = last_complete_checkpoint(folder)
    kept = f"its checkpoint of step {step_of(good)} is kept and" if good else "it has no checkpoint yet, so"
    return UserError(
        f"The disk is full: {phase.stage if phase else 'training'} could not save at step "
        f"{trainer.state.global_step}; {kept} a new run goes on from {'there' if good else 'its start'}. Free some "
        "space and run the same command again."
    )


def padded_lengths(rows: Dataset) -> np.ndarray:
    """Tokens by which a row is long in a micro-batch; of a pair, those of its longer side."""
    if "input_ids" in rows.column_names:
        return row_lengths(rows)
    prompt_N, chosen_N, rejected_N = (row_lengths(rows, name) for name in ("prompt_ids", "chosen_ids", "rejected_ids"))
    return prompt_N + np.maximum(chosen_N, rejected_N)


def trained_tokens(rows: Dataset) -> int:
    """Tokens that were read in training; a pair's prompt counts twice, because each of its completions follows it."""
    times = {"input_ids": 1, "prompt_ids": 2, "chosen_ids": 1, "rejected_ids": 1}
    return sum(times[name] * int(row_lengths(rows, name).sum()) for name in rows.column_names if name in times)


def save_model(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    *,
    work: Path | None = None,
    precision: str,
    stop_ids: list[int],
) -> None:
    """The ordinary Hugging Face layout: weights, tokenizer with chat template, generation config; metrics of `work`.

    Of an adapted model the adapter, as it was trained, stands in for the weights. The model may go on training.
    """
    network: Any = causal_lm(model)
    generation, cached = network.generation_config, getattr(network.config, "use_cache", False)
    generation.eos_token_id, generation.pad_token_id = stop_ids, tokenizer.pad_token_id
    network.config.use_cache = True  # Trainer turns it off in the config it trains with
    if isinstance(model, PeftModel):
        # PEFT would ask the Hub whether the embedding is that of the base, which it is
        model.save_pretrained(str(out), save_embedding_layers=False)
        generation.save_pretrained(out)
    elif precision == "bf16-mixed":
        with in_bf16(network):
            network.save_pretrained(out)
    else:
        network.save_pretrained(out)
    network.config.use_cache = cached
    tokenizer.save_pretrained(out)
    if work:
        shutil.copy(work / METRICS, out / METRICS)


@contextmanager
def in_bf16(network: Any) -> Iterator[None]:
    """Within it the weights are bf16 copies in main memory; afterwards they are the very tensors that they were."""
    weights = [weight for weight in (*network.parameters(), *network.buffers()) if weight.is_floating_point()]
    masters, dtype = [weight.data for weight in weights], network.config.dtype
    for weight in weights:
        weight.data = weight.data.to("cpu", torch.bfloat16)
    try:
        yield
    finally:
        for weight, master in zip(weights, masters, strict=True):
            weight.data = master
        network.config.dtype = dtype
