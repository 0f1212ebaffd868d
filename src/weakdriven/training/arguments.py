"""Stage settings -> SFTConfig, and the order in which a phase sees its rows."""

import math
from pathlib import Path

import numpy as np
import torch
from trl.trainer.sft_config import SFTConfig

from weakdriven.recipe import Recipe, TrainSettings


def training_order(rows: int, *, epochs: int, batch_size: int, seed: int) -> np.ndarray:
    """Row numbers in training order: each epoch a fresh shuffle, cut to whole batches.

    Fixing the order here makes the number of steps exact (METHODS: floor(rows / batch) an epoch, at least 1) and lets
    a killed run go on by skipping what it has seen. Fewer rows than one batch make one batch of all epochs together.

    >>> len(training_order(10, epochs=2, batch_size=4, seed=0))
    16
    """
    order = [np.random.default_rng([seed, epoch]).permutation(rows) for epoch in range(epochs)]
    if rows < batch_size:
        return np.concatenate(order)[:batch_size]
    return np.concatenate([epoch[: rows // batch_size * batch_size] for epoch in order])


def training_arguments(settings: TrainSettings, recipe: Recipe, *, rows: int, folder: Path) -> SFTConfig:
    """Arguments for a phase that sees `rows` rows, already in order, once."""
    steps = max(rows // settings.batch_size, 1)
    return SFTConfig(
        output_dir=str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=settings.micro_batch_size,
        gradient_accumulation_steps=settings.batch_size // settings.micro_batch_size,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=math.ceil(settings.warmup_ratio * steps),
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_betas[0],
        adam_beta2=settings.adam_betas[1],
        max_grad_norm=settings.max_grad_norm,
        gradient_checkpointing=settings.gradient_checkpointing,
        bf16=recipe.precision == "bf16-mixed",
        seed=recipe.seed,
        save_strategy="steps",
        save_steps=settings.save_steps,
        save_total_limit=2,
        logging_steps=settings.logging_steps,
        logging_nan_inf_filter=False,
        report_to=list(recipe.report_to),
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
