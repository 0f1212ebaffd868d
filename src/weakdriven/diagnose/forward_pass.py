"""Run each model of a diagnosis once over the sampled examples: statistics of every token, hidden states for pairs.

N = examples, T = supervised tokens of all examples, D = hidden width, V = vocabulary.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from weakdriven.data.tokenize import IGNORE, row_lengths
from weakdriven.diagnose.gradients import HardNegatives, pair_statistics, top_hard_negatives
from weakdriven.diagnose.logits import logit_statistics
from weakdriven.losses.head import Head
from weakdriven.models.head import head
from weakdriven.stages.model import Model
from weakdriven.stages.model_loader import Loader
from weakdriven.wmss.entropy import plan_batches, supervised_states


@dataclass(frozen=True)
class Sample:
    """The examples on which every model of a diagnosis runs."""

    dataset: Dataset
    row_N: np.ndarray
    """Their row numbers in the tokenized data."""
    count_N: np.ndarray
    """Supervised tokens of each example."""

    @property
    def begin_N(self) -> np.ndarray:
        """Position of each example's first token among all tokens."""
        return np.cumsum(self.count_N) - self.count_N

    @property
    def example_T(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.count_N)), self.count_N)


@dataclass(frozen=True)
class Measured:
    """One model on the sample. Hidden states and head are on the CPU, and kept only for models of a pair."""

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


def measure(loader: Loader, model: Model, sample: Sample, on_done: Callable[[int], None], *, keep: bool) -> Measured:
    """Run a model over the sample; `keep` its hidden states if it belongs to a pair."""
    network = loader.load(model, train=False, scan=True)
    tokens, begin_N, done = int(sample.count_N.sum()), sample.begin_N, 0
    output = head(network)
    statistics: dict[str, np.ndarray] = defaultdict(lambda: np.empty(tokens))
    target_T = torch.zeros(tokens, dtype=torch.long)
    kept_TD = torch.empty(tokens, output.weight_VD.shape[1], dtype=output.weight_VD.dtype) if keep else None
    batches = plan_batches(row_lengths(sample.dataset), loader.recipe.selection.batch_tokens)
    for states in supervised_states(network, sample.dataset, batches):
        counts = zip(states.numbers, states.count_B, strict=True)
        place_T = np.concatenate([begin_N[n] + np.arange(count) for n, count in counts])
        values = logit_statistics(states.hidden_TD, output, states.target_T)
        for name, value_T in zip(values, torch.stack([*values.values()]).cpu().numpy(), strict=True):
            statistics[name][place_T] = value_T
        target_T[place_T] = states.target_T.cpu()
        if kept_TD is not None:
            kept_TD[place_T] = states.hidden_TD.cpu()
        done += len(states.numbers)
        on_done(done)
    return Measured(dict(statistics), target_T, len(output.weight_VD), kept_TD, moved(output, "cpu") if keep else None)


def compare(strong: Measured, weak: Measured, strong_weight: float) -> dict[str, np.ndarray]:
    """Measure the effect of mixing the two models on every token: the columns of `pair_statistics`."""
    found = pair_statistics(*pair_inputs(strong, weak), strong_weight=strong_weight)
    return {name: value_T.cpu().numpy() for name, value_T in found.items()}


def hardest(strong: Measured, weak: Measured, strong_weight: float, place_T: np.ndarray, count: int) -> HardNegatives:
    """Find the hard negatives of some tokens."""
    return top_hard_negatives(*pair_inputs(strong, weak, place_T), strong_weight=strong_weight, count=count)


def pair_inputs(strong: Measured, weak: Measured, place_T: Any = slice(None)) -> tuple[Any, ...]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert strong.hidden_TD is not None and weak.hidden_TD is not None and strong.head and weak.head
    strong_TD, weak_TE, target_T = (one[place_T] for one in (strong.hidden_TD, weak.hidden_TD, strong.target_T))
    return strong_TD, moved(strong.head, device), weak_TE, moved(weak.head, device), target_T


def moved(one: Head, device: str) -> Head:
    bias_V = None if one.bias_V is None else one.bias_V.detach().to(device)
    return one._replace(weight_VD=one.weight_VD.detach().to(device), bias_V=bias_V)
