"""One model, one label stream: supervised fine-tuning through TRL."""

import shutil
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback
from trl.trainer.sft_trainer import SFTTrainer

from weakdriven.recipe import Recipe, TrainSettings
from weakdriven.rundir import METRICS, Progress
from weakdriven.training.arguments import training_arguments, training_order
from weakdriven.training.callbacks import PhaseCallback, last_complete_checkpoint


def ordered(dataset: Dataset, settings: TrainSettings, *, epochs: int, seed: int) -> Dataset:
    order = training_order(len(dataset), epochs=epochs, batch_size=settings.batch_size, seed=seed)
    return dataset.select_columns(["input_ids", "labels"]).select(order)


def train_supervised(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    settings: TrainSettings,
    recipe: Recipe,
    *,
    epochs: int,
    work: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Train in place; returns counters. What is in `work` from a killed try is used."""
    rows = ordered(dataset, settings, epochs=epochs, seed=recipe.seed)
    trainer = SFTTrainer(
        model=model,
        args=training_arguments(settings, recipe, rows=len(rows), folder=work / "checkpoints"),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[PhaseCallback(work, progress)],
    )
    return fit(trainer, rows)


def fit(trainer: SFTTrainer, rows: Dataset) -> dict[str, Any]:
    """Train to the end from the last complete checkpoint, if there is one."""
    trainer.remove_callback(PrinterCallback)  # it prints every log line; ours go to metrics.jsonl and the bar
    folder = Path(str(trainer.args.output_dir))
    checkpoint = last_complete_checkpoint(folder)
    for leftover in folder.glob("checkpoint-*"):
        if checkpoint is None or int(leftover.name.split("-")[1]) > int(checkpoint.name.split("-")[1]):
            shutil.rmtree(leftover)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return {"steps": trainer.state.global_step, "rows": len(rows), "parameters": trainable(trainer.model)}


def trainable(model: Any) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    *,
    work: Path,
    precision: str,
    stop_ids: list[int],
) -> None:
    """The ordinary Hugging Face layout: weights, tokenizer with chat template, generation config; and the metrics."""
    if precision == "bf16-mixed":
        model.to(torch.bfloat16)  # pyright: ignore
    generation = model.generation_config
    assert generation is not None
    generation.eos_token_id, generation.pad_token_id = stop_ids, tokenizer.pad_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    shutil.copy(work / METRICS, out / METRICS)
