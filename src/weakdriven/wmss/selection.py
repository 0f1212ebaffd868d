"""WD-DS: turns two columns of entropies into sampling probabilities, and draws the active set.

N = examples. Every step is a pass over columns: ten million examples take seconds and less than 1 GiB.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from weakdriven.errors import UserError

logger = logging.getLogger(__name__)

FORMULAS = ("paper", "official")
ROUNDING = 1e-5
"""How far below zero an entropy may be. It is log-sum-exp minus mean logit; at float32 logits near 30 (spacing 2e-6), a
fully confident model misses zero by a few spacings. Anything lower is not an entropy."""
RANKED_ROWS = 1_000_000


def selection_weights(
    weak_entropy_N: ArrayLike,
    strong_entropy_N: ArrayLike,
    *,
    consolidation: float = 0.1,
    difficulty: float = 0.8,
    repair: float = 0.1,
    formula: str = "paper",
) -> np.ndarray:
    """Compute the three weighted terms (3, N): consolidation, difficulty, repair.

    `paper` is the printed equation. `official` is what the authors' code computes: there, `consolidation` multiplies
    the weak entropy and `difficulty` the fall, and each term is divided by its sum over the data.

    >>> selection_weights([1, 0.5, 0.8, 0], [0.4, 0.6, 0.8, 0])[:, :2].round(6).tolist()
    [[0.06, 0.0], [0.32, 0.48], [0.0, 0.01]]
    """
    weights = {"consolidation": consolidation, "difficulty": difficulty, "repair": repair}
    for name, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise UserError(f"{name} is {weight}, expected a weight of at least 0; 0 leaves its term out.")
    if not any(weights.values()):
        raise UserError("consolidation, difficulty and repair are all 0, so nothing could be drawn; raise one of them.")
    if formula not in FORMULAS:
        raise UserError(f"formula is {formula!r}, expected 'paper' (as printed) or 'official' (the authors' code).")
    weak_N, strong_N = _entropies(weak_entropy_N, strong_entropy_N)
    terms_3N = np.empty((3, len(weak_N)))
    fall_N, level_N, rise_N = (terms_3N[row] for row in ((0, 1, 2) if formula == "paper" else (1, 0, 2)))
    level_N[:] = strong_N if formula == "paper" else weak_N
    np.subtract(weak_N, strong_N, out=fall_N)
    np.subtract(strong_N, weak_N, out=rise_N)
    np.maximum(terms_3N, 0, out=terms_3N)
    for weight, term_N in zip(weights.values(), terms_3N, strict=True):
        total = term_N.sum()
        term_N *= weight
        if formula == "official" and total > 0:
            term_N /= total
    return terms_3N


def selection_probabilities(
    weak_entropy_N: ArrayLike,
    strong_entropy_N: ArrayLike,
    *,
    consolidation: float = 0.1,
    difficulty: float = 0.8,
    repair: float = 0.1,
    formula: str = "paper",
) -> np.ndarray:
    """Compute the probability of each example in one draw; uniform, with a warning, if all weights are zero.

    Args:
        weak_entropy_N, strong_entropy_N: Mean token entropy (nats) of each example, at least 0. Rounding errors below
            zero count as zero.
        consolidation, difficulty, repair: Weights of the terms, at least 0 and not all 0. Paper: alpha, beta, gamma.
        formula: `paper` or `official`, see `selection_weights`.

    >>> weak, strong = np.array([1, 0.5, 0.8, 0]), np.array([0.4, 0.6, 0.8, 0])
    >>> selection_probabilities(weak, strong).round(6).tolist()
    [0.251656, 0.324503, 0.423841, 0.0]
    """
    weights = {"consolidation": consolidation, "difficulty": difficulty, "repair": repair, "formula": formula}
    weight_N = selection_weights(weak_entropy_N, strong_entropy_N, **weights).sum(0)  # pyright: ignore
    if not weight_N.any():
        logger.warning("every selection weight is zero, so the active set is drawn uniformly")
        return np.full(len(weight_N), 1 / len(weight_N))
    weight_N /= weight_N.sum()
    return weight_N


def draw_active(
    probabilities_N: ArrayLike, *, seed: int | Sequence[int], multiplier: float = 1.0, dedup: bool = True
) -> np.ndarray:
    """Draw row numbers with replacement and sort them; drop repeats if `dedup`.

    The draws are those of `np.random.default_rng(seed).choice(N, size, p=probabilities_N)`.

    Args:
        multiplier: Draws per example, above 0.

    >>> draw_active([0.251656, 0.324503, 0.423841, 0], seed=0, dedup=False).tolist()
    [0, 0, 1, 2]
    """
    p_N = _column("probabilities", probabilities_N)
    precision = getattr(probabilities_N, "dtype", np.dtype(np.float64))
    tolerance = np.finfo(precision if precision in (np.float16, np.float32) else np.float64).eps ** 0.5  # numpy's own
    if abs((total := p_N.sum()) - 1) > tolerance:
        raise UserError(f"The probabilities sum to {total:.9g}, expected 1; divide them by their sum.")
    cumulative_N = np.cumsum(p_N)
    cumulative_N /= cumulative_N[-1]
    uniform = np.random.default_rng(seed).random(draws(len(cumulative_N), multiplier))
    uniform.sort()  # the search then reads memory in sequence: ten times faster at ten million
    rows = cumulative_N.searchsorted(uniform, side="right")
    return rows[_first_of_each(rows)] if dedup else rows


def selection_counters(
    weak_entropy_N: ArrayLike,
    strong_entropy_N: ArrayLike,
    probabilities_N: np.ndarray,
    active: np.ndarray,
    *,
    multiplier: float,
    formula: str,
    **weights: float,
) -> dict[str, Any]:
    """Compute what is logged about a selection.

    Above a million examples, the rank correlation of the two formulas uses a fixed random sample of a million rows; its
    standard error is then about 0.001.

    Args:
        active: Sorted row numbers, from `draw_active`.
        weights: `consolidation`, `difficulty` and `repair`.
    """
    weak_N, strong_N = _entropies(weak_entropy_N, strong_entropy_N)
    p, count = probabilities_N, draws(len(probabilities_N), multiplier)
    sums_3 = selection_weights(weak_N, strong_N, formula=formula, **weights).sum(1)
    shares_3 = (sums_3 / max(sums_3.sum(), 1e-300)).tolist()
    other = "official" if formula == "paper" else "paper"
    other_N = selection_weights(weak_N, strong_N, formula=other, **weights).sum(0)
    other_N /= other_N.sum() or 1.0  # both are probabilities, so that rounding makes the same ties
    rows: Any = slice(None)
    if len(p) > RANKED_ROWS:  # random: in interleaved data, evenly spaced rows could be of one source
        rows = np.random.default_rng(0).integers(len(p), size=RANKED_ROWS)
    return {
        "examples": len(p),
        "active": len(active),
        "formula": formula,
        "term_shares": dict(zip(("consolidation", "difficulty", "repair"), shares_3, strict=True)),
        "p_min": p.min().item(),
        "p_max": p.max().item(),
        "p_cv": (p.std() / p.mean()).item(),
        "effective_sample_size": (1 / np.square(p).sum()).item(),
        "expected_unique": expected_unique(p, count) / count,
        "realised_unique": int(np.count_nonzero(_first_of_each(active))) / count,
        "falling": int(np.count_nonzero(strong_N < weak_N)),
        "equal": int(np.count_nonzero(strong_N == weak_N)),
        "rising": int(np.count_nonzero(strong_N > weak_N)),
        "zero_weight": int(np.count_nonzero(p == 0)),
        "formula_rank_correlation": rank_correlation(p[rows], other_N[rows]),
    }


def draws(examples: int, multiplier: float) -> int:
    if not 0 < multiplier < float("inf"):
        raise UserError(f"multiplier is {multiplier}, expected a number of draws per example above 0, such as 1.0.")
    return max(round(multiplier * examples), 1)


def expected_unique(probabilities_N: np.ndarray, count: int) -> float:
    """Compute the expected number of different rows among `count` draws with replacement.

    >>> round(expected_unique(np.full(4, 0.25), 4), 6)
    2.734375
    """
    with np.errstate(divide="ignore"):  # a row of probability 1 is never missed: log 0 is -inf
        missed_N = np.log1p(-probabilities_N)
    missed_N *= count
    return -float(np.expm1(missed_N, out=missed_N).sum())


def rank_correlation(a_N: np.ndarray, b_N: np.ndarray) -> float | None:
    """Compute Spearman's correlation, with tied values at their mean rank; return None if one side is constant."""
    ranks = [_mean_ranks(x) for x in (a_N, b_N)]
    if min(r.std() for r in ranks) == 0:
        return None
    return float(np.corrcoef(np.stack(ranks))[0, 1])


