"""Summarize per-token values: means with errors, changes as the paper prints them, and shielding over training steps.

T = tokens.
"""

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.diagnose.gradients import crossover, sensitivity_ratio, step_share
from weakdriven.report.format import number

POINTS = 1000
"""Maximum of steps kept of a training log, evenly spaced."""
LOGGED = ("margin_share", "mixed_entropy", "strong_entropy", "weak_entropy", "strong_grad_norm", "weak_grad_norm")
DRIFTING = ("strong_mean_logit", "weak_mean_logit")
OF_ALL_TOKENS = ("largest", "smallest", "calibration_error")
BINS = 15


def summarise(value_T: np.ndarray, example_T: np.ndarray) -> dict[str, Any]:
    """Compute the mean over tokens, its standard error, and the number of tokens left out because they are not finite.

    Tokens of one example are not independent, so the error is computed for a mean over clusters.

    >>> summarise(np.array([1.0, 3.0, np.nan]), np.array([0, 1, 1]))
    {'mean': 2.0, 'error': 1.0, 'left_out': 1}
    """
    finite_T = np.isfinite(value_T)
    kept = value_T[finite_T]
    left_out = int(len(value_T) - len(kept))
    if not len(kept):
        return {"mean": None, "error": None, "left_out": left_out}
    _, place = np.unique(example_T[finite_T], return_inverse=True)
    deviation = np.bincount(place, kept - kept.mean())
    clusters = len(deviation)
    error = math.sqrt(clusters / (clusters - 1) * (deviation**2).sum()) / len(kept) if clusters > 1 else None
    return {"mean": number(float(kept.mean())), "error": number(error), "left_out": left_out}


def summarise_model(statistics: dict[str, np.ndarray], example_T: np.ndarray) -> dict[str, Any]:
    """Summarize one model: the columns of `logit_statistics`, the accuracy of its top token, and extremes of logits.

    The paper's maxima and minima must be extremes and not means, because they are bf16 numbers.
    """
    largest, smallest = (statistics[name][np.isfinite(statistics[name])] for name in ("max", "min"))
    rank_T = statistics["rank"]
    columns = statistics | {"top_right": np.where(np.isfinite(rank_T), rank_T == 1, np.nan)}
    return {
        "statistics": {name: summarise(value_T, example_T) for name, value_T in columns.items()},
        "largest": float(largest.max()) if len(largest) else None,
        "smallest": float(smallest.min()) if len(smallest) else None,
        "calibration_error": calibration_error(columns["max_probability"], columns["top_right"]),
    }


def calibration_error(confidence_T: np.ndarray, right_T: np.ndarray) -> float | None:
    """Compute the expected calibration error of the top token, over bins with equal numbers of tokens.

    Guo et al. (2017) use bins of equal width; most tokens of a trained model would be in the last bin.

    >>> round(calibration_error(np.repeat([0.5, 0.9], 30), np.array([1.0, 0.0] * 15 + [1.0] * 30)), 6)
    0.05
    """
    finite_T = np.isfinite(confidence_T)
    order = np.argsort(confidence_T[finite_T], kind="stable")
    surplus_T = (confidence_T - right_T)[finite_T][order]
    if not len(surplus_T):
        return None
    return float(sum(abs(one.sum()) for one in np.array_split(surplus_T, BINS)) / len(surplus_T))


def summarise_pair(
    pair: dict[str, np.ndarray],
    strong: dict[str, np.ndarray],
    weak: dict[str, np.ndarray],
    example_T: np.ndarray,
    strong_weight: float,
) -> dict[str, Any]:
    """Summarize a pair: the columns of `pair_statistics`, and values derived from their sums and both models' norms."""
    means = {name: summarise(value_T, example_T) for name, value_T in pair.items()}
    norms = [summarise(one["centered_norm"], example_T)["mean"] for one in (strong, weak)]
    ratio = math.nan if None in norms else sensitivity_ratio(*norms)
    sft, mixed = means["sft_gradient"]["mean"], means["mixed_gradient"]["mean"]
    relative = mixed / sft if sft and mixed is not None else math.nan
    counts = pair["hard_negatives"][np.isfinite(pair["hard_negatives"])]
    hard, shares = float(counts.sum()), {"strong": strong_weight, "weak": 1 - strong_weight}
    return {
        "statistics": means,
        "hard_negatives_median": float(np.median(counts)) if len(counts) else None,
        "amplified_share": float(np.nansum(pair["amplified"])) / hard if hard else None,
        "net_amplified_share": float(np.nansum(pair["net_amplified"])) / hard if hard else None,
        "gradient_over_sft": {model: number(share * relative) for model, share in shares.items()},
        "gradient_share": shares,
        "sensitivity_ratio": number(ratio),
        "crossover": number(crossover(ratio)),
        "strong_step_share": number(step_share(strong_weight, ratio)),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Compute the change of each statistic from one model's summary to another's."""
    values = [
        {name: value["mean"] for name, value in one["statistics"].items()} | {name: one[name] for name in OF_ALL_TOKENS}
        for one in (before, after)
    ]
    return {name: change(value, values[1][name]) for name, value in values[0].items()}


def change(before: float | None, after: float | None) -> dict[str, float | None]:
    """Return the difference, also relative to the value before, as the paper's tables print it.

    >>> [round(value, 3) for value in change(-26.63, -35.75).values()]
    [-9.12, 0.342]
    """
    if before is None or after is None:
        return {"difference": None, "relative": None}
    difference = after - before
    return {"difference": difference, "relative": difference / before if before else None}


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Read the mean logits and shielding that joint training logged; skip unreadable lines."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with suppress(ValueError):  # a killed run may leave a torn line
            row = json.loads(line)
            if "mixed_probability" in row:
                rows.append(step_values(row))
    return rows[:: max(math.ceil(len(rows) / POINTS), 1)]


def step_values(row: dict[str, Any]) -> dict[str, Any]:
    """
    >>> step_values({"step": 3, "mixed_probability": 0.75, "strong_grad_norm": 1.0, "weak_grad_norm": 3.0})
    {'step': 3, 'negative_mass_mixed': 0.25, 'strong_grad_norm': 1.0, 'weak_grad_norm': 3.0, 'strong_grad_share': 0.25}
    """
    found: dict[str, Any] = {"step": row.get("step")}
    for name in ("mixed", "strong"):
        if f"{name}_probability" in row:
            share = number(row[f"{name}_probability"])
            found[f"negative_mass_{name}"] = None if share is None else 1 - share
    found |= {name: number(row[name]) for name in (*LOGGED, *DRIFTING) if name in row}
    strong, weak = found.get("strong_grad_norm"), found.get("weak_grad_norm")
    if strong is not None and weak is not None and strong + weak > 0:
        found["strong_grad_share"] = strong / (strong + weak)
    return found
