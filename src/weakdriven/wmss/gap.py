"""Watches the losses of both models: logs their means, detects divergence and a strong model that falls behind."""

import math
from collections import deque
from itertools import pairwise
from statistics import mean, stdev
from typing import Any

from weakdriven.errors import UserError
from weakdriven.losses.mixed_ce import MixStatistics
from weakdriven.training.callbacks import REMEDY

SUMS = ("num_tokens", "tokens", *MixStatistics._fields)
"""Sums over micro-batches and ranks: all tokens, supervised tokens, and statistics of the supervised tokens."""
MEAN_LOGITS = ("strong_mean_logit", "weak_mean_logit")
"""Sums that follow `SUMS` at logged steps: each model's mean logit over the vocabulary."""


def means(sums: list[float]) -> dict[str, float]:
    """Compute per-token means of `SUMS`, without those of a model that did not run.

    >>> means([9, 4, 2.0, 3.0, math.nan, 1, 1, math.nan, 2, 2, math.nan])["strong_gap"]
    0.25
    """
    _, tokens, *totals = sums
    found = {name: total / max(tokens, 1) for name, total in zip(MixStatistics._fields, totals, strict=True)}
    found["margin_share"] = found.pop("margin_tokens")
    found["strong_gap"] = found["strong_loss"] - found["mixed_loss"]
    return {"tokens": tokens, **{name: value for name, value in found.items() if not math.isnan(value)}}


def mean_logits(sums: list[float]) -> dict[str, float]:
    """Compute per-token means of those `MEAN_LOGITS` that were measured.

    >>> mean_logits([9, 4, *[0.0] * 9, -8.0, math.nan])
    {'strong_mean_logit': -2.0}
    """
    found = zip(MEAN_LOGITS, sums[len(SUMS) :], strict=True)
    return {name: total / max(sums[1], 1) for name, total in found if not math.isnan(total)}


def refuse_divergence(step: int, losses: dict[str, float], norms: dict[str, float]) -> None:
    """Raise an error if a cross-entropy or gradient norm is not finite, before the optimizer step."""
    for what, values in (("cross-entropy", losses), ("gradient norm", norms)):
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad := [name for name in bad if name != "mixed"] or bad:
            owners = {name: name if name == "mixed" else f"{name} model's" for name in bad}
            found = " and ".join(f"the {owner} {what} is {values[name]}" for name, owner in owners.items())
            rest = ", ".join(f"{name}: {value:.4g}" for name, value in values.items() if math.isfinite(value))
            other = f" ({rest})" if rest else ""
            raise UserError(f"Training diverged at step {step}: {found}{other}. The step was not taken. {REMEDY}")


class GapWatch:
    """Reports once when the strong model alone falls further and further behind the mixture.

    The gap is the cross-entropy of the strong model alone minus that of the mixture, averaged over windows of steps. It
    grows if each of the last windows is above the one before, and the last window is above `LEAST` and, by more than
    noise, above the first.
    """

    WINDOW, WINDOWS, LEAST = 20, 4, 0.05
    WARNING = (
        "The strong model alone falls behind the mixture: its cross-entropy is {gap:.3f} above the mixed one and "
        "rising, so it learns to rely on the weak model, which is discarded. Let the mixture end in the "
        "strong model (strong_weight_end=1.0), or add its own loss (strong_anchor=0.5)."
    )

    def __init__(self):
        self.current: list[float] = []
        self.means: deque[float] = deque(maxlen=self.WINDOWS)
        self.reported = False

    def state(self) -> dict[str, Any]:
        """Return JSON values for `restore` in a resumed run."""
        return {"current": self.current, "means": list(self.means), "told": self.reported}

    def restore(self, state: dict[str, Any]) -> None:
        self.current, self.reported = list(state["current"]), state["told"]
        self.means.extend(state["means"])

    def grows(self, gap: float) -> bool:
        """Add the gap of one optimizer step; return True once, when it has kept growing."""
        if self.reported:
            return False
        self.current.append(gap)
        if len(self.current) < self.WINDOW:
            return False
        self.means.append(mean(self.current))
        noise = 5 * stdev(self.current) / math.sqrt(self.WINDOW)
        self.current = []
        first, last = self.means[0], self.means[-1]
        rising = len(self.means) == self.WINDOWS and all(a < b for a, b in pairwise(self.means))
        self.reported = rising and last > self.LEAST and last - first > noise
        return self.reported
