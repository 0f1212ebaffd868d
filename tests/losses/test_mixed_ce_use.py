"""Mixed cross-entropy in use: autograd, compilation, autocast, precision and unusual heads."""

import pytest
import torch
from torch.nn import functional as F

from loss_cases import Problem, Way, assert_solves, every_fast_way, every_way, given_tensors, problem, tiles
from weakdriven.errors import UserError
from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import IGNORE, mixed_cross_entropy, mixed_cross_entropy_with_statistics

CHUNKED = Way("chunked", "cpu")


def dense(tensors, target, strong_weight=0.5, reduction="sum"):
    strong, strong_head, weak, weak_head = tensors
    mixed = strong_weight * strong @ strong_head.T + (1 - strong_weight) * weak @ weak_head.T
    return F.cross_entropy(mixed, target, ignore_index=IGNORE, reduction=reduction)


# Targets and reduction


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@every_way
def test_ignored_targets_are_left_out_of_sum_and_mean(way, reduction):
    case = problem(6, 5, 4, 23)
    target = case.target_T.masked_fill(torch.arange(6) % 3 == 0, IGNORE).to(way.device)
    tensors = given_tensors(case, way.device)
    options = {"strong_weight": 0.42, "reduction": reduction}
    got = mixed_cross_entropy(*tensors, target, implementation=way.implementation, **options)
    want = dense(tensors, target, **options)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, tensors), torch.autograd.grad(want, tensors))


@every_way
def test_the_loss_is_zero_with_zero_gradients_when_every_target_is_ignored(way):
    case = problem(5, 4, 3, 7)
    tensors, target = given_tensors(case, way.device), torch.full((5,), IGNORE, device=way.device)
    loss = mixed_cross_entropy(*tensors, target, implementation=way.implementation)
    assert loss.item() == 0
    for x, gradient in zip(tensors, torch.autograd.grad(loss, tensors), strict=True):
        assert gradient.shape == x.shape and not gradient.any()
    mean = mixed_cross_entropy(*tensors, target, implementation=way.implementation, reduction="mean")
    assert mean.isnan() and dense(tensors, target, reduction="mean").isnan()  # as torch has it


@pytest.mark.parametrize("options", [{}, {"strong_anchor": 0.5, "caps": (3.0, None)}])
@every_way
def test_no_token_at_all_gives_zeros(way, options):
    loss, statistics, gradients = problem(0, 4, 3, 7, biases=(True, True), **options).solve(way)
    assert loss == 0 and not any(statistics)
    assert all(g is not None and not g.any() for g in gradients)
    assert [g.numel() for g in gradients] == [0, 28, 7, 0, 21, 7]


# Heads


@pytest.mark.parametrize("extra", [(3, 0), (0, 3), (2, 5)])
@every_way
def test_heads_of_different_length_are_mixed_over_their_common_rows(way, extra):
    case = problem(4, 5, 4, 23, extra=extra, biases=(True, True))
    assert_solves(way, case)
    gradients = case.solve(way)[2]
    rows = 23 + min(extra)
    assert all(not g[rows:].any() for g in (gradients[1], gradients[2], gradients[4], gradients[5]))
    cut = Problem(tuple(x[:rows] if i % 3 else x for i, x in enumerate(case.tensors)), case.target_T)
    torch.testing.assert_close(case.solve(way)[0], cut.solve(way)[0])


@pytest.mark.parametrize(("strong_weight", "alone"), [(1.0, 0), (0.0, 2)])
@every_way
def test_a_head_that_counts_alone_keeps_all_of_its_rows(way, strong_weight, alone):
    case = problem(4, 5, 4, 23, extra=(0, 3) if alone else (3, 0), strong_weight=strong_weight)
    case.target_T[1] = 24  # outside the other head
    assert_solves(way, case)
    tensors = given_tensors(case, way.device)
    options = {"strong_weight": strong_weight, "implementation": way.implementation}
    hidden, head = tensors[alone : alone + 2]
    want = F.cross_entropy(hidden @ head.T, case.target_T.to(way.device), reduction="sum")
    torch.testing.assert_close(mixed_cross_entropy(*tensors, case.target_T.to(way.device), **options), want)
    with pytest.raises(UserError, match="target 24 is outside the 23 rows"):
        mixed_cross_entropy(*tensors, case.target_T.to(way.device), **options | {"strong_weight": 0.5})


