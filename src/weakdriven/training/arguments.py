"""Turns the settings of a stage into an SFTConfig, and orders the rows of a phase."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weakdriven.config.recipe import Recipe
from weakdriven.config.settings import SupervisedSettings, TrainSettings
from weakdriven.runs.processes import PATIENCE, divide, refuse_uneven, size

if TYPE_CHECKING:
    from trl.trainer.sft_config import SFTConfig


def training_order(
    rows: int, *, epochs: int, batch_size: int, seed: int, phase: int = 0, epoch_rows: int | None = None
) -> np.ndarray:
    """Return row numbers in training order: each epoch is a fresh shuffle, cut to whole batches.

    An epoch has floor(rows / batch) steps, at least 1, and a resumed run skips the rows that it has seen. `phase` is 0
    for SFT and t for round t, so that no two phases of a run have the same order.

    Args:
        epoch_rows: Number of rows that sets the steps of an epoch (default: `rows`); rows are repeated as needed, in
            a fresh shuffle each time.

    >>> len(training_order(10, epochs=2, batch_size=4, seed=0))
    16
    >>> sorted(training_order(3, epochs=1, batch_size=2, seed=0, epoch_rows=7).tolist())
    [0, 0, 1, 1, 2, 2]
    """
    epoch = epoch_rows or rows
    keep = epoch // min(batch_size, epoch) * min(batch_size, epoch)
    cycles = math.ceil(epochs * keep / rows) if epoch_rows else epochs
    shuffles = [np.random.default_rng([seed, phase, cycle]).permutation(rows) for cycle in range(cycles)]
    if epoch_rows:
        return np.concatenate(shuffles)[: epochs * keep]
    return np.concatenate([shuffle[:keep] for shuffle in shuffles])


def alike_together(order: np.ndarray, length_N: np.ndarray, batch_size: int) -> np.ndarray:
    """Sort the rows of each step by length, longest first, so that micro-batches have little padding.

    Each step keeps its rows, and its loss is a mean over all of them, so only rounding changes.

    >>> alike_together(np.array([0, 1, 2, 3]), np.array([5, 9, 7, 8]), batch_size=2).tolist()
    [1, 0, 3, 2]
    """
    rows_SB = order.reshape(-1, batch_size)
    return np.take_along_axis(rows_SB, np.argsort(-length_N[rows_SB], axis=1, kind="stable"), axis=1).ravel()


def training_arguments(
    settings: TrainSettings,
    recipe: Recipe,
    *,
    rows: int,
    epochs: int,
    stage: str,
    folder: Path,
    packed: int | None = None,
    evaluates: bool = False,
) -> "SFTConfig":
    """Return the arguments of a training on ordered rows, `rows` in each of `epochs` epochs.

    Args:
        rows: If there are fewer than a batch, they form one batch.
        packed: Rows of a micro-batch, if they are packed into one sequence without padding.
        evaluates: Whether there are validation rows to evaluate on.
    """
    import torch
    from trl.trainer.sft_config import SFTConfig

    batch = min(settings.batch_size, rows)
    processes = size()
    refuse_uneven({f"{stage}: the rows of a step" if batch < settings.batch_size else "batch_size": batch}, processes)
    micro, accumulation = divide(batch, packed or settings.micro_batch_size, processes)
    steps = settings.steps(rows, epochs)
    every = settings.evaluates_every(steps) if evaluates and isinstance(settings, SupervisedSettings) else 0
    eight_bit = settings.optimizer == "adamw_8bit"
    return SFTConfig(
        output_dir=str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        padding_free=packed is not None,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=int(settings.warmup_ratio * steps),
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_betas[0],
        adam_beta2=settings.adam_betas[1],
        max_grad_norm=settings.max_grad_norm,
        optim={"adamw_8bit": "adamw_torch_8bit", "rmsprop": "rmsprop"}.get(settings.optimizer, "adamw_torch_fused"),
        optim_args="bf16_stochastic_round=True" if eight_bit and recipe.precision == "bf16" else None,
        gradient_checkpointing=bool(settings.gradient_checkpointing),
        activation_offloading=settings.activation_offloading,
        router_aux_loss_coef=0.0,  # trl 1.9 adds this term by default; the mixed loss lacks it, so no phase has it
        bf16=recipe.precision == "bf16-mixed",
        fp16=recipe.precision == "fp16-mixed",
        seed=recipe.seed,
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 1,
        save_total_limit=None,  # Trainer deletes before the new one is verified; see checkpoints.py
        eval_strategy="steps" if every else "no",
        eval_steps=every or None,
        per_device_eval_batch_size=settings.micro_batch_size,
        logging_steps=settings.logging_steps,
        logging_nan_inf_filter=False,
        report_to=list(recipe.report_to),
        run_name=f"{recipe.name}-{stage.replace('/', '-')}",
        ddp_timeout=int(PATIENCE.total_seconds()),
        ddp_find_unused_parameters=False,  # each step trains all weights; the search takes time
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
