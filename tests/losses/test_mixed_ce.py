"""Mixed cross-entropy against METHODS 1.4 and against a dense float64 computation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from weakdriven.losses.mixed_ce import (
    IGNORE,
    mixed_cross_entropy,
    mixed_cross_entropy_reference,
    mixed_cross_entropy_with_statistics,
)

STRONG, WEAK = [4.0, 1, 0, -1], [2, 1.5, 0.5, 0]
P_STRONG, P_WEAK = [0.930370, 0.046320, 0.017040, 0.006269], [0.508907, 0.308668, 0.113552, 0.068873]
P_MIXED = [0.788706, 0.137057, 0.050420, 0.023817]
TARGET = torch.tensor([0])
SHAPES = [(64, 32, 32, 128), (7, 5, 3, 33), (1, 1, 1, 2), (13, 3, 8, 17)]


def near(values, tolerance=2e-6):
    return pytest.approx(values, abs=tolerance)


def fixture(strong_weight, strong=STRONG, weak=WEAK):
    """Loss, statistics and logit gradients of the fixture: identity heads make hidden states the logits."""
    logits = [torch.tensor([row], requires_grad=True) for row in (strong, weak)]
    loss, statistics = mixed_cross_entropy_with_statistics(
        logits[0], torch.eye(4), logits[1], torch.eye(4), TARGET, strong_weight=strong_weight
    )
    gradients = [gradient[0].tolist() for gradient in torch.autograd.grad(loss, logits)]
    return loss.item(), statistics, *gradients


def dense(inputs, target, strong_weight):
    """The definition, in float64."""
    strong, strong_head, weak, weak_head = inputs
    mixed = strong_weight * strong @ strong_head.T + (1 - strong_weight) * weak @ weak_head.T
    return F.cross_entropy(mixed, target, ignore_index=IGNORE, reduction="sum")


def random_inputs(T, D, E, V, *, seed=0, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(s, generator=draw).to(dtype).requires_grad_() for s in [(T, D), (V, D), (T, E), (V, E)]]
    return inputs, torch.randint(V, (T,), generator=draw)


def in_float64(inputs):
    return [x.detach().double().requires_grad_() for x in inputs]


def assert_equals_dense(inputs, target, strong_weight, chunk, rtol=1e-4, atol=1e-4):
    got = mixed_cross_entropy(*inputs, target, strong_weight=strong_weight, chunk=chunk)
    exact = in_float64(inputs)
    want = dense(exact, target, strong_weight)
    torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol)
    gradients = zip(torch.autograd.grad(got, inputs), torch.autograd.grad(want, exact), strict=True)
    for mine, true in gradients:
        torch.testing.assert_close(mine.double(), true, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    "strong_weight, loss", [(1, 0.0721724), (0, 0.6754903), (0.5, 0.2373613), (0.42, 0.2842146), (0.9, 0.0921606)]
)
def test_the_loss_of_the_fixture_is_the_published_one(strong_weight, loss):
    assert fixture(strong_weight)[0] == near(loss, 1e-6)
    dense_loss = mixed_cross_entropy_reference(
        torch.tensor([STRONG]), torch.tensor([WEAK]), TARGET, strong_weight=strong_weight
    )
    assert dense_loss.item() == near(loss, 1e-6)


def test_each_branch_of_the_fixture_gets_half_of_the_mixed_gradient():
    _, _, strong, weak = fixture(0.5)
    assert strong == weak == near([-0.105647, 0.068528, 0.025210, 0.011908])
    assert [2 * g for g in strong] == near([-0.211294, 0.137057, 0.050420, 0.023817])


@pytest.mark.parametrize(
    "strong_weight, strong, weak",
    [
        (1, [-0.069630, 0.046320, 0.017040, 0.006269], [0, 0, 0, 0]),
        (0, [0, 0, 0, 0], [p - (k == 0) for k, p in enumerate(P_WEAK)]),
        (0.42, [-0.103906, 0.067090, 0.024681, 0.012134], None),
        (0.9, None, None),
    ],
)
def test_branch_gradients_of_the_fixture_are_in_the_ratio_of_their_weights(strong_weight, strong, weak):
    _, _, got_strong, got_weak = fixture(strong_weight)
    if strong is not None:
        assert got_strong == near(strong)
    if weak is not None:
        assert got_weak == near(weak)
    assert [(1 - strong_weight) * g for g in got_strong] == near([strong_weight * g for g in got_weak], 1e-7)
    mixed = [strong_weight * s + (1 - strong_weight) * w for s, w in zip(STRONG, WEAK, strict=True)]
    residual = torch.tensor(mixed, dtype=torch.float64).softmax(0) - torch.eye(4, dtype=torch.float64)[0]
    assert got_strong == near((strong_weight * residual).tolist(), 1e-6)


def test_probabilities_of_the_fixture_follow_from_the_gradients():
    """dL/dz = P - onehot(y), so each branch's gradient shows a whole distribution."""
    mixed = [2 * g + (k == 0) for k, g in enumerate(fixture(0.5)[2])]
    strong = [g + (k == 0) for k, g in enumerate(fixture(1)[2])]
    weak = [g + (k == 0) for k, g in enumerate(fixture(0)[3])]
    assert (mixed, strong, weak) == (near(P_MIXED), near(P_STRONG), near(P_WEAK))
    assert [m / s for m, s in zip(mixed[1:], strong[1:], strict=True)] == near([2.958881, 2.958881, 3.799278], 2e-5)
    assert (1 - strong[0], 1 - mixed[0]) == near((0.0696295, 0.2112938), 1e-6)