def _mean_ranks(x_N: np.ndarray) -> np.ndarray:
    _, group_N, count = np.unique(x_N, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[group_N]


def _first_of_each(rows_sorted: np.ndarray) -> np.ndarray:
    """Mark where a value occurs for the first time."""
    return np.append(True, rows_sorted[1:] != rows_sorted[:-1])


def _entropies(weak: ArrayLike, strong: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    weak_N = _column("weak entropies", weak, least=-ROUNDING)
    strong_N = _column("strong entropies", strong, least=-ROUNDING)
    if len(weak_N) != len(strong_N):
        raise UserError(
            f"There are {len(weak_N)} weak and {len(strong_N)} strong entropies, expected one of each per example; "
            "score the same data with both models."
        )
    return weak_N, strong_N


def _column(name: str, values: ArrayLike, least: float = 0.0) -> np.ndarray:
    """Return finite float64 numbers, one per example; those from `least` to 0 become 0."""
    column_N = np.asarray(values, np.float64)
    if column_N.ndim != 1 or not len(column_N):
        raise UserError(f"The {name} have shape {column_N.shape}; pass one number per example, and at least one.")
    finite_N = np.isfinite(column_N)
    if not finite_N.all():
        raise UserError(f"The {name} are not finite in {_name_rows(~finite_N)}; repair these rows or leave them out.")
    if (low := column_N.min()) < least:
        raise UserError(
            f"The {name} are negative in {_name_rows(column_N < least)}, as low as {low:.3g}, expected at least 0; "
            "pass entropies (nats) from score_dataset, or probabilities from selection_probabilities."
        )
    return np.maximum(column_N, 0) if low < 0 else column_N


def _name_rows(chosen_N: np.ndarray) -> str:
    rows = np.flatnonzero(chosen_N)
    return f"{len(rows)} of {len(chosen_N)} rows (first: {', '.join(map(str, rows[:5].tolist()))})"
