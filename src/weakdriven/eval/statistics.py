"""Statistics of graded samples: pass@k, means, intervals, and two models on the same items.

P = problems, B = bootstrap draws. Numbers in, numbers out; no files, no models.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = Sequence[float] | NDArray[np.generic]
CONFIDENCE = 0.95
DRAWS = 10_000
CELLS = 2**22  # of the matrix of drawn rows that is in memory at once


def pass_at_k(correct_P: Numbers, n: int, k: int) -> float:
    """Mean chance that k of a problem's n samples hold a correct one (Chen et al., 2021).

    Args:
        correct_P: Correct samples per problem, each in [0, n].

    >>> pass_at_k(np.array([0, 1, 2]), n=2, k=1)
    0.5
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} samples: k must be from 1 to the number of samples.")
    counts = np.asarray(correct_P)
    if counts.size == 0:
        raise ValueError("pass@k of no problems is not defined.")
    if counts.min() < 0 or counts.max() > n or np.any(counts != counts.astype(np.int64)):
        raise ValueError(f"Correct samples per problem must be whole numbers from 0 to n={n}.")
    return float(np.mean([1 - math.comb(n - c, k) / math.comb(n, k) for c in counts.astype(np.int64).tolist()]))


def mean_at_n(correct_P: Numbers, n: int) -> float:
    """Mean accuracy over all n samples of every problem, which is pass@1.

    >>> mean_at_n([0, 1, 2], n=2)
    0.5
    """
    return pass_at_k(correct_P, n, 1)


def wilson_interval(correct: int, items: int, z: float = 1.959964) -> tuple[float, float]:
    """95% confidence interval of a proportion (Wilson score), which behaves at 0 and 1 too.

    >>> [round(x, 4) for x in wilson_interval(50, 100)]
    [0.4038, 0.5962]
    """
    if not 0 <= correct <= items or items == 0:
        raise ValueError(f"{correct} correct of {items} items is not a share.")
    share = correct / items
    centre = share + z * z / (2 * items)
    spread = z * math.sqrt(share * (1 - share) / items + z * z / (4 * items * items))
    scale = 1 + z * z / items
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def bootstrap_interval(
    values_P: Numbers, *, confidence: float = CONFIDENCE, draws: int = DRAWS, seed: int = 42
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean over problems, for values that are not just right or wrong.

    >>> low, high = bootstrap_interval([0.0, 0.5, 1.0] * 20)
    >>> 0.38 < low < 0.42 and 0.58 < high < 0.62
    True
    """
    means_B = bootstrap_means(as_floats(values_P), draws, seed)
    low, high = np.quantile(means_B, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Comparison:
    """Model b against model a on the same items."""

    difference: float
    """Mean of b less mean of a."""
    interval: tuple[float, float]
    """95% interval of the difference."""
    p_value: float
    """Two-sided, that both models are equally good."""
    only_a: int | None = None
    """Items that a has right and b has wrong; for right-or-wrong scores only."""
    only_b: int | None = None


def mcnemar(right_a_P: Numbers, right_b_P: Numbers, *, draws: int = DRAWS, seed: int = 42) -> Comparison:
    """Two models that are right or wrong on the same items: exact binomial test on the items where they differ.

    >>> mcnemar([1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 1, 1]).p_value
    0.375
    """
    a, b = pair(right_a_P, right_b_P)
    if not np.isin(np.concatenate([a, b]), [0, 1]).all():
        raise ValueError("McNemar's test needs 0 and 1; use paired_bootstrap for means.")
    only_a, only_b = int(np.sum(a > b)), int(np.sum(b > a))
    low, high = bootstrap_interval(b - a, draws=draws, seed=seed)
    return Comparison(float(np.mean(b - a)), (low, high), binomial_p_value(only_a, only_b), only_a, only_b)


def paired_bootstrap(a_P: Numbers, b_P: Numbers, *, draws: int = DRAWS, seed: int = 42) -> Comparison:
    """Two models' means over the same problems, such as mean@n or pass@k of each.

    The interval draws problems with replacement; the p-value swaps the two models at random within each problem.
    """
    a, b = pair(a_P, b_P)
    interval = bootstrap_interval(b - a, draws=draws, seed=seed)
    return Comparison(float(np.mean(b - a)), interval, swap_p_value(b - a, draws, seed))


def binomial_p_value(losses: int, wins: int) -> float:
    """Two-sided exact p-value of as uneven a split of fair coin throws.

    >>> binomial_p_value(0, 5)
    0.0625
    """
    throws, fewer = losses + wins, min(losses, wins)
    return min(1.0, 2 * sum(math.comb(throws, heads) for heads in range(fewer + 1)) / 2**throws)


def swap_p_value(differences_P: NDArray[np.float64], draws: int, seed: int) -> float:
    """Share of random signs that give a mean difference at least as large, with the observed one counted in."""
    observed = abs(differences_P.sum()) - 1e-12 * (1 + np.abs(differences_P).sum())
    rng, extreme = np.random.default_rng(seed), 0
    for rows in batches(draws, len(differences_P)):
        signs_BP = rng.integers(0, 2, size=(rows, len(differences_P)), dtype=np.int8) * 2 - 1
        extreme += int(np.sum(np.abs(signs_BP @ differences_P) >= observed))
    return (extreme + 1) / (draws + 1)


def bootstrap_means(values_P: NDArray[np.float64], draws: int, seed: int) -> NDArray[np.float64]:
    rng, problems = np.random.default_rng(seed), len(values_P)
    means = [
        values_P[rng.integers(0, problems, size=(rows, problems))].mean(axis=1) for rows in batches(draws, problems)
    ]
    return np.concatenate(means)


def batches(draws: int, problems: int) -> list[int]:
    """Draws in pieces whose matrices stay small however many problems there are."""
    rows = max(1, CELLS // problems)
    return [min(rows, draws - start) for start in range(0, draws, rows)]


def pair(a_P: Numbers, b_P: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = as_floats(a_P), as_floats(b_P)
    if len(a) != len(b):
        raise ValueError(f"A paired comparison needs the same items: {len(a)} and {len(b)} were given.")
    return a, b


def as_floats(values_P: Numbers) -> NDArray[np.float64]:
    values = np.asarray(values_P, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ValueError("Give one finite number per problem, and at least one problem.")
    return values
