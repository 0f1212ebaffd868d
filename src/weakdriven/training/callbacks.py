"""What every training phase does at its steps: write metrics, show progress, mark checkpoints, stop on NaN."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from weakdriven.errors import UserError
from weakdriven.models.sharded import local_part
from weakdriven.processes import all_agree, wait_for_all
from weakdriven.rundir import METRICS, Progress, append_jsonl, salvage_jsonl, sync_tree, write_text

REMEDY = "Lower learning_rate, or try precision=fp32 or attention=eager."
COMPLETE = "complete"
"""Written into a checkpoint once all of it is on disk: Trainer itself resumes from half-written ones."""


class PhaseCallback(TrainerCallback):
    def __init__(self, folder: Path, progress: Progress):
        self.metrics, self.progress = folder / METRICS, progress

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        rows = [row for row in salvage_jsonl(self.metrics) if row["step"] <= state.global_step]
        self.metrics.unlink(missing_ok=True)
        append_jsonl(self.metrics, rows)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        if state.is_world_process_zero:
            append_jsonl(self.metrics, [{"step": state.global_step, **logs}])
        if not math.isfinite(logs["loss"]) or not math.isfinite(logs.get("grad_norm", 0.0)):
            raise UserError(
                f"Training diverged: at step {state.global_step} the loss is {logs['loss']} and the gradient norm "
                f"{logs.get('grad_norm')}. {REMEDY}"
            )
        self.progress.update(state.global_step, state.max_steps, loss=logs["loss"], lr=logs["learning_rate"])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        refuse_broken_weights(kwargs["model"], state.global_step)
        wait_for_all()  # each may have written a part of it
        if not state.is_world_process_zero:
            return
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        sync_tree(checkpoint)
        write_text(checkpoint / COMPLETE, f"{state.global_step}\n")


def refuse_broken_weights(model: Any, step: int) -> None:
    if not all_agree(all(torch.isfinite(local_part(weight)).all() for weight in model.parameters())):
        raise UserError(f"Training diverged: at step {step} a weight is not finite. {REMEDY}")


def last_complete_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end, or None."""
    marks = folder.glob(f"checkpoint-*/{COMPLETE}")
    return max((mark.parent for mark in marks), key=lambda path: int(path.name.split("-")[1]), default=None)
