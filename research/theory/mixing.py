"""The paper's statements about one mixed token, each as a check on any logits (paper Sec. 5 and App. C).

T = tokens, V = vocabulary, y = target. `strong_weight` is the paper's lambda. docs/background/theory.md has a figure of
each statement. If the paper's wording is false without a further condition, the function says so, and
`counterexamples.py` has logits that show it. All of this is about logits, not about how a model's parameters move them.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from research.theory.checks import Check, Finding, Logits, Targets, bound, identity, margins, mixture
from weakdriven.losses.mixed_ce import mixed_cross_entropy_reference


class BranchGradients(NamedTuple):
    """Checks of autograd's gradients of the loss that we train with (left) against the formula (right)."""

    strong: Check
    weak: Check


def branch_gradients(
    strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5
) -> BranchGradients:
    """Check that the gradient of a model's logits is its weight times P_mix - onehot(y).

    >>> found = branch_gradients([4.0, 1, 0, -1], [2, 1.5, 0.5, 0], 0)
    >>> [round(x, 6) for x in found.strong.left[0].tolist()]
    [-0.105647, 0.068528, 0.02521, 0.011908]
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    leaf, weak_leaf = (x.clone().requires_grad_() for x in (mix.strong_TV, mix.weak_TV))
    with torch.enable_grad():
        loss = mixed_cross_entropy_reference(leaf, weak_leaf, mix.target_T, strong_weight=strong_weight)
        strong, weak = torch.autograd.grad(loss, (leaf, weak_leaf))
    residual_TV = mix.mixed_TV.softmax(1) - mix.target_TV.double()
    return BranchGradients(
        identity(strong, strong_weight * residual_TV, mix.scale_T1),
        identity(weak, (1 - strong_weight) * residual_TV, mix.scale_T1),
    )


def mixed_margins(strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5) -> Check:
    """Check that the margin of the mixed logits is the same convex combination of the two models' margins."""
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    strong, weak, mixed = (margins(x, mix.target_T) for x in (mix.strong_TV, mix.weak_TV, mix.mixed_TV))
    return identity(mixed, strong_weight * strong + (1 - strong_weight) * weak, mix.scale_T1)


def log_odds(logits_TV: Logits, target_T: Targets) -> Check:
    """Check that log P(k) / P(y) is minus the margin of k, for any logits."""
    mix = mixture(logits_TV, logits_TV, target_T, 1.0)
    log_p_TV = mix.strong_TV.log_softmax(1)
    left = log_p_TV - mix.at_target(log_p_TV)[:, None]
    return identity(left, -margins(mix.strong_TV, mix.target_T), mix.scale_T1)


def shift_invariance(
    strong_TV: Logits,
    weak_TV: Logits,
    target_T: Targets,
    *,
    strong_shift: float,
    weak_shift: float,
    strong_weight: float = 0.5,
) -> Check:
    """Check that adding a number to all logits of a model, a different one for each, does not change log P_mix."""
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    moved = mixture(mix.strong_TV + strong_shift, mix.weak_TV + weak_shift, mix.target_T, strong_weight)
    return identity(moved.mixed_TV.log_softmax(1), mix.mixed_TV.log_softmax(1), moved.scale_T1 + mix.scale_T1)


def hard_negatives(strong_TV: Logits, weak_TV: Logits, target_T: Targets) -> Tensor:
    """Return the tokens that the weak model separates less from the target than the strong one. Paper: the set H."""
    return mixture(strong_TV, weak_TV, target_T, 0.5).narrowing_TV > 0


