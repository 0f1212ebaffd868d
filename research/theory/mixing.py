"""The paper's statements about one mixed token, each as a check on logits that you give (paper Sec. 5 and App. C).

T = tokens, V = vocabulary, y = target. `strong_weight` is the paper's lambda; docs/background/theory.md shows each in a
figure. Where the paper's wording is false without a further condition, the function says so and `counterexamples.py`
has the logits. All of it is about logits: how far a model's parameters move them is not decided here.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from research.theory.checks import Check, Finding, Logits, Targets, bound, identity, margins, mixture
from weakdriven.losses.mixed_ce import mixed_cross_entropy_reference


class BranchGradients(NamedTuple):
    """Each a check of what autograd finds in the loss we train with (left) against the formula (right)."""

    strong: Check
    weak: Check


def branch_gradients(
    strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5
) -> BranchGradients:
    """By its logits, a branch's gradient is its weight times P_mix - onehot(y).

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
    """The margin of the mixed logits is the same convex combination of the two models' margins."""
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    strong, weak, mixed = (margins(x, mix.target_T) for x in (mix.strong_TV, mix.weak_TV, mix.mixed_TV))
    return identity(mixed, strong_weight * strong + (1 - strong_weight) * weak, mix.scale_T1)


def log_odds(logits_TV: Logits, target_T: Targets) -> Check:
    """log P(k) / P(y) is minus the margin of k, of any logits."""
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
    """Adding a number to all logits of one model, or another one to each, leaves log P_mix as it was."""
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    moved = mixture(mix.strong_TV + strong_shift, mix.weak_TV + weak_shift, mix.target_T, strong_weight)
    return identity(moved.mixed_TV.log_softmax(1), mix.mixed_TV.log_softmax(1), moved.scale_T1 + mix.scale_T1)


def hard_negatives(strong_TV: Logits, weak_TV: Logits, target_T: Targets) -> Tensor:
    """Tokens that the weak model separates less from the target than the strong one does. Paper: the set H."""
    return mixture(strong_TV, weak_TV, target_T, 0.5).narrowing_TV > 0


def relative_odds(strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5) -> Check:
    """Mixing raises the odds of a hard negative against the target: strong log-odds (left) below mixed ones (right).

    The paper says "larger" for any lambda in [0, 1]; at lambda = 1 the two are equal, so what is checked is "at least".
    Tokens that are not hard negatives hold by default.
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    strong, mixed = (-margins(x, mix.target_T) for x in (mix.strong_TV, mix.mixed_TV))
    check = bound(strong, mixed, mix.scale_T1)
    return replace(check, holds=check.holds | (mix.narrowing_TV <= 0))


@dataclass(frozen=True, kw_only=True)
class NegativeMass(Finding):
    """Probability of everything but the target: where one of the conditions is met, mixing did not shrink it.

    The slack is mixed less strong.
    """

    strong_T: Tensor
    mixed_T: Tensor
    every_margin_T: Tensor
    """No weak margin exceeds the strong one: the condition of the paper's Theorem 1."""
    mean_margin_T: Tensor
    """The mean of the narrowing is not negative: the condition that decides for all strong weights at once."""
    mean_narrowing_T: Tensor
    """Sum over k != y of P_strong(k) * (strong margin - weak margin)."""


def negative_mass(strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5) -> NegativeMass:
    """Theorem 1: if every weak margin is at most the strong one, then P_mix(y) <= P_strong(y).

    Without the condition it can fail (`SURER_WEAK`), and the condition is not needed (`TWO_SIDED`, `ONE_EXCEPTION`).
    What decides is its mean: log P_mix(y) is concave in the strong weight and its slope at 1 is the sum over k of
    P_strong(k) * (strong margin - weak margin), so P_mix(y) <= P_strong(y) for *every* strong weight if and only if
    that sum is not negative. This is ours, not the paper's, and asks less of the logits.

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
    """Whether a token's gradient grew exactly where the condition on the target's probability is met.

    The slack is the logarithm of the factor: above 0 where the gradient grew.
    """

    grown_TV: Tensor
    condition_TV: Tensor
    factor_TV: Tensor
    """The token's gradient, mixed over strong alone."""
    target_ratio_T: Tensor
    """P_mix(y) / P_strong(y)."""
    threshold_TV: Tensor
    """What the target's ratio has to reach."""
    hard_TV: Tensor
    """The hard negatives, of which the paper speaks. The equivalence holds for all tokens."""


