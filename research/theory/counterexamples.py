"""Logits on which a sentence of the paper fails, or on which a condition of it turns out not to be needed.

Each is (strong logits, weak logits, target); `check(*CASE)` runs a check of `theory` on it.
"""

from math import log
from typing import NamedTuple


class Case(NamedTuple):
    strong_V: tuple[float, ...]
    weak_V: tuple[float, ...]
    target: int


TYPICAL = Case((4, 1, 0, -1), (2, 1.5, 0.5, 0), 0)
"""Refutes nothing: a weak model that is less sure on every token. At strong weight 0.5 the negative mass triples, from
0.0696 to 0.2113, and each negative's probability grows by 2.96 to 3.80, its strong-branch gradient by 1.48 to 1.90."""

SURER_WEAK = Case((4, 1, 0, -1), (3, -4, -4, -4), 0)
"""Refutes "mixing raises negative mass" without the margin condition: this weak model separates the target *more*, and
at strong weight 0.5 the negative mass falls from 0.0696 to 0.0131."""

TWO_SIDED = Case((4, 1, 0, -1), (2, -3, -3, 1), 0)
"""Refutes that the margin condition is needed, and that without it "mixing shrinks negative mass": two weak margins
exceed the strong ones, only token 3 is a hard negative, and yet the negative mass rises from 0.0696 to 0.0734. The
negatives' probabilities change by 0.366, 0.604 and 7.359."""

ONE_EXCEPTION = Case((4, 1, 0, -1), (2, 1.5, 0.5, -4), 0)
"""Refutes that the margin condition is needed for *all* strong weights: token 3 breaks it, but the strong model gives
that token so little that margins narrow on the mean, and mixing raises the negative mass at every strong weight."""

NOT_AMPLIFIED = Case((2, 1, 1, 0), (2, 1.2, 4, 0), 0)
"""Refutes that every hard negative gains: token 1 is one, but token 2 takes the mass, so token 1 loses probability. The
target's ratio 0.586 is below token 1's threshold 0.905 and above token 2's 0.223."""

NET_LOSS = Case((2, 1, 0, 0), (2, 1.5, 0, 0), 0)
"""Refutes that a larger P_mix(k) is a larger gradient for the strong model: P_mix(1) is 1.21 times P_strong(1), but
the strong branch receives only half of it, and so 0.60 of what SFT would give."""

BOTH_UNLIKELY = Case((log(0.98), log(0.01), log(0.01)), (log(0.01), log(0.98), log(0.01)), 2)
"""Refutes that on any token the effect of mixing is at most |P_strong - P_weak|: both models give token 2 a probability
of 0.01, so the bound says 0, and P_mix gives it 0.048."""
