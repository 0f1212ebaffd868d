"""WD-DS: two entropy columns -> sampling probabilities -> the active set. N = examples."""

import logging
from collections import Counter
from typing import Any

import numpy as np

from weakdriven.errors import UserError

logger = logging.getLogger(__name__)


def selection_weights(
    weak_entropy_N: np.ndarray,
    strong_entropy_N: np.ndarray,
    *,
    consolidation: float = 0.1,
    difficulty: float = 0.8,
    repair: float = 0.1,
    formula: str = "paper",
) -> np.ndarray:
    """The three weighted terms, one row each (3, N): consolidation, difficulty, repair.

    `paper` is the printed equation. `official` is what the authors' code computes: the first weight multiplies the
    weak entropy, the second the fall, and each term is divided by its own sum over the data.
    """
    change_N = strong_entropy_N - weak_entropy_N
    fall_N, rise_N = np.maximum(-change_N, 0), np.maximum(change_N, 0)
    if formula == "paper":
        return np.stack([consolidation * fall_N, difficulty * strong_entropy_N, repair * rise_N])
    terms = [(consolidation, weak_entropy_N), (difficulty, fall_N), (repair, rise_N)]
    return np.stack([weight * term / total if (total := term.sum()) > 0 else 0 * term for weight, term in terms])


def selection_probabilities(
    weak_entropy_N: np.ndarray,
    strong_entropy_N: np.ndarray,
    *,
    consolidation: float = 0.1,
    difficulty: float = 0.8,
    repair: float = 0.1,
    formula: str = "paper",
) -> np.ndarray:
    """Chance of each example in one draw; uniform, with a warning, if every weight is zero.

    >>> weak, strong = np.array([1, 0.5, 0.8, 0]), np.array([0.4, 0.6, 0.8, 0])
    >>> selection_probabilities(weak, strong).round(6).tolist()
    [0.251656, 0.324503, 0.423841, 0.0]
    """
    weights_3N = selection_weights(
        weak_entropy_N,
        strong_entropy_N,
        consolidation=consolidation,
        difficulty=difficulty,
        repair=repair,
        formula=formula,
    )
    weight_N = weights_3N.sum(0)
    if not np.isfinite(weight_N).all():
        rows = np.flatnonzero(~np.isfinite(weight_N))
        raise UserError(f"{len(rows)} examples have entropies that are not finite (first: row {rows[0]}).")
    if not weight_N.any():
        logger.warning("every selection weight is zero, so the active set is drawn uniformly")
        return np.full(len(weight_N), 1 / len(weight_N))
    return weight_N / weight_N.sum()


def draw_active(
    probabilities_N: np.ndarray, *, seed: int | list[int], multiplier: float = 1.0, dedup: bool = True
) -> np.ndarray:
    """Row numbers drawn with replacement, sorted; without repeats if `dedup`."""
    count = draws(probabilities_N, multiplier)
    drawn = np.random.default_rng(seed).choice(len(probabilities_N), size=count, p=probabilities_N)
    return np.unique(drawn) if dedup else np.sort(drawn)


def align_scores(
    weak: list[dict[str, Any]], strong: list[dict[str, Any]], ids: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Entropy columns of both models in the order of `ids`; a missing, repeated or non-finite score is an error."""
    columns = []
    for name, scores in (("weak", weak), ("strong", strong)):
        by_id = {score["id"]: score["entropy"] for score in scores}
        if len(by_id) != len(scores):
            [(twice, _)] = Counter(score["id"] for score in scores).most_common(1)
            raise UserError(
                f"The {name} model's scores hold id {twice!r} twice; remove its entropy folder and run again."
            )
        if missing := [i for i in ids if i not in by_id]:
            raise UserError(f"The {name} model's scores lack {len(missing)} examples (first: id {missing[0]!r}).")
        column = np.array([by_id[i] for i in ids])
        if not np.isfinite(column).all():
            bad = [i for i, value in zip(ids, column, strict=True) if not np.isfinite(value)]
            raise UserError(f"The {name} model's entropy is not finite for {len(bad)} examples (first: id {bad[0]!r}).")
        columns.append(column)
    return columns[0], columns[1]


def selection_counters(
    weak_entropy_N: np.ndarray,
    strong_entropy_N: np.ndarray,
    probabilities_N: np.ndarray,
    active: np.ndarray,
    *,
    consolidation: float,
    difficulty: float,
    repair: float,
    formula: str,
    multiplier: float,
) -> dict[str, Any]:
    """What METHODS asks to log once about a selection."""
    weights = {"consolidation": consolidation, "difficulty": difficulty, "repair": repair}
    terms_3 = selection_weights(weak_entropy_N, strong_entropy_N, formula=formula, **weights).sum(1)
    other = selection_probabilities(
        weak_entropy_N, strong_entropy_N, formula="official" if formula == "paper" else "paper", **weights
    )
    p, count = probabilities_N, draws(probabilities_N, multiplier)
    change_N = strong_entropy_N - weak_entropy_N
    return {
        "examples": len(p),
        "active": len(active),
        "formula": formula,
        "term_shares": dict(zip(weights, (terms_3 / max(terms_3.sum(), 1e-300)).tolist(), strict=True)),
        "p_min": p.min().item(),
        "p_max": p.max().item(),
        "p_cv": (p.std() / p.mean()).item(),
        "effective_sample_size": (1 / (p**2).sum()).item(),
        "expected_unique": expected_unique(p, count) / count,
        "realised_unique": len(np.unique(active)) / count,
        "falling": int((change_N < 0).sum()),
        "equal": int((change_N == 0).sum()),
        "rising": int((change_N > 0).sum()),
        "zero_weight": int((p == 0).sum()),
        "formula_rank_correlation": rank_correlation(p, other),
    }


def draws(probabilities_N: np.ndarray, multiplier: float) -> int:
    return max(round(multiplier * len(probabilities_N)), 1)


def expected_unique(probabilities_N: np.ndarray, count: int) -> float:
    """Expected number of different rows among `count` draws with replacement."""
    return float((1 - (1 - probabilities_N) ** count).sum())


def rank_correlation(a_N: np.ndarray, b_N: np.ndarray) -> float | None:
    """Spearman's correlation with tied values at their mean rank; None where one side does not vary."""
    ranks = [_mean_ranks(x) for x in (a_N, b_N)]
    if min(r.std() for r in ranks) == 0:
        return None
    return float(np.corrcoef(np.stack(ranks))[0, 1])


def _mean_ranks(x_N: np.ndarray) -> np.ndarray:
    _, group_N, count = np.unique(x_N, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[group_N]
