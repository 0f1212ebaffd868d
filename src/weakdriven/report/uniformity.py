"""Measure how far the draw of a selection (WD-DS) is from a uniform draw. N = examples."""

from dataclasses import dataclass

import numpy as np

from weakdriven.report.format import percent, share_words

CLOSE, FAR = 0.1, 0.25
"""Total variation distances: a draw below the first is called close to uniform, from the second on far from it."""


@dataclass(frozen=True)
class Uniformity:
    """A draw compared with a uniform draw of the same size."""

    examples: int
    draws: int
    distance: float
    """Total variation distance: the share of the draws that a uniform draw would give to other examples."""
    effective: float
    """Effective number of examples, 1 / sum of p^2."""
    top_tenth: float
    """Share of the draws that go to the likeliest tenth of the examples; 0.1 in a uniform draw."""
    left_out: float
    """Share of the examples that were never drawn."""
    left_out_uniform: float
    """Expected share that a uniform draw leaves out."""


def uniformity(probability_N: np.ndarray, draws_N: np.ndarray, draws: int) -> Uniformity | None:
    """Compare the probabilities with uniform ones; None if they are damaged or all zero.

    >>> found = uniformity(np.array([0.4, 0.4, 0.1, 0.1]), np.array([1, 1, 0, 0]), 4)
    >>> round(found.distance, 3), round(found.effective, 2), found.left_out, round(found.left_out_uniform, 3)
    (0.3, 2.94, 0.5, 0.316)
    """
    count = len(probability_N)
    if not ((probability_N >= 0) & (probability_N <= 1)).all() or not probability_N.any():
        return None
    likeliest = np.sort(probability_N)[::-1][: max(1, round(count / 10))]
    return Uniformity(
        examples=count,
        draws=draws,
        distance=float(np.abs(probability_N - 1 / count).sum() / 2),
        effective=float(1 / np.square(probability_N).sum()),
        top_tenth=float(likeliest.sum()),
        left_out=float((draws_N == 0).mean()),
        left_out_uniform=(1 - 1 / count) ** draws,
    )


def uniformity_words(found: Uniformity) -> list[str]:
    """Describe how uniform the draw is, what it left out, and what to expect of the active set."""
    if found.distance < CLOSE:
        kind = "close to uniform"
        meaning = "The active set is nearly a random subset, so expect the effect of a random subset of its size."
    elif found.distance < FAR:
        kind = "somewhat uneven"
        meaning = "The entropies shift the draw, but chance still decides most of it."
    else:
        kind = "far from uniform"
        meaning = "The active set is a real choice: which examples are trained on depends on the entropies."
    effective = f"{found.effective:,.0f} of {found.examples:,} ({share_words(found.effective / found.examples)})"
    return [
        f"This draw is {kind}: its total variation distance from a uniform draw is {percent(found.distance)}.",
        f"The likeliest tenth of the examples gets {percent(found.top_tenth)} of the draws (uniform: 10.0%).",
        f"The effective number of examples is {effective}.",
        f"The draw left out {percent(found.left_out)} of the examples; a uniform draw of {found.draws:,} leaves out "
        f"{percent(found.left_out_uniform)} on average.",
        meaning,
    ]
