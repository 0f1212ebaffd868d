"""Mixed cross-entropy, by each implementation: numbers worked out by hand, the paper's gradients, and float64."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loss_cases import Problem, Way, assert_solves, every_fast_way, every_way, problem, tiles
from weakdriven.losses.mixed_ce import mixed_cross_entropy, mixed_cross_entropy_reference

STRONG, WEAK, MIXED = [4.0, 1, 0, -1], [2, 1.5, 0.5, 0], [3, 1.25, 0.25, -0.5]
P_STRONG, P_WEAK = [0.930370, 0.046320, 0.017040, 0.006269], [0.508907, 0.308668, 0.113552, 0.068873]
P_MIXED = [0.788706, 0.137057, 0.050420, 0.023817]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
quick = settings(deadline=None, derandomize=True, database=None)
rows = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=6)
weights = st.floats(0.01, 0.99)


def near(values, tolerance=1e-6):
    return pytest.approx(values, abs=tolerance)


def logits_problem(strong, weak, target=0, **options):
    """Identity heads, so that hidden states are logits and their gradients are those of the logits."""
    heads = [torch.eye(len(strong))] * 2
    hidden = [torch.tensor([row], dtype=torch.float32, requires_grad=True) for row in (strong, weak)]
    tensors = (hidden[0], heads[0], None, hidden[1], heads[1], None)
    return Problem(tensors, torch.tensor([target]), **options)


def solve(way, strong=STRONG, weak=WEAK, **options):
    """Loss, statistics as numbers, and the gradient by each branch's logits (None: it did not run)."""
    loss, statistics, gradients = logits_problem(strong, weak, **options).solve(way)
    by_logit = [None if g is None else g[0].tolist() for g in gradients[::3]]
    return loss.item(), statistics._replace(**{k: v.item() for k, v in statistics._asdict().items()}), *by_logit


def distributions(way, strong, weak, target, strong_weight):
    """P_mix, P_strong and P_weak as the gradients show them: dL/dz = P - onehot(y)."""
    hit = torch.nn.functional.one_hot(torch.tensor(target), len(strong)).double()
    found = []
    for share in (strong_weight, 1.0, 0.0):
        _, _, by_strong, by_weak = solve(way, strong, weak, target=target, strong_weight=share)
        gradient = torch.tensor(by_weak).double() if share == 0 else torch.tensor(by_strong).double() / share
        found.append(gradient + hit)
    return found


# numbers worked out by hand


@pytest.mark.parametrize(
    "strong_weight, loss", [(1, 0.0721724), (0, 0.6754903), (0.5, 0.2373613), (0.42, 0.2842146), (0.9, 0.0921606)]
)
@every_way
def test_the_loss_of_the_fixture_is_the_published_one(way, strong_weight, loss):
    assert solve(way, strong_weight=strong_weight)[0] == near(loss)


@pytest.mark.parametrize("strong_weight, loss", [(1, 0.0721724), (0.5, 0.2373613), (0.42, 0.2842146)])
def test_two_lines_on_dense_logits_give_the_published_loss(strong_weight, loss):
    logits = torch.tensor([STRONG]), torch.tensor([WEAK])
    got = mixed_cross_entropy_reference(*logits, torch.tensor([0]), strong_weight=strong_weight)
    assert got.item() == near(loss)


@every_way
def test_probabilities_of_the_fixture_are_the_published_ones(way):
    found = distributions(way, STRONG, WEAK, 0, 0.5)
    assert [p.tolist() for p in found] == [near(P_MIXED), near(P_STRONG), near(P_WEAK)]
    mixed, strong, _ = found
    assert (mixed / strong)[1:].tolist() == near([2.958881, 2.958881, 3.799278], 2e-5)
    assert (0.5 * mixed / strong)[1:].tolist() == near([1.479, 1.479, 1.900], 5e-4)
    assert (1 - strong[0].item(), 1 - mixed[0].item()) == near((0.0696295, 0.2112938))


@every_way
def test_statistics_of_the_fixture_are_the_published_ones(way):
    statistics = solve(way)[1]
    assert statistics.mixed_loss == near(0.2373613)
    assert (statistics.strong_loss, statistics.weak_loss) == near((0.0721724, 0.6754903))
    assert (statistics.mixed_probability, statistics.strong_probability) == near((P_MIXED[0], P_STRONG[0]))
    entropies = statistics.strong_entropy, statistics.weak_entropy, statistics.mixed_entropy
    assert entropies == near((0.3106389, 1.1378989, 0.6992252))
    assert statistics.margin_tokens == 1


