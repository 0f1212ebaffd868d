"""The paper's statements about a training step on mixed logits: its effect and its curvature (paper App. D).

T = tokens, V = vocabulary, y = target.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from research.theory.checks import Check, Finding, Logits, Targets, bound, identity, mixture
from weakdriven.errors import UserError
from weakdriven.losses.mixed_ce import mixed_cross_entropy_reference

LARGEST_HESSIAN = 2048
"""Largest vocabulary for `hessian`, whose matrices have V x V entries for each token and pair of models."""


@dataclass(frozen=True, kw_only=True)
class Step(Finding):
    """One gradient step on the logits: the loss changes by its first-order estimate plus the effect of curvature.

    The slack is the exact change minus the predicted one; it is never negative, because the loss is convex.
    """

    strong_TV: Tensor
    """Change of the strong logits."""
    weak_TV: Tensor
    predicted_T: Tensor
    """First-order change of the mixed loss."""
    exact_T: Tensor
    highest_T: Tensor
    """The first-order change plus the most that curvature can add."""


def sgd_step(
    strong_TV: Logits,
    weak_TV: Logits,
    target_T: Targets,
    *,
    learning_rate: float,
    strong_weight: float = 0.5,
    freeze_weak: bool = False,
) -> Step:
    """Take one step with the logits as parameters: it moves a model by -learning_rate * weight * (P_mix - onehot(y)).

    To first order, the mixed loss changes by -learning_rate * (sum of squared weights) * |P_mix - onehot(y)|^2. Beyond
    that, it grows by at most a quarter of the squared step of the mixed logits, because the Hessian's eigenvalues are
    at most 1/2. The paper states the step for models, as an approximation: there, the Gram matrix of the model's
    Jacobian also moves other tokens, and the approximation takes that matrix to be the identity.
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    residual_TV = mix.mixed_TV.softmax(1) - mix.target_TV.double()
    weak_share = 0.0 if freeze_weak else 1 - strong_weight
    strong, weak = (-learning_rate * share * residual_TV for share in (strong_weight, weak_share))
    moved_TV = strong_weight * strong + (1 - strong_weight) * weak
    predicted_T = (residual_TV * moved_TV).sum(1)
    exact_T = mix.loss(mix.mixed_TV + moved_TV) - mix.loss(mix.mixed_TV)
    scale_T = mix.scale_T + moved_TV.abs().amax(1)
    highest_T = predicted_T + moved_TV.square().sum(1) / 4
    holds = bound(predicted_T, exact_T, scale_T).holds & bound(exact_T, highest_T, scale_T).holds
    return Step(
        holds=holds,
        slack=exact_T - predicted_T,
        strong_TV=strong,
        weak_TV=weak,
        predicted_T=predicted_T,
        exact_T=exact_T,
        highest_T=highest_T,
    )


class Curvature(NamedTuple):
    """The Hessian of the mixed loss; left sides are computed by autograd from the loss that we train with."""

    by_mixed: Check
    """(T, V, V) With respect to the mixed logits: diag(P_mix) - P_mix P_mix'."""
    across: Check
    """(T, V, V) With respect to weak and strong logits: strong_weight * (1 - strong_weight) times that."""
    eigenvalues: Check
    """(T, V) 0 (left) is at most each eigenvalue (right, ascending): the Hessian is positive semidefinite."""
    along_ones: Check
    """(T, V) The Hessian times the vector of ones is 0: a shift of all logits has no curvature."""

    @property
    def everywhere(self) -> bool:
        return all(check.everywhere for check in self)


def hessian(strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5) -> Curvature:
    """Check that the Hessian is positive semidefinite, is 0 along ones, and across models shrinks by both weights.

    It builds V x V matrices, so use few tokens and a small vocabulary; `shielding` takes any size.
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    if (size := mix.strong_TV.shape[1]) > LARGEST_HESSIAN:
        raise UserError(f"The Hessian over {size} tokens has {size**2:.2g} entries; use at most {LARGEST_HESSIAN}.")

    def loss(strong_V: Tensor, weak_V: Tensor, target: Tensor, weight: float) -> Tensor:
        return mixed_cross_entropy_reference(strong_V[None], weak_V[None], target[None], strong_weight=weight)

    def blocks(weight: float, first: Tensor, second: Tensor):
        each = torch.func.hessian(lambda s, w, y: loss(s, w, y, weight), argnums=(0, 1))
        return torch.func.vmap(each)(first, second, mix.target_T)

    p_TV = mix.mixed_TV.softmax(1)
    formula_TVV = torch.diag_embed(p_TV) - p_TV[:, :, None] * p_TV[:, None, :]
    found_TVV = blocks(1.0, mix.mixed_TV, mix.mixed_TV)[0][0]
    across_TVV = blocks(strong_weight, mix.strong_TV, mix.weak_TV)[1][0]
    eigenvalues_TV = torch.linalg.eigvalsh(formula_TVV)
    scale_T11 = mix.scale_T[:, None, None]
    return Curvature(
        identity(found_TVV, formula_TVV, scale_T11),
        identity(across_TVV, strong_weight * (1 - strong_weight) * formula_TVV, scale_T11),
        bound(torch.zeros_like(eigenvalues_TV), eigenvalues_TV, mix.scale_T1),
        identity(found_TVV.sum(2), torch.zeros_like(p_TV), mix.scale_T1),
    )


@dataclass(frozen=True, kw_only=True)
class Shielding(Finding):
    """The trace of the Hessian is between 2 P(y) (1 - P(y)) and (1 + P(y)) (1 - P(y)), with P of the mixture.

    The slack is the distance to the nearer bound.
    """

    trace_T: Tensor
    gradient_T: Tensor
    """Sum of |P_mix - onehot(y)|, which is 2 (1 - P(y))."""


def shielding(strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5) -> Shielding:
    """Check that the Hessian, and so the weak model's influence, vanishes as fast as the gradient.

    The paper shows that its limit is 0 as P_mix becomes onehot(y). The trace divided by the gradient's size is between
    P(y) and (1 + P(y)) / 2, so this ratio goes to 1, not 0: curvature does not vanish first, but learning as a whole
    fades, as in SFT. If P_mix becomes certain of a wrong token, the trace vanishes but the gradient does not.
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    p_TV, rest_T = mix.mixed_TV.softmax(1), mix.negative_mass(mix.mixed_TV)
    p_T = mix.at_target(p_TV)
    others_T = (p_TV * (1 - p_TV)).masked_fill(mix.target_TV, 0).sum(1)
    trace_T, gradient_T = p_T * rest_T + others_T, 2 * rest_T
    room_T = torch.minimum(trace_T - p_T * gradient_T, rest_T * (1 + p_T) - trace_T)
    holds = bound(torch.zeros_like(room_T), room_T, mix.scale_T).holds
    return Shielding(holds=holds, slack=room_T, trace_T=trace_T, gradient_T=gradient_T)
