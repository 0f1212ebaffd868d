"""WD-DS: two entropy columns -> sampling probabilities -> the active set.

N = examples. Everything is a pass over columns: ten million examples take seconds and less than 1 GiB.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from weakdriven.errors import UserError

logger = logging.getLogger(__name__)

Ids = Sequence[str] | pa.Array | pa.ChunkedArray
Scores = tuple[Ids, ArrayLike]
"""One model's scores: the examples' ids and, in the same order, their entropies."""

FORMULAS = ("paper", "official")
ROUNDING = 1e-5
"""How far below zero an entropy may be. Computed from float32 logits near 30 (spacing 2e-6), as log-sum-exp less mean
logit, that of a model without doubt misses zero by a few spacings; anything lower is not an entropy."""
RANKED_ROWS = 1_000_000


def selection_weights(
    weak_entropy_N: ArrayLike,
    strong_entropy_N: ArrayLike,
    *,
    rows: ArrayLike | None = None,
    consolidation: float = 0.1,
    difficulty: float = 0.8,
    repair: float = 0.1,
    formula: str = "paper",
) -> np.ndarray:
    """The three weighted terms, one row each (3, N): consolidation, difficulty, repair.

    `paper` is the printed equation. `official` is what the authors' code computes: the first weight multiplies the
    weak entropy, the second the fall, and each term is divided by its own sum over the data.

    Args:
        rows: Only these examples, as columns of the result; sums over the data are still those of all N.

    >>> selection_weights([1, 0.5, 0.8, 0], [0.4, 0.6, 0.8, 0], rows=[0, 1]).round(6).tolist()
    [[0.06, 0.0], [0.32, 0.48], [0.0, 0.01]]
    """
    weights_3 = _checked_weights(consolidation, difficulty, repair)
    terms_3N = _weighted_terms(*_entropies(weak_entropy_N, strong_entropy_N), weights_3, formula)
    return terms_3N if rows is None else terms_3N[:, np.asarray(rows)]


def selection_probabilities(
    weak_entropy_N: ArrayLike,
    strong_entropy_N: ArrayLike,
    *,
    consolidation: float = 0.1,
    difficulty: float = 0.8,
    repair: float = 0.1,
    formula: str = "paper",
) -> np.ndarray:
    """Chance of each example in one draw; uniform, with a warning, if every example's weight is zero.

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
    """Row numbers drawn with replacement, sorted; without repeats if `dedup`.

    The rows are those of `np.random.default_rng(seed).choice(N, size, p=probabilities_N)`.

    Args:
        multiplier: Draws per example, above 0.

    >>> draw_active([0.251656, 0.324503, 0.423841, 0], seed=0, dedup=False).tolist()
    [0, 0, 1, 2]
    """
    cumulative_N = np.cumsum(_checked_probabilities(probabilities_N))
    cumulative_N /= cumulative_N[-1]
    uniform = np.random.default_rng(seed).random(draws(len(cumulative_N), multiplier))
    uniform.sort()  # sequential memory access in the search: ten times faster at ten million
    rows = cumulative_N.searchsorted(uniform, side="right")
    return rows[_first_of_each(rows)] if dedup else rows


def align_scores(weak: Scores, strong: Scores, ids: Ids) -> tuple[np.ndarray, np.ndarray]:
    """Entropy columns of both models in the order of `ids`; scores that do not fit the data are an error.

    Args:
        ids: The data's, each once.

    >>> align_scores((["a", "b"], [1.0, 2.0]), (["b", "a"], [20.0, 10.0]), ["a", "b"])
    (array([1., 2.]), array([10., 20.]))
    """
    column = _id_column(ids)
    return _align("weak", weak, column), _align("strong", strong, column)


def selection_counters(
    weak_entropy_N: ArrayLike,
    strong_entropy_N: ArrayLike,
    probabilities_N: np.ndarray,
    active: np.ndarray,
    *,
    consolidation: float,
    difficulty: float,
    repair: float,
    formula: str,
    multiplier: float,
) -> dict[str, Any]:
    """What is logged once about a selection.

    Above a million examples the rank correlation of the two formulas is that of a million random rows, the same ones
    each time; its standard error is then about 0.001.

    Args:
        active: Sorted, as `draw_active` gives them.
    """
    weights_3 = _checked_weights(consolidation, difficulty, repair)
    weak_N, strong_N = _entropies(weak_entropy_N, strong_entropy_N)
    p, count = probabilities_N, draws(len(probabilities_N), multiplier)
    sums_3 = _weighted_terms(weak_N, strong_N, weights_3, formula).sum(1)
    shares_3 = (sums_3 / max(sums_3.sum(), 1e-300)).tolist()
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
        "formula_rank_correlation": _formula_rank_correlation(weak_N, strong_N, p, weights_3, formula),
    }