@pytest.mark.parametrize(
    "strong_weight, strong, weak",
    [
        (1, [-0.069630, 0.046320, 0.017040, 0.006269], None),
        (0, None, [p - (k == 0) for k, p in enumerate(P_WEAK)]),
        (0.5, [-0.105647, 0.068528, 0.025210, 0.011908], [-0.105647, 0.068528, 0.025210, 0.011908]),
        (0.42, [-0.103906, 0.067090, 0.024681, 0.012134], [58 / 42 * g for g in (-0.103906, 0.067090, 0.024681)]),
    ],
)
@every_way
def test_branch_gradients_of_the_fixture_are_the_published_ones(way, strong_weight, strong, weak):
    _, _, by_strong, by_weak = solve(way, strong_weight=strong_weight)
    assert by_strong is None if strong is None else by_strong[: len(strong)] == near(strong)
    assert by_weak is None if weak is None else by_weak[: len(weak)] == near(weak, 2e-6)


@every_way
def test_the_mean_is_over_tokens_and_not_over_sequences(way):
    logits = torch.tensor([STRONG, WEAK, MIXED, STRONG], device=way.device)
    target, eye = torch.zeros(4, dtype=torch.long, device=way.device), torch.eye(4, device=way.device)
    options = {"implementation": way.implementation}
    total = mixed_cross_entropy(logits, eye, logits, eye, target, **options).item()
    mean = mixed_cross_entropy(logits, eye, logits, eye, target, reduction="mean", **options).item()
    assert (total / 4, mean) == near((0.2642991, 0.2642991))
    sequences = [
        mixed_cross_entropy(logits[s], eye, logits[s], eye, target[s], reduction="mean", **options).item()
        for s in (slice(0, 1), slice(1, 4))
    ]
    assert sum(sequences) / 2 == near(0.2002569)


# the paper's gradients (Supplementary Theory, "Setup and Baseline")


@pytest.mark.parametrize("options", [{}, {"strong_anchor": 0.7}, {"caps": (3.0, 2.0), "scales": (0.3, 2.0)}])
@pytest.mark.parametrize("implementation", ["reference", "chunked"])
def test_finite_differences_agree_with_every_gradient(implementation, options):
    way = Way(implementation, "cpu")
    case = problem(5, 3, 4, 11, dtype=torch.float64, strong_weight=0.42, biases=(True, True), **options)
    with tiles(2):
        loss, statistics, gradients = case.solve(way)
        assert loss.dtype == statistics.mixed_entropy.dtype == torch.float64
        for i, gradient in enumerate(gradients):
            draw = torch.Generator().manual_seed(i)
            step = 1e-5 * torch.randn(gradient.shape, generator=draw, dtype=torch.float64)
            ends = []
            for sign in (1, -1):
                moved = list(case.tensors)
                moved[i] = moved[i].detach() + sign * step
                ends.append(case._replace(tensors=tuple(moved)).solve(way)[0].item())
            slope = (ends[0] - ends[1]) / 2
            assert slope == pytest.approx((gradient * step).sum().item(), rel=1e-6, abs=1e-11)


