"""Takes the strong model's scores from the forward passes of its last training epoch, which saves a scan.

N = rows, S = sums over a row's supervised tokens, B = rows of a batch, L = tokens.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import TrainerCallback

from weakdriven.data.tokenize import column
from weakdriven.errors import UserError
from weakdriven.runs.files import PART
from weakdriven.runs.processes import gathered, index
from weakdriven.wmss.score_files import PART_SCHEMA

FILES = "training-scores-{}.npz"


class TrainingScores(TrainerCallback):
    """Keeps the scores that TRL's fused head computes with the loss, and writes them before each checkpoint.

    A row is recognised by its tokens, so the order of rows, packing and the number of processes do not matter.
    """

    def __init__(self, folder: Path, rows: Dataset, epochs: int):
        self.folder, self.rows, self.epochs = folder, rows, epochs
        self.numbers = defaultdict[bytes, list[int]](list)
        for number, ids in enumerate(column(rows, "input_ids")):
            self.numbers[key_of(ids.values.to_numpy())].append(number)
        self.sum_NS = np.zeros((len(rows), 4))
        self.step_N = np.full(len(rows), -1)
        """Step of each row's scores; -1: no scores yet."""
        self.step = -1
        """The current step; -1 before the last epoch."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._read()
        self.step_N[self.step_N >= state.global_step] = -1  # these steps are trained again
        self.hook = kwargs["model"].register_forward_hook(self._record, with_kwargs=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        last = state.global_step >= state.max_steps * (self.epochs - 1) // self.epochs
        self.step = state.global_step if last else -1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_save:  # before the checkpoint, else a kill in between would lose earlier rows
            self._write()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._write()
        self.hook.remove()

    def _record(self, model: nn.Module, args: Any, inputs: dict[str, Any], output: Any) -> None:
        if not model.training or self.step < 0:
            return
        if getattr(output, "entropy", None) is None:
            raise UserError(
                "selection.strong_scores is training, and this release of TRL does not give the entropy of each "
                "token; install trl>=1.15, or set selection.strong_scores: scan."
            )
        log_p, mask = output.log_probs.detach().float(), output.label_mask
        all_SBL = torch.stack([mask.float(), output.entropy.detach().float(), -log_p, log_p.exp() * mask])
        sum_SBL, ids_BL = all_SBL.cpu().double().numpy(), inputs["input_ids"].cpu().numpy()
        for row, begin, end in rows_of(inputs):
            numbers = self.numbers[key_of(ids_BL[row, begin:end])]
            self.sum_NS[numbers] = sum_SBL[:, row, begin : end - 1].sum(1)
            self.step_N[numbers] = self.step

    def _write(self) -> None:
        path = self.folder / FILES.format(index())
        part = path.with_name(path.name + PART)
        with part.open("wb") as file:
            np.savez(file, sums=self.sum_NS, steps=self.step_N)
        os.replace(part, path)

    def _read(self) -> None:
        """Read what all processes have written; if two have scored a row, the later scores win."""
        for path in sorted(self.folder.glob(FILES.format("*"))):
            with np.load(path, allow_pickle=False) as found:
                later_N = found["steps"] > self.step_N
                self.sum_NS[later_N], self.step_N[later_N] = found["sums"][later_N], found["steps"][later_N]

    def table(self) -> pa.Table:
        """Return the scores of the last epoch's rows in the format of a scan; all processes must call this."""
        gathered([None])  # wait until all processes have written
        self._read()
        seen = np.flatnonzero((self.step_N >= 0) & (self.sum_NS[:, 0] > 0))
        count_N, *sums = self.sum_NS[seen].T
        ids = pa.array(self.rows["id"]).take(pa.array(seen))
        truncated = pa.array(self.rows["truncated"]).take(pa.array(seen))
        means = [pa.array(sum_N / count_N) for sum_N in sums]
        columns = [pa.array(seen), ids, pa.array(count_N.astype(np.int32)), *means, truncated]
        return pa.Table.from_arrays(columns, schema=PART_SCHEMA)


def key_of(ids: np.ndarray) -> bytes:
    return ids.astype(np.int32).tobytes()


def rows_of(inputs: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield each sequence of a batch as row, begin and end; restarting positions separate packed sequences."""
    ids_BL: Tensor = inputs["input_ids"]
    if inputs.get("attention_mask") is not None:
        for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
            yield row, 0, length
    elif (position_BL := inputs.get("position_ids")) is not None:
        begins = (position_BL[0] == 0).nonzero()[:, 0].tolist()
        for begin, end in pairwise([*begins, ids_BL.shape[1]]):
            yield 0, begin, end
    else:
        yield from ((row, 0, ids_BL.shape[1]) for row in range(len(ids_BL)))