def draws(examples: int, multiplier: float) -> int:
    if not 0 < multiplier < float("inf"):
        raise UserError(f"multiplier is {multiplier}, expected draws per example above 0; 1.0 draws as many as rows.")
    return max(round(multiplier * examples), 1)


def expected_unique(probabilities_N: np.ndarray, count: int) -> float:
    """Expected number of different rows among `count` draws with replacement.

    >>> round(expected_unique(np.full(4, 0.25), 4), 6)
    2.734375
    """
    with np.errstate(divide="ignore"):  # a sure row: its chance of being missed has logarithm -inf
        missed_N = np.log1p(-probabilities_N)
    missed_N *= count
    return -float(np.expm1(missed_N, out=missed_N).sum())


def rank_correlation(a_N: np.ndarray, b_N: np.ndarray) -> float | None:
    """Spearman's correlation with tied values at their mean rank; None where one side does not vary."""
    ranks = [_mean_ranks(x) for x in (a_N, b_N)]
    if min(r.std() for r in ranks) == 0:
        return None
    return float(np.corrcoef(np.stack(ranks))[0, 1])


def _mean_ranks(x_N: np.ndarray) -> np.ndarray:
    _, group_N, count = np.unique(x_N, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[group_N]


def _weighted_terms(weak_N: np.ndarray, strong_N: np.ndarray, weights_3: tuple[float, ...], formula: str) -> np.ndarray:
    """One row for each of the three terms: (3, N)."""
    if formula not in FORMULAS:
        raise UserError(
            f"formula is {formula!r}, expected 'paper' (the printed equation) or 'official' (the authors' code); "
            "choose one of the two."
        )
    terms_3N = np.empty((3, len(weak_N)))
    fall_N, level_N, rise_N = (terms_3N[row] for row in ((0, 1, 2) if formula == "paper" else (1, 0, 2)))
    level_N[:] = strong_N if formula == "paper" else weak_N
    np.subtract(weak_N, strong_N, out=fall_N)
    np.subtract(strong_N, weak_N, out=rise_N)
    np.maximum(terms_3N, 0, out=terms_3N)
    for weight, term_N in zip(weights_3, terms_3N, strict=True):
        total = term_N.sum()
        term_N *= weight
        if formula == "official" and total > 0:
            term_N /= total
    return terms_3N


def _formula_rank_correlation(
    weak_N: np.ndarray, strong_N: np.ndarray, probabilities_N: np.ndarray, weights_3: tuple[float, ...], formula: str
) -> float | None:
    other_N = _weighted_terms(weak_N, strong_N, weights_3, "official" if formula == "paper" else "paper").sum(0)
    other_N /= other_N.sum() or 1.0  # probabilities on both sides, so that both tie where they round
    if len(other_N) <= RANKED_ROWS:
        return rank_correlation(probabilities_N, other_N)
    # random, not evenly spaced: in interleaved data a fixed step could pick one source only
    rows = np.random.default_rng(0).integers(len(other_N), size=RANKED_ROWS)
    return rank_correlation(probabilities_N[rows], other_N[rows])


def _first_of_each(rows_sorted: np.ndarray) -> np.ndarray:
    """True where a value occurs for the first time."""
    return np.append(True, rows_sorted[1:] != rows_sorted[:-1])


def _align(name: str, scores: Scores, ids: pa.ChunkedArray) -> np.ndarray:
    scored, entropy = _id_column(scores[0]), np.asarray(scores[1], np.float64)
    if len(scored) != len(entropy):
        raise UserError(
            f"The {name} model's scores hold {len(scored)} ids and {len(entropy)} entropies, expected one of each per "
            "example; remove its entropy folder and run again."
        )
    entropy_N = entropy if scored.equals(ids) else _by_id(name, scored, entropy, ids)
    finite_N = np.isfinite(entropy_N)
    if not finite_N.all():
        raise UserError(
            f"The {name} model's entropy is not finite for {np.count_nonzero(~finite_N)} examples (first: "
            f"{_name_ids(ids, ~finite_N)}); look at these examples and the model's weights, then run again."
        )
    return entropy_N


def _by_id(name: str, scored: pa.ChunkedArray, entropy: np.ndarray, ids: pa.ChunkedArray) -> np.ndarray:
    """Each score in its example's row: every row needs one score, and every score a row."""
    place = pc.call_function("index_in", [scored], pc.SetLookupOptions(ids))
    again = "remove its entropy folder and run again."
    rows = place.drop_null().to_numpy()
    count_N = np.bincount(rows, minlength=len(ids))
    if (count_N > 1).any():
        raise UserError(f"The {name} model's scores hold id {_name_ids(ids, count_N > 1, 1)} twice; {again}")
    if missing := np.count_nonzero(count_N == 0):
        first = _name_ids(ids, count_N == 0, 1)
        raise UserError(f"The {name} model's scores lack {missing} examples of the data (first: id {first}); {again}")
    if place.null_count:
        first = _name_ids(scored, place.is_null().to_numpy(), 1)
        raise UserError(
            f"The {name} model's scores hold {place.null_count} examples that the data does not have (first: id "
            f"{first}), so they are of other data; {again}"
        )
    entropy_N = np.empty(len(ids))
    entropy_N[rows] = entropy
    return entropy_N


def _id_column(ids: Ids) -> pa.ChunkedArray:
    """Large strings, so that columns from files and from lists compare, however long they are."""
    column: Any = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else pa.array(list(ids))
    column = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    return column.cast(pa.large_string())


def _name_ids(ids: pa.ChunkedArray, chosen_N: np.ndarray, most: int = 5) -> str:
    return ", ".join(repr(ids[row].as_py()) for row in np.flatnonzero(chosen_N)[:most].tolist())


def _checked_weights(consolidation: float, difficulty: float, repair: float) -> tuple[float, ...]:
    weights = {"consolidation": consolidation, "difficulty": difficulty, "repair": repair}
    for name, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise UserError(f"{name} is {weight}, expected a weight of at least 0; 0 leaves its term out.")
    if not any(weights.values()):
        raise UserError("consolidation, difficulty and repair are all 0, so nothing could be drawn; raise one of them.")
    return tuple(weights.values())


def _checked_probabilities(probabilities: ArrayLike) -> np.ndarray:
    p_N = _column("probabilities", probabilities)
    if (low := p_N.min()) < 0:
        raise UserError(
            f"The probabilities are negative in {_name_rows(p_N < 0)}, as low as {low:.3g}, expected at least 0; "
            "make them with selection_probabilities."
        )
    precision = getattr(probabilities, "dtype", np.dtype(np.float64))
    tolerance = np.finfo(precision if precision in (np.float16, np.float32) else np.float64).eps ** 0.5  # numpy's own
    if abs((total := p_N.sum()) - 1) > tolerance:
        raise UserError(f"The probabilities sum to {total:.9g}, expected 1; divide them by their sum.")
    return p_N


def _entropies(weak: ArrayLike, strong: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    weak_N, strong_N = _column("weak entropies", weak), _column("strong entropies", strong)
    if len(weak_N) != len(strong_N):
        raise UserError(
            f"There are {len(weak_N)} weak and {len(strong_N)} strong entropies, expected one of each per example; "
            "score the same data with both models."
        )
    return _not_negative("weak", weak_N), _not_negative("strong", strong_N)


def _not_negative(name: str, entropy_N: np.ndarray) -> np.ndarray:
    low = entropy_N.min()
    if low < -ROUNDING:
        raise UserError(
            f"The {name} entropies are negative in {_name_rows(entropy_N < -ROUNDING)}, as low as {low:.3g}, but an "
            "entropy is never below 0; pass entropies in nats, not log-likelihoods or differences."
        )
    return np.maximum(entropy_N, 0) if low < 0 else entropy_N


def _column(name: str, values: ArrayLike) -> np.ndarray:
    """Finite float64 numbers, one per example."""
    try:
        column_N = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"The {name} are not a column of numbers ({error}); pass one number per example.") from error
    if column_N.ndim != 1:
        raise UserError(f"The {name} have shape {column_N.shape}, expected one dimension; pass one number per example.")
    if not len(column_N):
        raise UserError(f"The {name} are empty, expected one number per example; pass at least one example.")
    with np.errstate(invalid="ignore"):
        finite = np.isfinite([column_N.min(), column_N.max()]).all()  # a NaN is both
    if not finite:
        bad = _name_rows(~np.isfinite(column_N))
        raise UserError(f"The {name} are not finite in {bad}, expected numbers; mend or leave out these rows.")
    return column_N


def _name_rows(chosen_N: np.ndarray) -> str:
    rows = np.flatnonzero(chosen_N)
    return f"{len(rows)} of {len(chosen_N)} rows (first: {', '.join(map(str, rows[:5].tolist()))})"
