"""Methods that were trained under several seeds and asked on several benchmarks: means, intervals, and two of them.

S = seeds, P = problems of a benchmark, B = bootstrap draws. A method's score is its mean accuracy over benchmarks.
Its interval draws seeds and problems with replacement, so it tells of other trainings and of other problems; with
three seeds the part of the seeds is rough, and with one seed it is left out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weakdriven.eval.statistics import CONFIDENCE, DRAWS, batches

Scores: TypeAlias = Mapping[str, NDArray[np.float64]]
"""Benchmark -> share of right samples, (S, P); the same seeds in each."""


@dataclass(frozen=True)
class SeedComparison:
    """Method b against method a, trained under the same seeds and asked the same problems."""

    difference: float
    interval: tuple[float, float]
    by_seed: tuple[float, ...]
    p_items: float
    """Of these trained models on other problems: signs of the problems' differences are swapped at random."""
    p_seeds: float | None
    """Of other trainings on these problems: t-test over seeds; None for one seed, or where all differ alike."""


def score_of(scores: Scores) -> float:
    return float(np.mean(by_seed(scores)))


def by_seed(scores: Scores) -> NDArray[np.float64]:
    """Mean over benchmarks for each seed.

    >>> by_seed({"gsm8k": np.array([[1.0, 0.0], [1.0, 1.0]]), "svamp": np.array([[0.0], [1.0]])}).tolist()
    [0.25, 1.0]
    """
    return np.mean([values_SP.mean(axis=1) for values_SP in scores.values()], axis=0)


def interval_of(scores: Scores, *, draws: int = DRAWS, seed: int = 42) -> tuple[float, float]:
    """Percentile bootstrap interval over seeds and problems, 95%."""
    return percentiles(drawn_scores(scores, draws=draws, seed=seed))


def percentiles(drawn_B: NDArray[np.float64]) -> tuple[float, float]:
    """Ends of the interval that holds 95% of the draws."""
    low, high = np.quantile(drawn_B, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def drawn_scores(scores: Scores, *, draws: int = DRAWS, seed: int = 42, group: int = 0) -> NDArray[np.float64]:
    """Scores with seeds and problems drawn anew, (B,).

    Args:
        group: Another one has its seeds drawn apart and the same problems drawn: for other models on these problems.
    """
    seeds, *_ = (len(values_SP) for values_SP in scores.values())
    counts_BS = drawn_counts(seeds, draws, (seed, 0, group))
    total_B = np.zeros(draws)
    for place, values_SP in enumerate(scores.values(), start=1):
        problems = values_SP.shape[1]
        parts = np.array_split(drawn_counts(problems, draws, (seed, place)), len(batches(draws, problems)))
        means_BS = np.concatenate([counts_BP.astype(float) @ values_SP.T for counts_BP in parts]) / problems
        total_B += (means_BS * counts_BS).sum(axis=1) / seeds
    return total_B / len(scores)


@lru_cache(maxsize=8)
def drawn_counts(size: int, draws: int, seed: tuple[int, ...]) -> NDArray[np.uint8]:
    """How often each of some things was drawn with replacement, (B, size); methods on the same problems share it."""
    rng, parts = np.random.default_rng(seed), []
    for rows in batches(draws, size):
        places = rng.integers(0, size, size=(rows, size)) + size * np.arange(rows)[:, None]
        parts.append(np.bincount(places.ravel(), minlength=rows * size).astype(np.uint8).reshape(rows, size))
    return np.concatenate(parts)


def compare_seeds(a: Scores, b: Scores, *, draws: int = DRAWS, seed: int = 42) -> SeedComparison:
    """Two methods, seed by seed and problem by problem."""
    shapes = [{name: values_SP.shape for name, values_SP in one.items()} for one in (a, b)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"A paired comparison needs the same seeds and problems, found {shapes[0]} and {shapes[1]}.")
    differences = {name: b[name] - a[name] for name in a}
    seeds = by_seed(differences)
    return SeedComparison(
        difference=score_of(differences),
        interval=interval_of(differences, draws=draws, seed=seed),
        by_seed=tuple(seeds.tolist()),
        p_items=item_p_value(differences, draws, seed),
        p_seeds=t_test(seeds),
    )


def item_p_value(differences: Scores, draws: int, seed: int) -> float:
    """Share of random signs of the problems that move the score at least as far, the observed one counted in."""
    moved = [values_SP.mean(axis=0) / (values_SP.shape[1] * len(differences)) for values_SP in differences.values()]
    moved_P = np.concatenate(moved)
    observed = abs(moved_P.sum()) - 1e-12
    rng, extreme = np.random.default_rng(seed), 0
    for rows in batches(draws, len(moved_P)):
        signs_BP = rng.integers(0, 2, size=(rows, len(moved_P)), dtype=np.int8) * 2 - 1
        extreme += int(np.sum(np.abs(signs_BP @ moved_P) >= observed))
    return (extreme + 1) / (draws + 1)


def t_test(values_S: NDArray[np.float64]) -> float | None:
    """Two-sided p-value that the mean is 0 (Student, one sample).

    >>> round(t_test(np.array([1.0, 2.0, 3.0])), 4)
    0.0742
    """
    if len(values_S) < 2 or np.ptp(values_S) < 1e-9:  # rounding apart
        return None
    return t_chance(values_S.mean() / (values_S.std(ddof=1) / math.sqrt(len(values_S))), len(values_S) - 1)


def t_chance(t: float, freedom: int) -> float:
    """Two-sided p-value of Student's t."""
    # with t = sqrt(freedom) * tan(angle) Student's density becomes a power of the cosine
    angle = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angle) ** (freedom - 1)
    return float(density[angle > math.atan(abs(t) / math.sqrt(freedom))].sum() / density.sum())
