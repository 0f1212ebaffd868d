"""Statements about a step on mixed logits and its curvature (paper Sec. 5, App. D)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from theory_cases import near, quick, tokens, weights

from research.theory import branch_gradients, hessian, sgd_step, shielding
from research.theory.checks import mixture
from research.theory.counterexamples import TYPICAL
from weakdriven.errors import UserError
from weakdriven.losses.mixed_ce import mixed_cross_entropy_reference

# A step on the logits (the proposition)


def test_a_step_on_the_fixture():
    joint, frozen = sgd_step(*TYPICAL, learning_rate=0.1), sgd_step(*TYPICAL, learning_rate=0.1, freeze_weak=True)
    for step in (joint, frozen):
        assert step.everywhere and step.strong_TV[0].tolist() == near([0.010565, -0.006853, -0.002521, -0.001191])
    assert joint.predicted_T.item() == near(-0.0033270, 1e-7) and frozen.predicted_T.item() == near(-0.0016635, 1e-7)
    assert joint.exact_T.item() == near(-0.0033058, 1e-7)
    assert torch.equal(joint.weak_TV, joint.strong_TV) and not frozen.weak_TV.any()
    residual = branch_gradients(*TYPICAL, strong_weight=0.5).strong.right / 0.5
    assert residual.square().sum().item() == near(0.0665390, 1e-7)


@quick
@given(tokens(), weights, st.sampled_from([1e-3, 0.1, 1.0, 30.0]), st.booleans())
def test_the_loss_falls_by_the_first_order_change_and_what_curvature_takes_back(case, strong_weight, rate, frozen):
    step = sgd_step(*case, learning_rate=rate, strong_weight=strong_weight, freeze_weak=frozen)
    assert step.everywhere and (step.predicted_T <= 0).all()


@quick
@given(tokens(), weights)
def test_the_step_is_that_of_the_optimizer(case, strong_weight):
    """torch's SGD, with the logits as parameters."""
    strong, weak = (torch.nn.Parameter(x.clone()) for x in case[:2])
    optimizer = torch.optim.SGD([strong, weak], lr=0.1)
    mixed_cross_entropy_reference(strong, weak, case[2], strong_weight=strong_weight).backward()
    optimizer.step()
    step = sgd_step(*case, learning_rate=0.1, strong_weight=strong_weight)
    for now, before, moved in ((strong, case[0], step.strong_TV), (weak, case[1], step.weak_TV)):
        torch.testing.assert_close(now.detach() - before, moved, rtol=0, atol=1e-12)


# Hessian and shielding (App. D.4)


def test_the_hessian_on_the_fixture():
    found = hessian(*TYPICAL)
    assert found.everywhere and found.by_mixed.left[0].trace().item() == near(0.3560485, 1e-7)
    assert found.eigenvalues.right[0].tolist() == near([0, 0.028936, 0.069714, 0.257398])
    assert found.across.left.norm().item() == near(0.0670593, 1e-7)
    assert shielding(*TYPICAL).trace_T.item() == near(0.3560485, 1e-7)


@quick
@given(tokens(), weights)
def test_trace_and_gradient_shrink_together(case, strong_weight):
    found, mix = shielding(*case, strong_weight=strong_weight), mixture(*case, strong_weight)
    assert found.everywhere
    p = mix.mixed_TV.softmax(1)
    torch.testing.assert_close(found.trace_T, (p - p.square()).sum(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.gradient_T, (p - mix.target_TV.double()).abs().sum(1), rtol=0, atol=1e-12)


def test_a_certain_mixture_has_no_curvature_and_its_gradient_vanishes_at_the_same_rate():
    certain = [shielding([gap, 0.0, 0], [gap, 0.0, 0], 0) for gap in (5.0, 20.0, 40.0)]
    assert [x.trace_T.item() < 1e-15 for x in certain] == [False, False, True]
    assert certain[-1].trace_T.item() / certain[-1].gradient_T.item() == near(1)
    strong, across = hessian([40.0, 0, 0], [40.0, 0, 0], 0)[:2]
    assert strong.left.abs().max() < 1e-15 and across.left.abs().max() < 1e-15


def test_certainty_of_a_wrong_token_removes_the_curvature_and_keeps_the_gradient():
    found = shielding([0.0, 40, 0], [0.0, 40, 0], 0)
    assert found.trace_T.item() < 1e-15 and found.gradient_T.item() == near(2)


def test_a_vocabulary_too_large_for_a_hessian_raises_an_error():
    with pytest.raises(UserError, match="at most 2048"):
        hessian(torch.zeros(1, 3000), torch.zeros(1, 3000), 0)