@pytest.mark.parametrize("shift", [(30.0, 0.0), (0.0, -30.0), (30.0, -20.0)], ids=["strong", "weak", "both"])
@every_way
def test_shifting_the_logits_of_a_branch_by_a_constant_changes_nothing(way, shift):
    plain = problem(3, 5, 4, 23, strong_weight=0.42, strong_anchor=0.3)
    tensors = list(plain.tensors)
    tensors[2], tensors[5] = torch.full((23,), shift[0]), torch.full((23,), shift[1])
    shifted = plain._replace(tensors=tuple(tensors))
    want, got = plain.solve(way), shifted.solve(way)
    torch.testing.assert_close(got[:2], want[:2], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(got[2], want[2], rtol=1e-4, atol=2e-5)


# Formula 3: Theorem 1 and its condition


@every_fast_way
@settings(quick, max_examples=6)
@given(rows, weights, st.integers(0, 99))
def test_weak_margins_no_larger_than_strong_ones_can_only_lower_the_target(way, strong, strong_weight, seed):
    y = seed % len(strong)
    rise = 6 * torch.rand(len(strong), generator=torch.Generator().manual_seed(seed))
    rise[y] = 0
    weak = (torch.tensor(strong) + rise - 3).tolist()
    statistics = solve(way, strong, weak, target=y, strong_weight=strong_weight)[1]
    assert statistics.margin_tokens == 1
    assert statistics.mixed_probability <= statistics.strong_probability * (1 + 1e-5)


@pytest.mark.parametrize(
    "weak, holds, negative_mass", [(WEAK, 1, 0.2112938), ([3.0, -4, -4, -4], 0, 0.0131288), ([2.0, -3, -3, 1], 0, None)]
)
@every_way
def test_the_margin_condition_and_its_violation_are_counted(way, weak, holds, negative_mass):
    statistics = solve(way, weak=weak)[1]
    assert statistics.margin_tokens == holds
    if negative_mass is not None:
        assert 1 - statistics.mixed_probability == near(negative_mass)


@every_way
def test_two_equal_models_meet_the_margin_condition_on_every_token(way):
    case = problem(4, 5, 5, 23)
    same = case._replace(tensors=case.tensors[:3] * 2)
    assert same.solve(way)[1].margin_tokens == 4


# Any problem


@st.composite
def problems(draw, longest=6):
    size, share = st.integers(1, 9), st.sampled_from([0.0, 0.42, 1.0])
    flag = st.booleans()
    return problem(
        draw(st.integers(0, longest)),
        draw(size),
        draw(size),
        draw(st.integers(1, 40)),
        seed=draw(st.integers(0, 999)),
        dtype=draw(st.sampled_from(DTYPES)),
        extra=draw(st.sampled_from([(0, 0), (3, 0), (0, 2)])),
        biases=(draw(flag), draw(flag)),
        needs=draw(st.sampled_from([63, 63, 0]) | st.integers(0, 63)),
        strong_weight=draw(share | st.floats(0, 1)),
        strong_anchor=draw(st.just(0.0) | st.floats(0, 2)),
        scales=(draw(st.sampled_from([1.0, 0.125, 0.3, 4.0])), draw(st.sampled_from([1.0, 0.125, 0.3, 4.0]))),
        caps=(draw(st.sampled_from([None, 3.0, 30.0])), draw(st.sampled_from([None, 3.0, 30.0]))),
    )


chunks = st.integers(1, 7)


def assert_any_problem_is_solved(way, examples):
    @settings(quick, max_examples=examples)
    @given(st.data())
    def solve(data):
        with tiles(data.draw(chunks), data.draw(chunks)):
            assert_solves(way, data.draw(problems(longest=2 if way == ("triton", "cpu") else 9)))

    solve()


@every_way
def test_any_problem_in_any_tiles_is_solved_as_in_float64(way):
    assert_any_problem_is_solved(way, examples=25 if way == ("triton", "cpu") else 60)


@pytest.mark.slow
@every_way
def test_many_more_problems_are_solved_as_in_float64(way):
    assert_any_problem_is_solved(way, examples=120)


@every_way
@settings(quick, max_examples=15)
@given(st.data())
def test_branches_of_different_precision_are_computed_in_the_wider_one(way, data):
    case = data.draw(problems(longest=2))
    of_strong, of_weak = data.draw(st.permutations(DTYPES))[:2]
    assume(all(case.runs))
    moved = [
        x if x is None else x.detach().to(of_strong if i < 3 else of_weak).requires_grad_(x.requires_grad)
        for i, x in enumerate(case.tensors)
    ]
    assert_solves(way, case._replace(tensors=tuple(moved)))


@pytest.mark.parametrize("dtype", DTYPES)
@every_fast_way
def test_a_master_head_in_float32_over_narrow_hidden_states_gets_float32_gradients(way, dtype):
    case = problem(3, 5, 4, 23, biases=(True, True), strong_weight=0.42)
    moved = list(case.tensors)
    moved[0], moved[3] = (moved[i].detach().to(dtype).requires_grad_() for i in (0, 3))
    narrow = case._replace(tensors=tuple(moved))
    want = narrow.exact()
    loss, _, gradients = narrow.solve(way)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.cpu().double(), want.loss, rtol=1e-5, atol=1e-5)
    assert [g.dtype for g in gradients] == [dtype, torch.float32, torch.float32] * 2
    for got, true, scale in zip(gradients, want.gradients, want.scales, strict=True):
        assert ((got.cpu().double() - true).abs() <= max(2e-5, 2 * torch.finfo(dtype).eps) * scale + 1e-6).all()