def token_amplification(
    strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5
) -> Amplification:
    """P_mix(k) >= P_strong(k) if and only if P_mix(y) / P_strong(y) >= exp(-(1 - strong_weight) * narrowing of k).

    The paper's corollary says "if", for hard negatives; it is an equivalence, so a hard negative that fails the
    condition loses probability (`NOT_AMPLIFIED`). This is the gradient by the *mixed* logits; for what the strong model
    receives see `branch_amplification`.
    """
    return _amplification(strong_TV, weak_TV, target_T, strong_weight, share=1.0)


def branch_amplification(
    strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5
) -> Amplification:
    """On token k the strong branch's gradient is at least SFT's if and only if strong_weight * P_mix(k) >= P_strong(k).

    The paper compares P_mix(k) with P_strong(k), but the strong branch receives only strong_weight of it. The target's
    ratio has to reach exp(-(1 - strong_weight) * narrowing of k) / strong_weight: at 0.5 twice the paper's threshold
    (`NET_LOSS` is between the two). Adam does not see a factor that all tokens share; there P_mix(k) / P_strong(k)
    matters in comparison with the batch's other tokens.

    >>> found = branch_amplification([4.0, 1, 0, -1], [2, 1.5, 0.5, 0], 0)
    >>> [round(x, 3) for x in found.factor_TV[0, 1:].tolist()]
    [1.479, 1.479, 1.9]
    """
    return _amplification(strong_TV, weak_TV, target_T, strong_weight, share=strong_weight)


def _amplification(
    strong_TV: Logits, weak_TV: Logits, target_T: Targets, strong_weight: float, share: float
) -> Amplification:
    """In logarithms, because both sides may be far below what a probability can show."""
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
    """The mixed loss (left) is at most the same combination of the two models' own losses (right).

    Equivalently P_mix(y) is at least the geometric mean of the two probabilities. So the mixed loss never exceeds the
    larger of the two, and it can be below both (`BOTH_UNLIKELY`).
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    chord_T = strong_weight * mix.loss(mix.strong_TV) + (1 - strong_weight) * mix.loss(mix.weak_TV)
    return bound(mix.loss(mix.mixed_TV), chord_T, mix.scale_T)


def entry_gap_bound(strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5) -> Check:
    """FALSE in general: "the effect is bounded by the gap between P_strong and P_weak" read entry by entry.

    Left |P_mix(k) - P_strong(k)|, right |P_weak(k) - P_strong(k)|. Where the two models bet on different tokens, a
    third that both find unlikely rises (`BOTH_UNLIKELY`), also if it is the target. `total_variation_bound` is the
    reading that is true.
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    strong, weak, mixed = (x.softmax(1) for x in (mix.strong_TV, mix.weak_TV, mix.mixed_TV))
    return bound((mixed - strong).abs(), (weak - strong).abs(), mix.scale_T1)


def total_variation_bound(
    strong_TV: Logits, weak_TV: Logits, target_T: Targets, *, strong_weight: float = 0.5
) -> Check:
    """Summed over the vocabulary the gap does bound the effect: P_mix is no further from P_strong than P_weak is.

    Distances are half the sum of |differences|, which no probability of a set, such as the negative mass, can exceed.
    True for all logits: as the strong weight falls, mass moves to tokens in the order of P_weak(k) / P_strong(k), and
    the tokens with P_mix(k) > P_strong(k) are the top of that order, so the distance can only grow. Our own reading of
    a sentence that the paper leaves open.
    """
    mix = mixture(strong_TV, weak_TV, target_T, strong_weight)
    strong, weak, mixed = (x.softmax(1) for x in (mix.strong_TV, mix.weak_TV, mix.mixed_TV))
    return bound((mixed - strong).abs().sum(1) / 2, (weak - strong).abs().sum(1) / 2, mix.scale_T)
