"""Evaluation during training: the mean loss over the tokens of all rows, with no effect on training."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.trainer_utils import EvalLoopOutput
from trl.trainer.sft_trainer import SFTTrainer

from weakdriven.losses.mixed_ce import IGNORE, targets

LENGTHS = "row_lengths"


class EvaluatingTrainer(SFTTrainer):
    """TRL's SFTTrainer, but evaluation losses are means over tokens; upstream averages the means of batches."""

    _evaluated: Tensor | None = None
    """Sum of the losses of this process's batches, and the number of their tokens."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as upstream, but restore the random state, because its data loader draws a random number."""
        with same_random_numbers():
            return super().evaluate(*args, **kwargs)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        self._evaluated = None
        if self.accelerator.num_processes > 1:
            inner = getattr(dataloader, "base_dataloader", dataloader)
            if getattr(inner.collate_fn, "func", None) is not with_lengths:
                inner.collate_fn = partial(with_lengths, inner.collate_fn)
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        if self._evaluated is not None:
            sums: Any = self.accelerator.reduce(self._evaluated)
            loss, tokens = sums.tolist()
            output.metrics[f"{metric_key_prefix}_loss"] = loss / max(tokens, 1)  # pyright: ignore
        return output

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        lengths, state = inputs.pop(LENGTHS, None), self.accelerator.gradient_state
        if lengths is not None and state.end_of_dataloader and state.remainder > 0:
            ignore_filler(inputs["labels"], lengths, left=state.remainder, process=self.accelerator.process_index)
        target = targets(inputs["labels"], inputs.get("position_ids"), inputs.get("attention_mask"))
        tokens = (target != IGNORE).sum()
        found: Any = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        sums = torch.stack([found[0].float() * tokens, tokens.float()])
        self._evaluated = sums if self._evaluated is None else self._evaluated + sums
        return found


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Restore the random number generators at the end of the block."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def with_lengths(collate: Callable[[list[Any]], dict[str, Any]], rows: list[Any]) -> dict[str, Any]:
    """Collate rows and add their lengths, to separate rows that are packed into one."""
    return {**collate(rows), LENGTHS: torch.tensor([len(row.get("input_ids", ())) for row in rows])}


def ignore_filler(labels: Tensor, lengths: Tensor, *, left: int, process: int) -> None:
    """Mask, in place, the rows that accelerate repeats to fill the last batches of an evaluation.

    Args:
        lengths: Lengths of this process's rows, which are separate in `labels` or packed into one row.
        left: Rows in the last batches of all processes together, without repeats.
    """
    rows = len(lengths)
    own = min(max(left - rows * process, 0), rows)
    if len(labels) == rows:
        labels[own:] = IGNORE
    else:
        labels[:, int(lengths[:own].sum()) :] = IGNORE
