"""Validation of a model: loss, perplexity and token accuracy over examples that no model was trained on.

S = seeds, P = examples. All are ratios of sums over examples; their intervals are those of a mean over examples.
"""

from typing import Any

import numpy as np

from weakdriven.eval.statistics import DRAWS, Floats, Scores, interval_of, ratio_values

CELLS = 20_000_000
"""Drawn examples of all draws together."""


def as_scores(sums_SP: Floats, tokens_P: Floats) -> Scores:
    """Sums over each example's tokens under several seeds, as values whose mean is that over tokens."""
    return {"validation": np.array([ratio_values(sums_P, tokens_P) for sums_P in sums_SP])}


def draws_for(examples: int) -> int:
    """Draws of a permutation test: 10,000, and fewer where there are more than 2,000 examples, but at least 1,000.

    >>> draws_for(100), draws_for(8000), draws_for(10**6)
    (10000, 2500, 1000)
    """
    return min(max(CELLS // examples, 1000), DRAWS)


def summarise(tokens_P: Floats, loss_SP: Floats, hits_SP: Floats) -> dict[str, Any]:
    """What is reported of a model, on average over seeds; `hits`: tokens that the model finds most probable.

    >>> found = summarise(np.array([3, 1]), np.array([[6.0, 2.0]]), np.array([[3, 0]]))
    >>> found["loss"], round(found["perplexity"], 3), found["token_accuracy"]
    (2.0, 7.389, 0.75)
    """
    found: dict[str, Any] = {"examples": len(tokens_P), "tokens": int(tokens_P.sum())}
    for name, sums_SP in (("loss", loss_SP), ("token_accuracy", hits_SP)):
        low, high = interval_of(as_scores(sums_SP, tokens_P))
        found[name] = float(sums_SP.mean(axis=0).sum() / tokens_P.sum())
        found[f"{name}_interval"] = [low, high]
    found["perplexity"] = float(np.exp(found["loss"]))
    return found
