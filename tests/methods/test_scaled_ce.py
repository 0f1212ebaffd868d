"""Cross-entropy on scaled logits: against float64, and as the mixture whose weak model says nothing."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from loss_cases import problem
from soft_cases import EYE, FIRST, STRONG, dense_logits, every_head, heads, logits, near
from weakdriven.losses.head import as_head
from weakdriven.losses.mixed_ce import mixed_cross_entropy
from weakdriven.methods.other_loss import ScaledLogits


def scaled_cross_entropy(hidden, head, target, *, strong_weight):
    tokens = SimpleNamespace(hidden_TD=hidden, head=as_head(head), target_T=target, scale=1 / len(target))
    return ScaledLogits(strong_weight)(tokens)


@pytest.mark.parametrize("strong_weight", [0.42, 1.0, 2.0])
@every_head
def test_any_head_equals_float64(options, strong_weight):
    case = problem(13, 3, 3, 33, **options)
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in case.tensors]
    head, _ = heads(case, leaves)
    loss, _ = scaled_cross_entropy(leaves[0], head, case.target_T, strong_weight=strong_weight)
    loss.backward()
    exact, _, z, _ = dense_logits(case)
    want = F.cross_entropy(strong_weight * z, case.target_T)
    torch.testing.assert_close(loss.double(), want, rtol=2e-5, atol=2e-5)
    for got, true in zip([x for x in leaves[:3] if x is not None], torch.autograd.grad(want, exact), strict=True):
        torch.testing.assert_close(got.grad.double(), true, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("strong_weight", [0.42, 0.5, 1.0])
def test_it_is_the_mixture_with_a_weak_model_of_equal_logits(strong_weight):
    trained, mixed = logits(STRONG), logits(STRONG)
    loss, statistics = scaled_cross_entropy(trained, EYE, FIRST, strong_weight=strong_weight)
    want = mixed_cross_entropy(mixed, EYE, torch.zeros(1, 4), EYE, FIRST, strong_weight=strong_weight)
    loss.backward(), want.backward()
    assert loss.item() == near(want.item()) and statistics["scaled_loss"].item() == near(want.item())
    torch.testing.assert_close(trained.grad, mixed.grad)


def test_a_factor_of_one_is_plain_cross_entropy_to_the_bit():
    case = problem(13, 3, 3, 33)
    hidden, weight = (x.detach() for x in case.tensors[:2])
    plain = mixed_cross_entropy(hidden, weight, hidden, weight, case.target_T, strong_weight=1, reduction="mean")
    assert torch.equal(scaled_cross_entropy(hidden, weight, case.target_T, strong_weight=1)[0], plain)
