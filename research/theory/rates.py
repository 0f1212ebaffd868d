"""Numbers that the paper derives from norms of logits and from probabilities of examples (paper App. B, D and Sec. 4).

T = tokens, V = vocabulary, N = examples. `sensitivity_ratio` is what App. D calls alpha, which is not the alpha of the
selection.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from research.theory.checks import Check, Logits, identity, in_rows
from weakdriven.errors import UserError


def centered_norm(logits_TV: Logits) -> Tensor:
    """Length of each row of logits less its mean: sqrt(V) times their standard deviation, whatever was added to all.

    >>> centered_norm(torch.tensor([[4.0, 1, 0, -1], [2, 1.5, 0.5, 0]])).tolist()
    [3.7416573867739413, 1.5811388300841898]
    """
    z_TV = in_rows(logits_TV)
    return (z_TV - z_TV.mean(1, keepdim=True)).norm(dim=1)


def norm_parts(logits_TV: Logits) -> Check:
    """The length of logits is made of two parts: sqrt(V mean^2 + centered norm^2).

    Of means over many tokens, as a table prints them, the left side is at least the right one: lengths are convex.
    """
    z_TV = in_rows(logits_TV)
    right_T = torch.hypot(math.sqrt(z_TV.shape[1]) * z_TV.mean(1), centered_norm(z_TV))
    length_T = z_TV.norm(dim=1)
    return identity(length_T, right_T, 1 + length_T)


def sensitivity_ratio(strong_norm: float, weak_norm: float) -> float:
    """How much more the strong branch's logits respond to a step, as the paper estimates it from centered norms.

    An assumption, not a result: it is meant to be the ratio of g'Kg of the two models, with K the Gram matrix of the
    Jacobian, and no norm of logits determines that.

    >>> round(sensitivity_ratio(1240.10, 1191.33), 6)
    1.083551
    """
    return (strong_norm / weak_norm) ** 2


def crossover(ratio: float) -> float:
    """Strong weight at which both branches contribute the same to the first-order fall of the mixed loss.

    >>> round(crossover(1.083551), 6)
    0.489971
    """
    return 1 / (1 + math.sqrt(ratio))


def first_order_rate(strong_weight: float, ratio: float) -> float:
    """Rate at which a step lowers the mixed loss, in units of its rate with the weak branch alone. Paper: S(lambda).

    The residual P_mix - onehot(y) is held fixed, as in the paper. In truth it changes with the weight, often by more
    than S does: `sgd_step` has both.

    >>> round(first_order_rate(0.5, 1.083551), 6)
    0.520888
    """
    return (1 - strong_weight) ** 2 + ratio * strong_weight**2


def slowest_weight(ratio: float) -> float:
    """Strong weight at which `first_order_rate` is smallest; the rate is r / (1 + r) there.

    For ratios near 1 the crossover lies next to it, and the rate is largest at an end, with one branch alone. So that
    the crossover (0.490) is near the best weights of the paper's sweep (0.42 to 0.50) is no prediction: by the rate
    from which it is derived these are the slowest ones.

    >>> round(slowest_weight(1.083551), 6)
    0.47995
    """
    return 1 / (1 + ratio)


class UniqueRows(NamedTuple):
    """How many different examples a draw with replacement holds."""

    expected: float
    deviation: float
    """Standard deviation, to leading order in N."""
    fraction: float
    """Expected, as a share of the draws."""
    uniform_fraction: float
    """The same if all examples were equally likely, which is the most there can be."""

    @property
    def holds(self) -> bool:
        return self.fraction <= self.uniform_fraction * (1 + 1e-12)


def unique_rows(probabilities_N: ArrayLike, draws: int | None = None) -> UniqueRows:
    """Each example is missed with probability (1 - p)^draws; uniform weights and N draws leave 1 - 1/e of the rows.

    The paper's 123 steps are 56.4 to 56.9% of 111,657 rows, so its weights were uneven; uniform ones give 137 steps.

    Args:
        draws: As many as there are examples, unless given.

    >>> found = unique_rows(np.full(1000, 1 / 1000))
    >>> round(found.expected, 1), round(found.deviation, 1)
    (632.3, 9.9)
    """
    p_N = np.asarray(probabilities_N, dtype=np.float64)
    if p_N.ndim != 1 or not len(p_N) or not p_N.min() >= 0 or abs(p_N.sum() - 1) > 1e-6:
        raise UserError("The probabilities are not one for each example, at least 0 and 1 in sum; divide by their sum.")
    count = len(p_N) if draws is None else draws
    if count < 1:
        raise UserError(f"draws is {draws}; expected 1 or more.")
    with np.errstate(divide="ignore"):  # a sure example: its chance of being missed has logarithm -inf
        missed_N, missed_uniform = (np.exp(count * np.log1p(-np.minimum(p, 1))) for p in (p_N, 1 / len(p_N)))
    variance = (missed_N * (1 - missed_N)).sum() - count * (p_N * missed_N).sum() ** 2
    expected = float((1 - missed_N).sum())
    uniform = len(p_N) * (1 - float(missed_uniform))
    return UniqueRows(expected, math.sqrt(max(float(variance), 0.0)), expected / count, uniform / count)


def optimizer_steps(rows: int, batch_size: int) -> int:
    """Steps of an epoch that leaves an incomplete last batch out, and at least one.

    >>> optimizer_steps(111_657, 512), optimizer_steps(111_657, 256)
    (218, 436)
    """
    return max(rows // batch_size, 1)


def percent_change(before: float, after: float) -> float:
    """Of a value in a table, against itself before.

    >>> round(percent_change(2.09, 0.90), 1)
    -56.9
    """
    return 100 * (after - before) / before
