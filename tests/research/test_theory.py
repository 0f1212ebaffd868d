"""Statements about one mixed token (paper Sec. 5, App. C), on logits with known results and on random ones."""

import numpy as np
import pytest
import torch
from hypothesis import Phase, assume, find, given, settings
from hypothesis import strategies as st
from theory_cases import narrowed, near, quick, tokens, weights

from research.theory import (
    branch_amplification,
    branch_gradients,
    convexity,
    entry_gap_bound,
    hard_negatives,
    hessian,
    log_odds,
    mixed_margins,
    negative_mass,
    relative_odds,
    shielding,
    shift_invariance,
    token_amplification,
    total_variation_bound,
)
from research.theory.checks import margins, mixture
from research.theory.counterexamples import (
    BOTH_UNLIKELY,
    NET_LOSS,
    NOT_AMPLIFIED,
    ONE_EXCEPTION,
    SURER_WEAK,
    TWO_SIDED,
    TYPICAL,
)
from weakdriven.errors import UserError

FOR_ALL_LOGITS = [
    hessian,
    shielding,
    mixed_margins,
    relative_odds,
    negative_mass,
    token_amplification,
    branch_amplification,
    convexity,
    total_variation_bound,
]


@pytest.mark.parametrize("check", FOR_ALL_LOGITS, ids=lambda check: check.__name__)
@quick
@given(tokens(), weights)
def test_a_true_statement_holds_on_all_logits(check, case, strong_weight):
    assert check(*case, strong_weight=strong_weight).everywhere


@quick
@given(tokens(), weights)
def test_gradients_and_log_odds_hold_on_all_logits(case, strong_weight):
    strong, weak = branch_gradients(*case, strong_weight=strong_weight)
    assert strong.everywhere and weak.everywhere and log_odds(case[0], case[2]).everywhere


# Gradients (Sec. 5, App. C.1)


def test_gradients_of_the_branches_on_the_fixture():
    for strong_weight, want in ((0.5, [-0.105647, 0.068528, 0.025210, 0.011908]), (0.42, [-0.103906, 0.067090])):
        strong, _ = branch_gradients(*TYPICAL, strong_weight=strong_weight)
        assert strong.everywhere and strong.left[0, : len(want)].tolist() == near(want)
    strong, weak = branch_gradients(*TYPICAL)
    assert (strong.left + weak.left)[0].tolist() == near([-0.211294, 0.137057, 0.050420, 0.023817])
    sft = branch_gradients(*TYPICAL, strong_weight=1.0)
    assert sft.strong.left[0].tolist() == near([-0.069630, 0.046320, 0.017040, 0.006269]) and not sft.weak.left.any()


# Margins, log-odds, shifts (App. C.2, D.5)


def test_margins_on_the_fixture():
    found = mixed_margins(*TYPICAL)
    assert found.everywhere and found.left[0].tolist() == [0, 1.75, 2.75, 3.5]
    mix = mixture(*TYPICAL, 0.5)
    assert margins(mix.strong_TV, mix.target_T)[0].tolist() == [0, 3, 4, 5]
    assert margins(mix.weak_TV, mix.target_T)[0].tolist() == [0, 0.5, 1.5, 2]


@quick
@given(tokens(), weights, st.floats(-100, 100), st.floats(-100, 100))
def test_a_shift_of_either_model_changes_nothing(case, strong_weight, strong_shift, weak_shift):
    for shifts in ((strong_shift, 0.0), (0.0, weak_shift), (strong_shift, weak_shift)):
        found = shift_invariance(*case, strong_weight=strong_weight, strong_shift=shifts[0], weak_shift=shifts[1])
        assert found.everywhere


def test_odds_of_hard_negatives_rise_but_not_at_strong_weight_one():
    assert (relative_odds(*TYPICAL).slack[0, 1:] > 0).all()
    at_one = relative_odds(*TYPICAL, strong_weight=1.0)
    assert at_one.everywhere and not at_one.slack.any()


# Negative mass (Theorem 1)


