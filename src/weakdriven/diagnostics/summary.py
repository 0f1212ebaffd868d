"""Per-token values -> means with errors, and changes as the paper prints them. T = tokens."""

import math
from typing import Any

import numpy as np


def summarise(value_T: np.ndarray, example_T: np.ndarray) -> dict[str, Any]:
    """Mean over tokens, its standard error, and how many tokens had no finite value and were left out.

    Tokens of one example are not independent, so the error is that of a mean over clusters.

    >>> summarise(np.array([1.0, 3.0, np.nan]), np.array([0, 1, 1]))
    {'mean': 2.0, 'error': 1.0, 'left_out': 1}
    """
    finite_T = np.isfinite(value_T)
    kept, example = value_T[finite_T], example_T[finite_T]
    left_out = int(len(value_T) - len(kept))
    if not len(kept):
        return {"mean": None, "error": None, "left_out": left_out}
    mean = kept.mean()
    _, place = np.unique(example, return_inverse=True)
    deviation = np.bincount(place, kept - mean)
    clusters = len(deviation)
    error = math.sqrt(clusters / (clusters - 1) * (deviation**2).sum()) / len(kept) if clusters > 1 else math.nan
    return {"mean": gap(float(mean)), "error": gap(error), "left_out": left_out}


def gap(value: float | None) -> float | None:
    """The value, or None where it is no finite number: JSON has no NaN."""
    return value if value is not None and math.isfinite(value) else None


def change(before: float | None, after: float | None) -> dict[str, float | None]:
    """Difference, and as a share of the value before, as the paper's tables print it.

    >>> [round(value, 3) for value in change(-26.63, -35.75).values()]
    [-9.12, 0.342]
    """
    if before is None or after is None:
        return {"difference": None, "relative": None}
    difference = after - before
    return {"difference": difference, "relative": difference / before if before else None}