@every_way
def test_a_target_outside_the_common_rows_is_an_error(way):
    case = problem(4, 5, 4, 23, extra=(3, 0))
    target = case.target_T.clone().to(way.device)
    tensors = given_tensors(case, way.device)
    target[1] = 24
    with pytest.raises(UserError, match=r"target 24 is outside the 23 rows .*strong has 26, weak 23"):
        mixed_cross_entropy(*tensors, target, implementation=way.implementation)
    target[1] = IGNORE
    assert mixed_cross_entropy(*tensors, target, implementation=way.implementation).isfinite()
    target[:] = IGNORE
    assert mixed_cross_entropy(*tensors, target, implementation=way.implementation) == 0


@every_way
def test_a_bare_weight_is_a_head_that_does_nothing_else(way):
    case = problem(4, 5, 4, 23)
    strong, strong_head, weak, weak_head = given_tensors(case, way.device)
    target, options = case.target_T.to(way.device), {"implementation": way.implementation}
    bare = mixed_cross_entropy(strong, strong_head, weak, weak_head, target, **options)
    wrapped = mixed_cross_entropy(strong, Head(strong_head), weak, Head(weak_head), target, **options)
    halved = mixed_cross_entropy(
        strong, Head(strong_head, scale=0.5), weak, Head(weak_head, cap=2.0), target, **options
    )
    assert torch.equal(bare, wrapped) and not torch.isclose(bare, halved)


@every_way
def test_one_tensor_in_several_places_gets_the_sum_of_its_gradients(way):
    """Tied embeddings: the head is also what made the hidden states; two branches may share a head, or everything."""
    case = problem(4, 5, 5, 23)
    table = case.tensors[1].detach().to(way.device)
    target = case.target_T.to(way.device)
    ids = torch.tensor([1, 7, 7, 22], device=way.device)

    def gradient(loss_of, dtype):
        weight = table.to(dtype).requires_grad_()
        strong = F.embedding(ids, weight).tanh()
        return torch.autograd.grad(loss_of(strong, weight, strong * 2, weight), weight)[0]

    got = gradient(
        lambda *x: mixed_cross_entropy(*x, target, strong_weight=0.42, implementation=way.implementation), torch.float32
    )
    want = gradient(lambda *x: dense(x, target, 0.42), torch.float64)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


# Autograd