def relative_odds(strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5) -> Check:
    """Check that mixing raises a hard negative's odds against the target: strong log-odds (left) <= mixed ones (right).

    The paper says "larger" for any lambda in [0, 1]; at lambda = 1 the two are equal, so "at least" is checked. For
    tokens that are not hard negatives, the check always holds.
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    strong, mixed = (-margins(x, mix.target_T) for x in (mix.strong_TV, mix.mixed_TV))
    check = bound(strong, mixed, mix.scale_T1)
    return replace(check, holds=check.holds | (mix.narrowing_TV <= 0))


@dataclass(frozen=True, kw_only=True)
class NegativeMass(Finding):
    """Probability of all tokens except the target: mixing does not shrink it if one of the conditions is met.

    The slack is the mixed value minus the strong one.
    """

    strong_T: Tensor
    mixed_T: Tensor
    every_margin_T: Tensor
    """No weak margin exceeds the strong one: the condition of the paper's Theorem 1."""
    mean_margin_T: Tensor
    """The mean narrowing is not negative: the exact condition for all strong weights at once."""
    mean_narrowing_T: Tensor
    """Sum over k != y of P_strong(k) * (strong margin - weak margin)."""


def negative_mass(strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5) -> NegativeMass:
    """Theorem 1: if every weak margin is at most the strong one, then P_mix(y) <= P_strong(y).

    Without the condition, the statement can fail (`SURER_WEAK`), but the condition is not necessary (`TWO_SIDED`,
    `ONE_EXCEPTION`). A weaker condition is exact: log P_mix(y) is concave in the strong weight, and its slope at 1 is
    the sum over k of P_strong(k) * (strong margin - weak margin). So P_mix(y) <= P_strong(y) for *every* strong weight
    if and only if that sum is not negative. This condition is ours, not the paper's.

    >>> found = negative_mass([4.0, 1, 0, -1], [3, -4, -4, -4], 0)
    >>> found.every_margin_T.tolist(), round(found.strong_T.item(), 7), round(found.mixed_T.item(), 7)
    ([False], 0.0696295, 0.0131288)
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    narrowing_TV = mix.narrowing_TV
    mean_T = (mix.strong_TV.softmax(1) * narrowing_TV).sum(1)
    strong_T, mixed_T = mix.negative_mass(mix.strong_TV), mix.negative_mass(mix.mixed_TV)
    every_T, mean_met_T = (narrowing_TV >= 0).all(1), mean_T >= 0
    kept_T = bound(mix.negative_log_odds(mix.strong_TV), mix.negative_log_odds(mix.mixed_TV), mix.scale_T).holds
    return NegativeMass(
        holds=kept_T | ~(every_T | mean_met_T),
        slack=mixed_T - strong_T,
        strong_T=strong_T,
        mixed_T=mixed_T,
        every_margin_T=every_T,
        mean_margin_T=mean_met_T,
        mean_narrowing_T=mean_T,
    )


@dataclass(frozen=True, kw_only=True)
class Amplification(Finding):
    """Whether a token's gradient grows if and only if the condition on the target's probability is met.

    The slack is the logarithm of the factor: above 0 where the gradient grows.
    """

    grown_TV: Tensor
    condition_TV: Tensor
    factor_TV: Tensor
    """The token's gradient in mixed training, relative to that of the strong model alone."""
    target_ratio_T: Tensor
    """P_mix(y) / P_strong(y)."""
    threshold_TV: Tensor
    """The value that the target's ratio must reach."""
    hard_TV: Tensor
    """The hard negatives, about which the paper speaks; the equivalence holds for all tokens."""


def token_amplification(
    strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5
) -> Amplification:
    """Check: P_mix(k) >= P_strong(k) if and only if P_mix(y) / P_strong(y) >= exp(-(1 - strong_weight) * narrowing(k)).

    The paper's corollary says "if", for hard negatives. It is an equivalence, so a hard negative that fails the
    condition loses probability (`NOT_AMPLIFIED`). This is about the gradient of the *mixed* logits; for the strong
    model's own gradient, see `branch_amplification`.
    """
    return _amplification(strong_TV, weak_TV, target_T, strong_weight, share=1.0)


