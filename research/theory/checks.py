"""Shared by all checks: the result of a check, and the two models' logits as every check reads them.

T = tokens (positions with a target), V = vocabulary. Everything is float64, and only rounding errors are tolerated.
There are no tiles, so give at most some hundred tokens at a time: with a vocabulary of 150,000, each column of a result
takes 1.2 MB per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from weakdriven.errors import UserError

Logits: TypeAlias = Tensor | NDArray[np.floating] | Sequence[Any]
"""(T, V), or (V) for one token."""
Targets: TypeAlias = Tensor | NDArray[np.integer] | Sequence[int] | int

ROUNDING = 1e-12
"""Tolerance of identities and bounds in float64, for logits of size 1."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Whether a statement holds, for each token (T) or for each entry of the vocabulary (T, V)."""

    holds: Tensor
    slack: Tensor
    """Margin by which the statement holds, negative where it fails; for an identity, the distance of its sides."""

    @property
    def everywhere(self) -> bool:
        return bool(self.holds.all())


@dataclass(frozen=True, kw_only=True)
class Check(Finding):
    """Both sides of an identity or of a bound (left <= right, with slack right - left)."""

    left: Tensor
    right: Tensor


def identity(left: Tensor, right: Tensor, scale: Tensor) -> Check:
    """Check that left = right.

    Args:
        scale: Size of the logits, to which rounding is relative.
    """
    slack = (left - right).abs()
    return Check(holds=slack <= ROUNDING * scale, slack=slack, left=left, right=right)


def bound(left: Tensor, right: Tensor, scale: Tensor) -> Check:
    """Check that left <= right."""
    return Check(holds=right - left >= -ROUNDING * scale, slack=right - left, left=left, right=right)


@dataclass(frozen=True)
class Mixture:
    """Weak, strong and mixed logits of the same tokens."""

    strong_TV: Tensor
    weak_TV: Tensor
    mixed_TV: Tensor
    target_T: Tensor
    strong_weight: float

    @property
    def target_TV(self) -> Tensor:
        """True at each token's target."""
        return F.one_hot(self.target_T, self.strong_TV.shape[1]).bool()

    @property
    def scale_T(self) -> Tensor:
        return 1 + torch.maximum(self.strong_TV.abs(), self.weak_TV.abs()).amax(1)

    @property
    def scale_T1(self) -> Tensor:
        return self.scale_T[:, None]

    @property
    def narrowing_TV(self) -> Tensor:
        """Strong margin minus weak margin: how much closer the weak model brings a token to the target. Paper: Δm_k."""
        return margins(self.strong_TV, self.target_T) - margins(self.weak_TV, self.target_T)

    def at_target(self, values_TV: Tensor) -> Tensor:
        return values_TV.gather(1, self.target_T[:, None])[:, 0]

    def loss(self, logits_TV: Tensor) -> Tensor:
        """Compute the cross-entropy of each token."""
        return -self.at_target(logits_TV.log_softmax(1))

    def negative_mass(self, logits_TV: Tensor) -> Tensor:
        """Sum the probabilities of all tokens except the target; 1 - P(y) would lose small values."""
        return logits_TV.softmax(1).masked_fill(self.target_TV, 0).sum(1)

    def negative_log_odds(self, logits_TV: Tensor) -> Tensor:
        """Compute the log of negative mass / P(y), which orders tokens like the negative mass, however small it is."""
        return (-margins(logits_TV, self.target_T)).masked_fill(self.target_TV, -torch.inf).logsumexp(1)


def margins(logits_TV: Tensor, target_T: Tensor) -> Tensor:
    """Compute by how much the target's logit exceeds each token's; 0 at the target itself. Paper: m_k(z).

    >>> margins(torch.tensor([[4.0, 1, 0, -1]]), torch.tensor([0])).tolist()
    [[0.0, 3.0, 4.0, 5.0]]
    """
    return logits_TV.gather(1, target_T[:, None]) - logits_TV


def in_rows(logits_TV: Logits, device: torch.device | None = None) -> Tensor:
    return torch.atleast_2d(torch.as_tensor(logits_TV, dtype=torch.float64, device=device).detach())


def mixture(strong_TV: Logits, weak_TV: Logits, target_T: Targets, strong_weight: float) -> Mixture:
    """Check both models' logits and convert them to float64. A single row with one target counts as one token.

    Args:
        strong_TV, weak_TV: Finite logits, as tensors, arrays or lists.
        target_T: Token ids; positions without a target (-100) must be left out.
    """
    if not 0 <= strong_weight <= 1:
        raise UserError(f"strong_weight is {strong_weight}; it must be between 0 and 1.")
    strong = in_rows(strong_TV)
    weak = in_rows(weak_TV, strong.device)
    target = torch.atleast_1d(torch.as_tensor(target_T, device=strong.device)).long()
    if strong.shape != weak.shape or strong.ndim != 2 or target.shape != strong.shape[:1] or strong.shape[1] < 2:
        raise UserError(
            f"Strong logits have the shape {tuple(strong.shape)}, weak ones {tuple(weak.shape)}, targets "
            f"{tuple(target.shape)}; expected (T, V), (T, V) and (T), with V at least 2. Flatten batches, and cut both "
            "models to one vocabulary."
        )
    for name, logits in (("strong", strong), ("weak", weak)):
        if not logits.isfinite().all():
            row = int((~logits.isfinite()).any(1).nonzero()[0, 0])
            raise UserError(
                f"The {name} logits of token {row} are not finite; leave masked-out vocabulary entries out."
            )
    if len(target) and not 0 <= int(target.min()) <= int(target.max()) < strong.shape[1]:
        raise UserError(
            f"Targets go from {int(target.min())} to {int(target.max())}, expected 0 to {strong.shape[1] - 1}; leave "
            "positions without a target (-100) out, logits and all."
        )
    return Mixture(strong, weak, strong_weight * strong + (1 - strong_weight) * weak, target, strong_weight)