@every_fast_way
def test_the_gradient_follows_what_is_computed_from_the_loss(way):
    case = problem(4, 5, 4, 23)
    tensors, target = given_tensors(case, way.device), case.target_T.to(way.device)
    for after in (lambda loss: loss / 7, lambda loss: -3 * loss, lambda loss: loss**2):
        got = after(mixed_cross_entropy(*tensors, target, implementation=way.implementation))
        want = after(dense(tensors, target))
        torch.testing.assert_close(
            torch.autograd.grad(got, tensors), torch.autograd.grad(want, tensors), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_fast_way
def test_dividing_the_loss_afterwards_does_not_round_the_divisor(way, dtype):
    """By 3.0, whose inverse bfloat16 has only to three digits: the scale itself must not be rounded."""
    case = problem(4, 5, 4, 23, dtype=dtype)
    tensors, target = given_tensors(case, way.device), case.target_T.to(way.device)
    whole = torch.autograd.grad(mixed_cross_entropy(*tensors, target, implementation=way.implementation), tensors)
    third = torch.autograd.grad(mixed_cross_entropy(*tensors, target, implementation=way.implementation) / 3, tensors)
    for mine, other in zip(third, whole, strict=True):
        assert torch.equal(mine, (other.float() / 3).to(dtype))


@every_fast_way
def test_a_second_backward_is_an_error_even_with_a_kept_graph(way):
    case = problem(4, 5, 4, 23)
    tensors, target = given_tensors(case, way.device), case.target_T.to(way.device)
    loss = mixed_cross_entropy(*tensors, target, implementation=way.implementation)
    loss.backward(retain_graph=True)
    with pytest.raises(UserError, match="can be taken only once"):
        loss.backward()


@every_fast_way
def test_nothing_is_read_before_it_is_written(way):
    """Deterministic algorithms fill new memory with NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for T, options in ((3, {}), (3, {"strong_anchor": 0.3, "caps": (3.0, 3.0)}), (0, {})):
            with tiles(2, 1):
                assert_solves(way, problem(T, 5, 4, 23, biases=(True, True), **options))
    finally:
        torch.use_deterministic_algorithms(before)


@every_fast_way
def test_hidden_states_heads_and_targets_may_be_views_with_any_strides(way):
    plain = problem(3, 5, 4, 23)
    strided = [
        None if x is None else x.detach().T.contiguous().T.requires_grad_() if x.dim() == 2 else x
        for x in plain.tensors
    ]
    assert not strided[0].is_contiguous()
    column = torch.stack([plain.target_T] * 2, 1)[:, 0]
    assert not column.is_contiguous()
    case = plain._replace(tensors=tuple(strided), target_T=column)
    with tiles(2, 1):
        assert_solves(way, case)


# torch.compile and autocast


@pytest.mark.parametrize("options", [{"strong_anchor": 0.5}, {"strong_weight": 1.0}])
def test_compiled_as_one_graph_it_equals_eager(options):
    case = problem(5, 4, 3, 17)
    target = case.target_T

    def step(strong, strong_head, weak, weak_head):
        loss, statistics = mixed_cross_entropy_with_statistics(
            2 * strong, Head(strong_head, cap=3.0), weak.tanh(), Head(weak_head, scale=0.5), target, **options
        )
        return loss / len(target), torch.stack(statistics)

    results = []
    torch._dynamo.reset()
    for function in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        tensors = given_tensors(case)
        loss, statistics = function(*tensors)
        loss.backward()
        results.append((loss.detach(), statistics, [x.grad for x in tensors]))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0, equal_nan=True)
    assert any(g is not None and g.any() for g in results[0][2])


@pytest.mark.slow
def test_a_compiled_function_around_the_public_one_equals_eager_and_follows_the_targets():
    case = problem(6, 4, 3, 17)

    def step(strong, strong_head, weak, weak_head, target):
        return mixed_cross_entropy(strong + 1, strong_head, weak, weak_head, target, reduction="mean") * 2

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager")
    for ignored in (2, 3):  # the second call has another number of supervised tokens
        target = case.target_T.masked_fill(torch.arange(6) % ignored == 0, IGNORE)
        results = []
        for function in (step, compiled):
            tensors = given_tensors(case)
            loss = function(*tensors, target)
            loss.backward()
            results.append((loss.detach(), [x.grad for x in tensors]))
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_fast_way
def test_autocast_around_it_changes_nothing(way, dtype):
    """Products run in the precision of the hidden states, whatever surrounds them."""
    case = problem(3, 5, 4, 23, dtype=dtype, biases=(True, False))
    plain = case.solve(way)
    with torch.autocast(way.device, torch.bfloat16):
        around = case.solve(way)
    assert around[0].dtype == torch.float32
    torch.testing.assert_close(around, plain, rtol=0, atol=0)


# Precision


def error(gradients, exact):
    return [(g.cpu().double() - true).norm().item() for g, true in zip(gradients, exact, strict=True)]


@pytest.mark.parametrize("dtype, reduction", [(torch.bfloat16, "sum"), (torch.float16, "mean")])
@every_fast_way
def test_no_gradient_is_further_from_float64_than_that_of_dense_logits(way, dtype, reduction):
    draw = torch.Generator().manual_seed(0)
    interpreted = way == ("triton", "cpu")
    if interpreted and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter cuts float32 to bfloat16 instead of rounding it")
    T, V = (24, 500) if interpreted else (200, 1000)
    shapes = [(T, 64), (V, 64), (T, 64), (V, 64)]
    tensors = [(torch.randn(shape, generator=draw) * 0.4).to(way.device, dtype).requires_grad_() for shape in shapes]
    target = torch.randint(V, (T,), generator=draw).to(way.device)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    true = [g.cpu() for g in torch.autograd.grad(dense(exact, target, reduction=reduction), exact)]
    errors = {}
    for implementation in ("reference", way.implementation):
        with tiles(max(T // 7, 1)):
            loss = mixed_cross_entropy(*tensors, target, implementation=implementation, reduction=reduction)
        errors[implementation] = error(torch.autograd.grad(loss, tensors), true)
    ratios = [mine / theirs for mine, theirs in zip(errors[way.implementation], errors["reference"], strict=True)]
    assert max(ratios) <= 1.05, ratios


@every_fast_way
def test_a_mean_over_many_tokens_does_not_overflow_float16_on_the_way(way):
    tokens = 75
    hidden = torch.full((tokens, 1), 4096.0, dtype=torch.float16, device=way.device)
    heads = [torch.zeros(2, 1, dtype=torch.float16, device=way.device).requires_grad_() for _ in range(2)]
    target = torch.zeros(tokens, dtype=torch.long, device=way.device)
    loss = mixed_cross_entropy(
        hidden, heads[0], hidden, heads[1], target, reduction="mean", implementation=way.implementation
    )
    loss.backward()
    assert heads[0].grad[:, 0].tolist() == [-1024.0, 1024.0]  # half of 4096 (P - onehot); the sum would be 76,800


@pytest.mark.parametrize("options", [{}, {"strong_anchor": 0.5}])
@every_fast_way
def test_a_gradient_scaler_keeps_float16_gradients_that_one_over_the_tokens_would_round_to_zero(way, options):
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=draw) * 0.05 for shape in ((12, 64), (200, 64)) * 2]
    target = torch.randint(200, (12,), generator=draw).to(way.device)

    def gradients(dtype, implementation):
        strong, strong_head, weak, weak_head = (x.to(way.device, dtype).requires_grad_() for x in tensors)
        loss, _ = mixed_cross_entropy_with_statistics(
            *(strong, Head(strong_head), weak, Head(weak_head), target),
            **options | {"scale": 1 / 500_000, "implementation": implementation},
        )
        return [g.float() for g in torch.autograd.grad(65536 * loss, (strong, weak))]

    for mine, true in zip(
        gradients(torch.float16, way.implementation), gradients(torch.float32, "reference"), strict=True
    ):
        assert (mine - true).norm() < 0.005 * true.norm()


# Shapes


@every_way
def test_rows_that_do_not_match_the_targets_are_an_error(way):
    case = problem(6, 5, 4, 23)
    strong, strong_head, weak, weak_head = given_tensors(case, way.device)
    target = case.target_T.to(way.device)
    with pytest.raises(UserError, match="Strong hidden states have 6 rows, weak ones 6, and there are 4 targets"):
        mixed_cross_entropy(strong, strong_head, weak, weak_head, target[:4], implementation=way.implementation)
    for hidden, found in (((strong, None), "6 rows, weak ones None"), ((None, weak), "None rows, weak ones 6")):
        with pytest.raises(UserError, match=found):
            mixed_cross_entropy_with_statistics(
                hidden[0], Head(strong_head), hidden[1], Head(weak_head), target, implementation=way.implementation
            )


@every_fast_way
def test_a_cap_on_one_branch_alone_gives_finite_gradients_without_an_anchor(way):
    """The strong logits lie far above the mixed log-sum-exp, and their own softmax is not used."""
    strong, weak = torch.full((2, 3), 300.0), torch.tensor([[1.0, 2, 3], [3, 2, 1]])
    leaves = [x.to(way.device).requires_grad_() for x in (strong, weak)]
    eye = torch.eye(3, device=way.device)
    loss, _ = mixed_cross_entropy_with_statistics(
        leaves[0],
        Head(eye),
        leaves[1],
        Head(eye, cap=30.0),
        torch.tensor([0, 1], device=way.device),
        strong_weight=0.4,
        statistics=False,
        implementation=way.implementation,
    )
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, leaves))
