"""Validation metrics: loss, perplexity and token accuracy over examples that no model was trained on.

S = seeds, P = examples. Each metric is a ratio of sums over examples; its interval is that of a mean over examples.
"""

from typing import Any

import numpy as np

from weakdriven.eval.statistics import DRAWS, Floats, Scores, interval_of, ratio_values

CELLS = 20_000_000
"""Maximum size of the matrix of all draws."""


def as_scores(sums_SP: Floats, tokens_P: Floats) -> Scores:
    """Convert sums over each example's tokens into values whose mean is the mean over tokens."""
    return {"validation": np.array([ratio_values(sums_P, tokens_P) for sums_P in sums_SP])}


def draws_for(examples: int) -> int:
    """Choose the draws of a permutation test: 10,000; fewer for more than 2,000 examples, but at least 1,000.

    >>> draws_for(100), draws_for(8000), draws_for(10**6)
    (10000, 2500, 1000)
    """
    return min(max(CELLS // examples, 1000), DRAWS)


def summarise(tokens_P: Floats, loss_SP: Floats, hits_SP: Floats) -> dict[str, Any]:
    """Average the metrics over seeds; `hits` counts tokens to which the model gives the highest probability.

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
