"""Numbers that the paper derives from norms of logits and from probabilities of examples (paper App. B, D and Sec. 4).

T = tokens, V = vocabulary, N = examples. `sensitivity_ratio` is the alpha of App. D, not the alpha of the selection.
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
    """Compute the norm of each row of logits minus its mean: sqrt(V) * standard deviation, invariant to shifts.

    >>> centered_norm(torch.tensor([[4.0, 1, 0, -1], [2, 1.5, 0.5, 0]])).tolist()
    [3.7416573867739413, 1.5811388300841898]
    """
    z_TV = in_rows(logits_TV)
    return (z_TV - z_TV.mean(1, keepdim=True)).norm(dim=1)


def norm_parts(logits_TV: Logits) -> Check:
    """Check that the norm of logits is sqrt(V mean^2 + centered norm^2).

    For means over many tokens, as in a table, the left side is at least the right one, because norms are convex.
    """
    z_TV = in_rows(logits_TV)
    right_T = torch.hypot(math.sqrt(z_TV.shape[1]) * z_TV.mean(1), centered_norm(z_TV))
    length_T = z_TV.norm(dim=1)
    return identity(length_T, right_T, 1 + length_T)


def sensitivity_ratio(strong_norm: float, weak_norm: float) -> float:
    """Estimate, as the paper does from centered norms, how much more the strong logits respond to a step.

    This is an assumption, not a result: it stands for the ratio of g'Kg of the two models, where K is the Gram matrix
    of the Jacobian, and no norm of logits determines that ratio.

    >>> round(sensitivity_ratio(1240.10, 1191.33), 6)
    1.083551
    """
    return (strong_norm / weak_norm) ** 2


def crossover(ratio: float) -> float:
    """Return the strong weight at which both models contribute equally to the first-order fall of the mixed loss.

    >>> round(crossover(1.083551), 6)
    0.489971
    """
    return 1 / (1 + math.sqrt(ratio))


def first_order_rate(strong_weight: float, ratio: float) -> float:
    """Return the rate at which a step lowers the mixed loss, relative to the weak model alone. Paper: S(lambda).

    The residual P_mix - onehot(y) is held fixed, as in the paper. In fact it changes with the weight, often by more
    than S; `sgd_step` includes both.

    >>> round(first_order_rate(0.5, 1.083551), 6)
    0.520888
    """
    return (1 - strong_weight) ** 2 + ratio * strong_weight**2


def slowest_weight(ratio: float) -> float:
    """Return the strong weight at which `first_order_rate` is smallest; there, the rate is r / (1 + r).

    For ratios near 1, the crossover is close to it, and the rate is largest at an end, with one model alone. So it is
    no prediction that the crossover (0.490) is near the best weights of the paper's sweep (0.42 to 0.50): by the rate
    from which it is derived, these weights are the slowest.

    >>> round(slowest_weight(1.083551), 6)
    0.47995
    """
    return 1 / (1 + ratio)


class UniqueRows(NamedTuple):
    """The number of distinct examples in draws with replacement."""

    expected: float
    deviation: float
    """Standard deviation, to leading order in N."""
    fraction: float
    """Expected number as a share of the draws."""
    uniform_fraction: float
    """The same if all examples were equally likely, which is the maximum."""

    @property
    def holds(self) -> bool:
        return self.fraction <= self.uniform_fraction * (1 + 1e-12)


def unique_rows(probabilities_N: ArrayLike, draws: int | None = None) -> UniqueRows:
    """Compute the number of distinct rows; each row is missed with probability (1 - p)^draws.

    N draws with uniform weights give 1 - 1/e of the rows. The paper's 123 steps are 56.4 to 56.9% of 111,657 rows, so
    its weights were uneven; uniform weights would give 137 steps.

    Args:
        draws: Number of draws (default: the number of examples).

    >>> found = unique_rows(np.full(1000, 1 / 1000))
    >>> round(found.expected, 1), round(found.deviation, 1)
    (632.3, 9.9)
    """
    p_N = np.asarray(probabilities_N, dtype=np.float64)
    if p_N.ndim != 1 or not len(p_N) or not p_N.min() >= 0 or abs(p_N.sum() - 1) > 1e-6:
        raise UserError(
            "Expected probabilities, one for each example, at least 0 and 1 in sum; divide them by their sum."
        )
    count = len(p_N) if draws is None else draws
    if count < 1:
        raise UserError(f"draws is {draws}; expected 1 or more.")
    with np.errstate(divide="ignore"):  # an example of probability 1 is never missed: log 0 is -inf
        missed_N, missed_uniform = (np.exp(count * np.log1p(-np.minimum(p, 1))) for p in (p_N, 1 / len(p_N)))
    variance = (missed_N * (1 - missed_N)).sum() - count * (p_N * missed_N).sum() ** 2
    expected = float((1 - missed_N).sum())
    uniform = len(p_N) * (1 - float(missed_uniform))
    return UniqueRows(expected, math.sqrt(max(float(variance), 0.0)), expected / count, uniform / count)


def optimizer_steps(rows: int, batch_size: int) -> int:
    """Return the steps of an epoch without its incomplete last batch; at least one.

    >>> optimizer_steps(111_657, 512), optimizer_steps(111_657, 256)
    (218, 436)
    """
    return max(rows // batch_size, 1)


def percent_change(before: float, after: float) -> float:
    """Return the change of a value in percent.

    >>> round(percent_change(2.09, 0.90), 1)
    -56.9
    """
    return 100 * (after - before) / before