def test_statistics_of_the_fixture_are_the_published_ones():
    statistics = fixture(0.5)[1]
    assert statistics.strong_loss.item() == near(0.0721724, 1e-6)
    assert statistics.weak_loss.item() == near(0.6754903, 1e-6)
    assert statistics.mixed_probability.item() == near(P_MIXED[0])
    assert statistics.strong_probability.item() == near(P_STRONG[0])
    assert not any(value.requires_grad for value in statistics)


@pytest.mark.parametrize("weak, holds, negative_mass", [(WEAK, 1, 0.2112938), ([3.0, -4, -4, -4], 0, 0.0131288)])
def test_the_margin_condition_is_told_from_its_violation(weak, holds, negative_mass):
    statistics = fixture(0.5, weak=weak)[1]
    assert statistics.margin_tokens.item() == holds
    assert 1 - statistics.mixed_probability.item() == near(negative_mass, 1e-6)


def test_sums_over_tokens_give_the_token_mean_and_not_the_sequence_mean():
    mixed = [3, 1.25, 0.25, -0.5]
    rows = torch.tensor([STRONG, WEAK, mixed, STRONG])
    loss = mixed_cross_entropy(rows, torch.eye(4), rows, torch.eye(4), torch.zeros(4, dtype=torch.long))
    assert loss.item() / 4 == near(0.2642991, 1e-6)
    assert abs(loss.item() / 4 - 0.2002569) > 0.05


@pytest.mark.parametrize("chunk", [1, 4, 1024])
@pytest.mark.parametrize("strong_weight", [0.0, 0.42, 1.0])
@pytest.mark.parametrize("T, D, E, V", SHAPES)
def test_chunked_equals_dense_float64_in_value_and_all_four_gradients(T, D, E, V, strong_weight, chunk):
    inputs, target = random_inputs(T, D, E, V)
    assert_equals_dense(inputs, target, strong_weight, chunk)
    if T > 1:
        assert_equals_dense(inputs, target.masked_fill(torch.arange(T) % 3 == 0, IGNORE), strong_weight, chunk)


sizes = st.integers(1, 9)


@settings(deadline=None, max_examples=50, derandomize=True, database=None)
@given(sizes, sizes, sizes, st.integers(2, 20), st.floats(0, 1), st.integers(1, 10), st.integers(0, 999))
def test_any_shape_chunk_and_weight_equals_dense_and_keeps_the_theorems(T, D, E, V, strong_weight, chunk, seed):
    inputs, target = random_inputs(T, D, E, V, seed=seed)
    target[seed % T] = target[seed % T] if seed % 2 else IGNORE
    assert_equals_dense(inputs, target, strong_weight, chunk)
    mixed, statistics = mixed_cross_entropy_with_statistics(*inputs, target, strong_weight=strong_weight, chunk=chunk)
    bound = strong_weight * statistics.strong_loss + (1 - strong_weight) * statistics.weak_loss
    assert mixed.item() <= bound.item() * (1 + 1e-5) + 1e-5  # cross-entropy is convex in the logits
    if statistics.margin_tokens.item() == (target != IGNORE).sum():
        assert statistics.mixed_probability.item() <= statistics.strong_probability.item() + 1e-5


@pytest.mark.parametrize("frozen", [(2, 3), (1, 3), (0, 1), (1,), (0, 2, 3)])
def test_tensors_that_need_no_gradient_get_none_and_the_others_the_same(frozen):
    inputs, target = random_inputs(9, 5, 3, 33)
    mixed_cross_entropy(*inputs, target, strong_weight=0.42, chunk=4).backward()
    some = [x.detach().clone().requires_grad_(i not in frozen) for i, x in enumerate(inputs)]
    mixed_cross_entropy(*some, target, strong_weight=0.42, chunk=4).backward()
    for i, (whole, part) in enumerate(zip(inputs, some, strict=True)):
        if i in frozen:
            assert part.grad is None
        else:
            assert torch.equal(part.grad, whole.grad)


@pytest.mark.parametrize("chunk", [3, 64])
def test_bfloat16_inputs_stay_close_to_float64(chunk):
    inputs, target = random_inputs(32, 16, 16, 64, dtype=torch.bfloat16)
    assert_equals_dense(inputs, target, 0.5, chunk, rtol=0.05, atol=0.1)
    loss = mixed_cross_entropy(*inputs, target, chunk=chunk)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(dense(in_float64(inputs), target, 0.5).item(), rel=5e-3)
    assert {g.dtype for g in torch.autograd.grad(loss, inputs)} == {torch.bfloat16}


def test_the_loss_is_zero_with_zero_gradients_when_every_target_is_ignored():
    inputs, target = random_inputs(5, 4, 3, 7)
    loss = mixed_cross_entropy(*inputs, torch.full_like(target, IGNORE))
    assert loss.item() == 0
    assert all(
        x.shape == g.shape and not g.any() for x, g in zip(inputs, torch.autograd.grad(loss, inputs), strict=True)
    )


def test_the_value_is_the_same_without_gradients():
    inputs, target = random_inputs(9, 5, 3, 33)
    with_gradients = mixed_cross_entropy(*inputs, target, chunk=4)
    with torch.no_grad():
        without = mixed_cross_entropy(*inputs, target, chunk=4)
    assert torch.equal(with_gradients.detach(), without)
    assert with_gradients.requires_grad and not without.requires_grad


def test_backward_scales_with_what_the_loss_is_divided_by():
    inputs, target = random_inputs(9, 5, 3, 33)
    whole = torch.autograd.grad(mixed_cross_entropy(*inputs, target), inputs)
    seventh = torch.autograd.grad(mixed_cross_entropy(*inputs, target) / 7, inputs)
    torch.testing.assert_close([7 * g for g in seventh], list(whole))
