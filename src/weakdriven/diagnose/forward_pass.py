"""Each model of a diagnosis runs once over the sampled examples: statistics of every token, hidden states for pairs.

N = examples, T = supervised tokens of all of them, D = width, V = vocabulary, S = statistics.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from weakdriven.data.tokenize import IGNORE, row_lengths
from weakdriven.diagnose.gradients import HardNegatives, PairStatistics, pair_statistics, top_hard_negatives
from weakdriven.diagnose.logits import LogitStatistics, logit_statistics
from weakdriven.losses.head import Head
from weakdriven.models.head import head
from weakdriven.runs.directory import Progress
from weakdriven.stages.model_loader import Loader, Model
from weakdriven.wmss.entropy import plan_batches, supervised_states


@dataclass(frozen=True)
class Sample:
    """The examples that every model of a diagnosis is asked about."""

    dataset: Dataset
    row_N: np.ndarray
    """Their numbers in the tokenised data."""
    count_N: np.ndarray
    """Supervised tokens of each."""

    @property
    def begin_N(self) -> np.ndarray:
        """Place of each example's first token among all tokens."""
        return np.cumsum(self.count_N) - self.count_N

    @property
    def example_T(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.count_N)), self.count_N)


@dataclass(frozen=True)
class Measured:
    """One model on the sample; hidden states and head are on the CPU, and there only for models of a pair."""

    statistics: dict[str, np.ndarray]
    target_T: Tensor
    vocabulary: int
    hidden_TD: Tensor | None
    head: Head | None


def draw_sample(dataset: Dataset, examples: int, seed: int) -> Sample:
    row_N = np.sort(np.random.default_rng(seed).permutation(len(dataset))[:examples])
    chosen = dataset.select(row_N)
    count_N = [int((np.asarray(labels)[1:] != IGNORE).sum()) for labels in chosen["labels"]]
    return Sample(chosen, row_N, np.array(count_N, dtype=np.int64))


def measure(
    loader: Loader, model: Model, sample: Sample, progress: Progress, *, keep: bool, done: int, of: int
) -> Measured:
    """Run a model over the sample.

    Args:
        keep: Whether it is part of a pair, whose logits are needed beside another's.
        done: Examples of other models that have been run before, out of `of`.
    """
    network = loader.load(model, train=False, scan=True)
    tokens, begin_N = int(sample.count_N.sum()), sample.begin_N
    output = head(network)
    found_ST = np.full((len(LogitStatistics._fields), tokens), np.nan)
    target_T = torch.zeros(tokens, dtype=torch.long)
    kept_TD = torch.empty(tokens, output.weight_VD.shape[1], dtype=output.weight_VD.dtype) if keep else None
    batches = plan_batches(row_lengths(sample.dataset), loader.recipe.selection.batch_tokens)
    for states in supervised_states(network, sample.dataset, batches):
        counts = zip(states.numbers, states.count_B, strict=True)
        place_T = np.concatenate([begin_N[n] + np.arange(count) for n, count in counts])
        values = logit_statistics(states.hidden_TD, output, states.target_T)
        found_ST[:, place_T] = torch.stack(values).cpu().numpy()
        target_T[torch.from_numpy(place_T)] = states.target_T.cpu()
        if kept_TD is not None:
            kept_TD[torch.from_numpy(place_T)] = states.hidden_TD.cpu()
        done += len(states.numbers)
        progress.update(done, of)
    names = (name.removesuffix("_T") for name in LogitStatistics._fields)
    kept_head = _moved(output, torch.device("cpu")) if keep else None
    return Measured(dict(zip(names, found_ST, strict=True)), target_T, len(output.weight_VD), kept_TD, kept_head)


def compare(strong: Measured, weak: Measured, strong_weight: float) -> dict[str, np.ndarray]:
    """What mixing the two does on every token, by the names of `PairStatistics`."""
    found = pair_statistics(*_inputs(strong, weak), strong_weight=strong_weight)
    names = (name.removesuffix("_T") for name in PairStatistics._fields)
    return {name: value_T.cpu().numpy() for name, value_T in zip(names, found, strict=True)}


def hardest(strong: Measured, weak: Measured, strong_weight: float, place_T: np.ndarray, count: int) -> HardNegatives:
    """The hard negatives of some tokens."""
    inputs = _inputs(strong, weak, torch.from_numpy(place_T))
    return top_hard_negatives(*inputs, strong_weight=strong_weight, count=count)


def _inputs(strong: Measured, weak: Measured, place_T: Tensor | None = None) -> tuple[Any, ...]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert strong.hidden_TD is not None and weak.hidden_TD is not None and strong.head and weak.head
    columns = (strong.hidden_TD, weak.hidden_TD, strong.target_T)
    strong_TD, weak_TE, target_T = columns if place_T is None else (column[place_T] for column in columns)
    return strong_TD, _moved(strong.head, device), weak_TE, _moved(weak.head, device), target_T


def _moved(one: Head, device: torch.device) -> Head:
    bias_V = None if one.bias_V is None else one.bias_V.detach().to(device)
    return one._replace(weight_VD=one.weight_VD.detach().to(device), bias_V=bias_V)
