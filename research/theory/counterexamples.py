"""Logits for which a statement of the paper fails, or for which one of its conditions is not needed.

Each case is (strong logits, weak logits, target); `check(*CASE)` runs a check of `theory` on it.
"""

from math import log
from typing import NamedTuple


class Case(NamedTuple):
    strong_V: tuple[float, ...]
    weak_V: tuple[float, ...]
    target: int


TYPICAL = Case((4, 1, 0, -1), (2, 1.5, 0.5, 0), 0)
"""Refutes nothing: the weak model is less sure on every token. At strong weight 0.5, the negative mass triples from
0.0696 to 0.2113. Each negative's probability grows by factors of 2.96 to 3.80, its strong gradient by 1.48 to 1.90."""

SURER_WEAK = Case((4, 1, 0, -1), (3, -4, -4, -4), 0)
"""Refutes "mixing raises negative mass" without the margin condition: this weak model separates the target *more*, and
at strong weight 0.5 the negative mass falls from 0.0696 to 0.0131."""

TWO_SIDED = Case((4, 1, 0, -1), (2, -3, -3, 1), 0)
"""Refutes that the margin condition is needed, and that without it "mixing shrinks negative mass". Two weak margins
exceed the strong ones and only token 3 is a hard negative, yet the negative mass rises from 0.0696 to 0.0734. The
negatives' probabilities change by factors of 0.366, 0.604 and 7.359."""

ONE_EXCEPTION = Case((4, 1, 0, -1), (2, 1.5, 0.5, -4), 0)
"""Refutes that the margin condition is needed for *all* strong weights. Token 3 violates it, but the strong model gives
that token so little probability that the mean margin narrows, and mixing raises the negative mass at every weight."""

NOT_AMPLIFIED = Case((2, 1, 1, 0), (2, 1.2, 4, 0), 0)
"""Refutes that every hard negative gains: token 1 is one, but loses probability because token 2 takes the mass. The
target's ratio 0.586 is below token 1's threshold 0.905 and above token 2's 0.223."""

NET_LOSS = Case((2, 1, 0, 0), (2, 1.5, 0, 0), 0)
"""Refutes that a larger P_mix(k) means a larger gradient for the strong model. P_mix(1) is 1.21 times P_strong(1), but
the strong model receives only half of it, which is 0.60 of its gradient in SFT."""

BOTH_UNLIKELY = Case((log(0.98), log(0.01), log(0.01)), (log(0.01), log(0.98), log(0.01)), 2)
"""Refutes that the effect of mixing on a token is at most |P_strong - P_weak|. Both models give token 2 a probability
of 0.01, so the bound is 0, but P_mix gives it 0.048."""