@quick
@given(tokens(), weights, st.integers(0, 99))
def test_margins_that_all_narrow_raise_the_negative_mass(case, strong_weight, seed):
    strong, _, target = case
    found = negative_mass(strong, narrowed(strong, target, seed), target, strong_weight=strong_weight)
    assert found.every_margin_T.all() and found.mean_margin_T.all() and found.everywhere


def test_negative_mass_with_and_without_the_condition():
    cases = [(TYPICAL, True, 0.2112938), (SURER_WEAK, False, 0.0131288), (TWO_SIDED, False, None)]
    for case, condition, mass in cases:
        found = negative_mass(*case)
        assert found.every_margin_T.item() == condition and found.everywhere
        assert found.strong_T.item() == near(0.0696295, 1e-7)
        assert mass is None or found.mixed_T.item() == near(mass, 1e-7)
    assert negative_mass(*SURER_WEAK).slack < 0


def test_the_condition_is_not_needed():
    found = negative_mass(*TWO_SIDED)
    assert hard_negatives(*TWO_SIDED)[0].tolist() == [False, False, False, True]
    assert found.slack > 0 and not found.every_margin_T
    assert token_amplification(*TWO_SIDED).factor_TV[0, 1:].tolist() == near([0.366, 0.604, 7.359], 5e-4)


GRID = [i / 100 for i in range(100)]


def test_narrowing_on_the_mean_decides_for_all_strong_weights():
    assert not negative_mass(*ONE_EXCEPTION).every_margin_T and negative_mass(*ONE_EXCEPTION).mean_margin_T
    assert all(negative_mass(*ONE_EXCEPTION, strong_weight=w).slack > 0 for w in GRID)
    assert not negative_mass(*TWO_SIDED).mean_margin_T  # so it fails for some, though not at 0.5
    assert any(negative_mass(*TWO_SIDED, strong_weight=w).slack < 0 for w in GRID)


@quick
@given(tokens())
def test_widening_on_the_mean_lowers_the_negative_mass_close_to_one(case):
    mix = mixture(*case, 1 - 1e-6)
    found = negative_mass(*case)
    widened = found.mean_narrowing_T / found.strong_T < -0.1
    assume(widened.any())
    assert (mix.negative_log_odds(mix.mixed_TV) < mix.negative_log_odds(mix.strong_TV))[widened].all()


def test_the_check_notices_a_broken_theorem(monkeypatch):
    """If the mixture went the wrong way, `holds` would say so."""
    from research.theory import mixing

    def backwards(strong, weak, target, strong_weight):
        mix = mixture(strong, weak, target, strong_weight)
        return type(mix)(mix.strong_TV, mix.weak_TV, 2 * mix.strong_TV - mix.weak_TV, mix.target_T, strong_weight)

    monkeypatch.setattr(mixing, "mixture", backwards)
    assert not negative_mass(*TYPICAL).everywhere and not mixed_margins(*TYPICAL).everywhere
    assert not token_amplification(*NOT_AMPLIFIED).everywhere and not convexity(*SURER_WEAK).everywhere
    assert not branch_gradients(*TYPICAL).strong.everywhere and not relative_odds(*TYPICAL).everywhere


# Amplification (the corollary)


def test_amplification_on_the_fixture():
    assert token_amplification(*TYPICAL).factor_TV[0, 1:].tolist() == near([2.958881, 2.958881, 3.799278])
    assert branch_amplification(*TYPICAL).factor_TV[0, 1:].tolist() == near([1.479, 1.479, 1.900], 5e-4)


def test_a_hard_negative_may_lose():
    found = token_amplification(*NOT_AMPLIFIED)
    assert found.target_ratio_T.item() == near(0.586435)
    assert found.threshold_TV[0, 1:3].tolist() == near([0.904837, 0.223130])
    assert found.hard_TV[0].tolist() == [False, True, True, False]
    assert found.grown_TV[0, 1:3].tolist() == found.condition_TV[0, 1:3].tolist() == [False, True]


def test_more_probability_may_be_less_gradient_for_the_strong_model():
    mixed, strong = token_amplification(*NET_LOSS), branch_amplification(*NET_LOSS)
    assert mixed.grown_TV[0, 1] and not strong.grown_TV[0, 1]
    assert mixed.factor_TV[0, 1].item() == near(1.207, 5e-4) and strong.factor_TV[0, 1].item() == near(0.604, 5e-4)


