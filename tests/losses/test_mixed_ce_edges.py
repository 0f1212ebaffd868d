"""Mixed cross-entropy at the edges: extreme logits, and bad input."""

import pytest
import torch
from torch.nn import functional as F

from loss_cases import CUDA, Problem, Way, assert_solves, every_way, given_tensors, problem
from weakdriven.errors import UserError
from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import mixed_cross_entropy, mixed_cross_entropy_with_statistics

CHUNKED = Way("chunked", "cpu")


# Extremes


@pytest.mark.parametrize("dtype, size", [(torch.float32, 1e4), (torch.bfloat16, -1e4), (torch.float16, 1e4)])
@every_way
def test_huge_logits_give_exact_finite_losses(way, size, dtype):
    size = torch.tensor(size, dtype=dtype).item()  # what the dtype has of it
    hidden = torch.tensor([[size, 0, 0], [0, size, size], [0, 0, 0]], dtype=dtype, device=way.device)
    eye, target = torch.eye(3, dtype=dtype, device=way.device), torch.tensor([0, 0, 0], device=way.device)
    strong, weak = (hidden.clone().requires_grad_() for _ in range(2))
    loss, statistics = mixed_cross_entropy_with_statistics(
        strong, Head(eye), weak, Head(eye), target, implementation=way.implementation
    )
    z = hidden.double()
    torch.testing.assert_close(loss.double(), F.cross_entropy(z, target, reduction="sum"), rtol=1e-6, atol=0)
    p = z.softmax(-1)
    torch.testing.assert_close(statistics.mixed_entropy.double(), torch.xlogy(p, p).sum().neg(), rtol=1e-5, atol=2e-3)
    want = (p - F.one_hot(target, 3)) / 2
    for gradient in torch.autograd.grad(loss, (strong, weak)):
        # float32 has a log-sum-exp of 10,000 to within 0.0005, and P with the same relative error
        torch.testing.assert_close(gradient.double(), want, rtol=0, atol=max(3e-4, torch.finfo(dtype).eps))


@pytest.mark.parametrize(
    "value, branch, place, options",
    [
        (float("nan"), 0, "target", {}),
        (float("inf"), 1, "target", {"strong_anchor": 0.5}),
        (float("inf"), 0, "elsewhere", {"scales": (0.5, 2.0)}),
        (float("nan"), 1, "elsewhere", {}),
    ],
)
@every_way
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_logit_that_is_not_finite_makes_the_loss_not_finite(way, value, branch, place, options):
    case = problem(2, 5, 5, 23, biases=(True, True), **options)
    bad = case.target_T[1] if place == "target" else (set(range(23)) - set(case.target_T.tolist())).pop()
    tensors = list(case.tensors)
    bias = tensors[3 * branch + 2].detach().clone()
    bias[bad] = value
    tensors[3 * branch + 2] = bias
    loss, statistics, _ = case._replace(tensors=tuple(tensors)).solve(way)
    assert not loss.isfinite()
    by_branch = statistics.weak_loss if branch else statistics.strong_loss
    assert not by_branch.isfinite()  # so that the branch can be named
    assert (statistics.strong_loss if branch else statistics.weak_loss).isfinite()


@every_way
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_forbidden_token_has_probability_zero_and_no_gradient(way):
    """A logit of minus infinity, away from the target, is a finite loss over the others."""
    case = problem(2, 5, 5, 23, biases=(True, True))
    kept = [k for k in range(23) if k != 7]
    case = case._replace(target_T=torch.tensor([3, 11]))
    tensors = list(case.tensors)
    bias = tensors[2].detach().clone()
    bias[7] = -torch.inf
    tensors[2] = bias
    loss, _, gradients = case._replace(tensors=tuple(tensors)).solve(way)
    places = torch.tensor([kept.index(3), kept.index(11)])
    cut = Problem(tuple(x[kept] if i % 3 else x for i, x in enumerate(case.tensors)), places)
    torch.testing.assert_close(loss.cpu().double(), cut.exact().loss, rtol=1e-5, atol=1e-5)
    assert not gradients[4][7].any() and gradients[4].isfinite().all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scales": (0.5, 2.0), "caps": (None, 3.0)},
        {"strong_weight": 0.0},
        {"strong_weight": 1.0},
        {"strong_weight": 0.25, "strong_anchor": 0.5},
        {"strong_weight": 0.0, "strong_anchor": 0.5},
    ],
)
@every_way
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_tokens_that_either_model_or_both_forbid_leave_statistics_and_gradients_exact(way, options):
    case = problem(4, 5, 5, 23, biases=(True, True), **options)
    case = case._replace(target_T=torch.tensor([3, 11, 5, 3]))
    strong_TD, _, strong_bias_V, weak_TE, _, weak_bias_V = case.tensors
    with torch.no_grad():
        strong_TD[0] = weak_TE[0] = 0  # so that the margins are those of the biases
        weak_bias_V[3] = -4
        strong_bias_V[[7, 9]] = weak_bias_V[9] = -torch.inf
    assert not all(case.runs) or case.exact().statistics.margin_tokens > 0
    assert_solves(way, case)
    with torch.no_grad():
        weak_bias_V[12] = -torch.inf
    assert not all(case.runs) or case.exact().statistics.margin_tokens == 0
    assert_solves(way, case)


@pytest.mark.parametrize("target", [23, -1])
def test_a_target_outside_the_vocabulary_is_never_a_finite_loss(target):
    case = problem(2, 5, 4, 23)
    case.target_T[0] = target
    for implementation in ("reference", "chunked"):
        with pytest.raises((IndexError, RuntimeError)):
            case.solve(Way(implementation, "cpu"))
    triton = Way("triton", "cuda" if CUDA else "cpu")
    assert case.solve(triton)[0].isnan()


# Bad input


@pytest.mark.parametrize("strong_weight", [-0.1, 1.1, float("nan")])
def test_a_mixture_weight_outside_its_range_is_an_error(strong_weight):
    with pytest.raises(UserError, match=r"strong_weight is .* between 0 and 1"):
        problem(2, 5, 4, 23, strong_weight=strong_weight).solve(CHUNKED)


@pytest.mark.parametrize("strong_anchor", [-0.1, float("inf"), float("nan")])
def test_an_anchor_below_zero_is_an_error(strong_anchor):
    with pytest.raises(UserError, match=r"strong_anchor is .* 0 or more"):
        problem(2, 5, 4, 23, strong_anchor=strong_anchor).solve(CHUNKED)


def test_another_reduction_is_an_error():
    case = problem(2, 5, 4, 23)
    with pytest.raises(UserError, match="reduction is 'none'"):
        mixed_cross_entropy(*given_tensors(case), case.target_T, reduction="none")


@pytest.mark.parametrize("strong_weight", [0.0, 0.5])
def test_an_unknown_implementation_is_an_error(strong_weight):
    case = problem(2, 5, 4, 23, strong_weight=strong_weight)
    with pytest.raises(UserError, match="implementation is 'cuda'; expected one of auto, reference, chunked, triton"):
        case.solve(Way("cuda", "cpu"))


def test_triton_without_a_gpu_is_an_error(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UserError, match="implementation='triton' needs tensors on a CUDA device"):
        problem(2, 5, 4, 23).solve(Way("triton", "cpu"))


def test_auto_is_chunked_on_the_cpu():
    case = problem(3, 5, 4, 23)
    torch.testing.assert_close(case.solve(Way("auto", "cpu")), case.solve(CHUNKED), rtol=0, atol=0)