def branch_amplification(
    strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5
) -> Amplification:
    """Check: the strong gradient on token k is at least SFT's if and only if strong_weight * P_mix(k) >= P_strong(k).

    The paper compares P_mix(k) with P_strong(k), but the strong model receives only a share strong_weight of it. So the
    target's ratio must reach exp(-(1 - strong_weight) * narrowing(k)) / strong_weight: at 0.5, twice the paper's
    threshold (`NET_LOSS` is between the two). Adam ignores a factor that all tokens share; for Adam,
    P_mix(k) / P_strong(k) matters relative to the other tokens of the batch.

    >>> found = branch_amplification([4.0, 1, 0, -1], [2, 1.5, 0.5, 0], 0)
    >>> [round(x, 3) for x in found.factor_TV[0, 1:].tolist()]
    [1.479, 1.479, 1.9]
    """
    return _amplification(strong_TV, weak_TV, target_T, strong_weight, share=strong_weight)


def _amplification(
    strong_TV: Logits, weak_TV: Logits, target_T: Targets, strong_weight: float, share: float
) -> Amplification:
    """Compute both sides in logarithms, because probabilities may underflow."""
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    log_share = torch.tensor(share, dtype=torch.float64, device=mix.strong_TV.device).log()
    log_ratio_TV = mix.mixed_TV.log_softmax(1) - mix.strong_TV.log_softmax(1)
    log_threshold_TV = -(1 - strong_weight) * mix.narrowing_TV - log_share
    log_factor_TV, log_target_T = log_ratio_TV + log_share, mix.at_target(log_ratio_TV)
    grown_TV, condition_TV = log_factor_TV >= 0, log_target_T[:, None] >= log_threshold_TV
    tie_TV = identity(log_factor_TV, torch.zeros_like(log_factor_TV), mix.scale_T1).holds
    return Amplification(
        holds=(grown_TV == condition_TV) | tie_TV,
        slack=log_factor_TV,
        grown_TV=grown_TV,
        condition_TV=condition_TV,
        factor_TV=log_factor_TV.exp(),
        target_ratio_T=log_target_T.exp(),
        threshold_TV=log_threshold_TV.exp(),
        hard_TV=mix.narrowing_TV > 0,
    )


def convexity(strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5) -> Check:
    """Check that the mixed loss (left) is at most the same combination of the two models' own losses (right).

    Equivalently, P_mix(y) is at least the weighted geometric mean of the two probabilities. So the mixed loss never
    exceeds the larger of the two losses, and it can be below both (`BOTH_UNLIKELY`).
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    chord_T = strong_weight * mix.loss(mix.strong_TV) + (1 - strong_weight) * mix.loss(mix.weak_TV)
    return bound(mix.loss(mix.mixed_TV), chord_T, mix.scale_T)


def entry_gap_bound(strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5) -> Check:
    """Check a statement that is FALSE in general: the effect on each entry is bounded by |P_strong - P_weak|.

    Left |P_mix(k) - P_strong(k)|, right |P_weak(k) - P_strong(k)|. If the two models favour different tokens, a third
    one that both find unlikely rises (`BOTH_UNLIKELY`), even if it is the target. `total_variation_bound` is a reading
    of the paper's sentence that is true.
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    strong, weak, mixed = (x.softmax(1) for x in (mix.strong_TV, mix.weak_TV, mix.mixed_TV))
    return bound((mixed - strong).abs(), (weak - strong).abs(), mix.scale_T1)


def total_variation_bound(
    strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5
) -> Check:
    """Check that, summed over the vocabulary, P_mix is no further from P_strong than P_weak is.

    Distances are half the sum of |differences|, which bounds the change in probability of any set, such as the negative
    mass. This holds for all logits: as the strong weight falls, mass moves to tokens in the order of
    P_weak(k) / P_strong(k), and the tokens with P_mix(k) > P_strong(k) are the top of that order, so the distance can
    only grow. This is our reading of a sentence that the paper leaves open.
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    strong, weak, mixed = (x.softmax(1) for x in (mix.strong_TV, mix.weak_TV, mix.mixed_TV))
    return bound((mixed - strong).abs().sum(1) / 2, (weak - strong).abs().sum(1) / 2, mix.scale_T)