@quick
@given(tokens(), st.floats(0.01, 1))
def test_the_strong_branch_grows_where_its_gradient_does(case, strong_weight):
    found, mix = branch_amplification(*case, strong_weight=strong_weight), mixture(*case, strong_weight)
    gradient = strong_weight * mix.mixed_TV.softmax(1) / mix.strong_TV.softmax(1)
    torch.testing.assert_close(found.factor_TV, gradient, rtol=1e-9, atol=0)
    assert ((gradient > 1 + 1e-9) <= found.condition_TV).all() and ((gradient < 1 - 1e-9) <= ~found.condition_TV).all()


def test_a_strong_branch_without_weight_gains_nothing():
    found = branch_amplification(*TYPICAL, strong_weight=0.0)
    assert found.everywhere and not found.grown_TV.any() and not found.factor_TV.any()


# Convexity and the gap (App. D.6)


def test_the_mixed_loss_is_below_the_chord_on_the_fixture():
    found = convexity(*TYPICAL)
    assert found.left.item() == near(0.2373613, 1e-7) and found.right.item() == near(0.3738313, 1e-7)
    for strong_weight, loss in ((0.0, 0.6754903), (0.42, 0.2842146), (0.9, 0.0921606), (1.0, 0.0721724)):
        assert convexity(*TYPICAL, strong_weight=strong_weight).left.item() == near(loss, 1e-7)


def test_the_mixture_can_do_better_than_both():
    assert convexity(*BOTH_UNLIKELY).slack > 1


def test_the_gap_of_a_token_does_not_bound_the_effect_on_it():
    found = entry_gap_bound(*BOTH_UNLIKELY)
    assert found.holds[0].tolist() == [True, True, False]
    assert found.right[0, 2].item() == near(0, 1e-12) and found.left[0, 2].item() == near(0.048079 - 0.01)


def test_the_gap_bound_fails_on_plain_random_logits_too():
    """Hypothesis looks for a failure on its own; the target does not enter."""
    unshrunk = settings(quick, max_examples=1000, phases=[Phase.generate])
    find(tokens(), lambda case: not entry_gap_bound(*case).everywhere, settings=unshrunk)


@quick
@given(tokens(), weights, weights)
def test_the_distance_from_the_strong_model_falls_with_its_weight(case, one, other):
    low, high = sorted((one, other))
    far, close = (total_variation_bound(*case, strong_weight=w).left for w in (low, high))
    assert (close <= far + 1e-9).all()


# What a user may get wrong


@pytest.mark.parametrize(
    "arguments, word",
    [
        (([1.0, 2], [1.0, 2, 3], 0), "shape"),
        (([1.0], [1.0], 0), "at least 2"),
        (([1.0, 2], [1.0, 2], [0, 1]), "shape"),
        (([1.0, 2], [1.0, 2], -100), "-100"),
        (([1.0, 2], [1.0, 2], 2), "0 to 1"),
        (([1.0, 2], [1.0, float("-inf")], 0), "weak logits of token 0"),
    ],
)
def test_logits_of_other_shapes_raise_an_error(arguments, word):
    with pytest.raises(UserError, match=word):
        convexity(*arguments)


def test_a_weight_outside_of_its_range_raises_an_error():
    with pytest.raises(UserError, match="strong_weight is"):
        convexity(*TYPICAL, strong_weight=1.5)


def test_tensors_arrays_and_lists_give_the_same():
    strong, weak, target = [[0.1, 1.2, 3]], [[2, 0.7, 1]], [1]
    forms = [
        (strong, weak, target),
        (np.array(strong), np.array(weak), np.array(target)),
        (torch.tensor(strong).double(), torch.tensor(weak, dtype=torch.float64).requires_grad_(), torch.tensor(target)),
    ]
    losses = [convexity(*form).left for form in forms[:2]]
    assert torch.equal(*losses) and not convexity(*forms[2]).left.requires_grad
