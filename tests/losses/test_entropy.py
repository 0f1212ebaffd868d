"""Token entropy against numbers worked out by hand and a dense float64 computation, in every implementation."""

import math

import pytest
import torch
from torch.nn import functional as F

from loss_cases import Watch
from weakdriven.errors import UserError
from weakdriven.losses import entropy as home
from weakdriven.losses.entropy import token_entropy, token_entropy_reference, token_scores
from weakdriven.losses.head import Head

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = torch.tensor([[4.0, 1, 0, -1], [2, 1.5, 0.5, 0], [3, 1.25, 0.25, -0.5]], device=DEVICE)
EYE = torch.eye(4, device=DEVICE)
every_way = pytest.mark.parametrize("way", ["reference", "chunked", "triton"])


def random_case(T, D, V, dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(shape, generator=draw).to(DEVICE, dtype) for shape in ((T, D), (V, D)))
    return hidden, head, torch.randint(V, (T,), generator=draw).to(DEVICE)


def exact(logits, target):
    p = logits.double().softmax(-1)
    return -torch.xlogy(p, p).sum(-1), F.cross_entropy(logits.double(), target, reduction="none")


def assert_exact(scores, logits, target, tolerance=1e-5):
    entropy, nll = exact(logits, target)
    torch.testing.assert_close(scores.entropy_T.double(), entropy, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(scores.nll_T.double(), nll, rtol=tolerance, atol=tolerance)


@every_way
def test_entropies_of_the_fixture_are_the_published_ones(way):
    scores = token_scores(ROWS, EYE, torch.zeros(3, dtype=torch.long, device=DEVICE), implementation=way)
    assert scores.entropy_T.tolist() == pytest.approx([0.3106389, 1.1378989, 0.6992252], abs=1e-6)
    assert scores.nll_T.tolist() == pytest.approx([0.0721724, 0.6754903, 0.2373613], abs=1e-6)
    assert token_entropy(ROWS, EYE, implementation=way).equal(scores.entropy_T)


@every_way
@pytest.mark.parametrize("rows, mean", [([0, 1], 0.7242689), ([1, 2], 0.9185621)])
def test_the_sequence_entropy_of_the_right_rows_differs_from_the_off_by_one_reading(rows, mean, way):
    assert token_entropy(ROWS[rows], EYE, implementation=way).mean().item() == pytest.approx(mean, abs=1e-6)


@every_way
@pytest.mark.parametrize("tile, T, D, V", [(1, 1, 1, 2), (3, 13, 3, 33), (8, 8, 16, 128), (3, 5, 8, 5000)])
def test_any_tile_equals_float64(T, D, V, tile, way, monkeypatch):
    monkeypatch.setattr(home, "tile_rows", lambda *_, **__: (tile, tile))
    hidden, head, target = random_case(T, D, V)
    scores, logits = token_scores(hidden, head, target, hits=True, implementation=way), hidden @ head.T
    assert_exact(scores, logits.double(), target)
    assert scores.hit_T.tolist() == (logits.argmax(-1) == target).tolist()


@every_way
@pytest.mark.parametrize("options", [{"scale": 0.125}, {"cap": 2.0}, {"bias_V": True}, {"scale": 3.0, "cap": 2.0}])
def test_a_head_that_scales_caps_or_shifts_is_taken_whole(options, way):
    hidden, weight, target = random_case(13, 3, 33)
    bias = torch.linspace(-2, 2, 33, device=DEVICE) if options.get("bias_V") else None
    head = Head(weight, **options | {"bias_V": bias})
    logits = (hidden.double() @ weight.double().T + (0 if bias is None else bias.double())) * options.get("scale", 1)
    if "cap" in options:
        logits = options["cap"] * (logits / options["cap"]).tanh()
    scores = token_scores(hidden, head, target, hits=True, implementation=way)
    assert_exact(scores, logits, target)
    assert scores.hit_T.bool().equal(logits.argmax(-1) == target)


@every_way
def test_a_certain_prediction_has_entropy_zero_and_an_even_one_the_logarithm_of_the_vocabulary(way):
    logits = torch.stack([torch.tensor([1000.0] + [0] * 7), torch.zeros(8)]).to(DEVICE)
    entropy = token_entropy(logits, torch.eye(8, device=DEVICE), implementation=way)
    assert entropy.tolist() == pytest.approx([0, math.log(8)], abs=1e-6)
    assert entropy.min() >= 0


@every_way
@pytest.mark.parametrize("shift", [1e3, -1e3])
def test_entropy_does_not_move_with_a_shift_of_all_logits(shift, way):
    entropy = token_entropy(ROWS + shift, EYE, implementation=way)
    assert entropy.tolist() == pytest.approx([0.3106389, 1.1378989, 0.6992252], abs=1e-6 if shift == 0 else 2e-4)


@every_way
def test_half_precision_logits_are_summed_in_float32(way):
    hidden, head, target = random_case(8, 16, 128, torch.bfloat16)
    scores = token_scores(hidden, head, target, implementation=way)
    assert scores.entropy_T.dtype == scores.nll_T.dtype == torch.float32
    # the interpreter of Triton rounds the bf16 logits as the others do; only the order of the sums differs
    assert_exact(scores, hidden @ head.T, target, tolerance=1e-4)


@pytest.mark.parametrize("way", ["auto", "chunked", "reference"])
def test_double_precision_stays_double(way):
    hidden, head, target = random_case(8, 16, 128, torch.float64)
    scores = token_scores(hidden, head, target, implementation=way)
    assert scores.entropy_T.dtype == torch.float64
    assert_exact(scores, hidden @ head.T, target, tolerance=1e-12)


@every_way
def test_a_non_finite_hidden_state_changes_its_own_token_alone(way):
    hidden, head, target = random_case(5, 16, 128)
    hidden[2] = math.nan
    scores = token_scores(hidden, head, target, implementation=way)
    assert scores.entropy_T.isfinite().tolist() == scores.nll_T.isfinite().tolist() == [True, True, False, True, True]


@every_way
def test_no_tokens_give_no_scores(way):
    hidden, head, _ = random_case(5, 16, 128)
    assert token_entropy(hidden[:0], head, implementation=way).shape == (0,)


def test_scores_carry_no_gradient():
    hidden, head, _ = random_case(5, 16, 128)
    assert not token_entropy(hidden.requires_grad_(), head.requires_grad_()).requires_grad


@every_way
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_missing_probability_counts_nothing(way):
    logits = torch.tensor([[0.0, 0.0, -math.inf]], device=DEVICE)
    assert token_entropy_reference(logits).tolist() == pytest.approx([math.log(2)])
    hidden, head, target = random_case(5, 16, 40)
    bias = torch.zeros(40, device=DEVICE).index_fill_(0, torch.arange(20, 40, device=DEVICE), -math.inf)
    scores = token_scores(hidden, Head(head, bias), target % 20, implementation=way)
    assert_exact(scores, hidden.double() @ head[:20].double().T, target % 20)


def test_the_largest_tensor_is_a_tile():
    hidden, head, _ = random_case(1024, 4, 50_000)
    with Watch() as watch:
        token_entropy(hidden, head, implementation="chunked")
    assert watch.largest < 1024 * 50_000 * 4 / 4


@pytest.mark.parametrize(
    "hidden, head, target, message",
    [
        ((3, 4), (9, 5), 3, "width"),
        ((3, 4), (9, 4), 2, "2 targets"),
        ((1, 3, 4), (9, 4), 1, "shape"),
    ],
)
def test_shapes_that_do_not_fit_are_an_error(hidden, head, target, message):
    with pytest.raises(UserError, match=message):
        token_scores(torch.zeros(hidden), torch.zeros(head), torch.zeros(target, dtype=torch.long))


def test_an_unknown_implementation_is_an_error_that_names_the_known_ones():
    with pytest.raises(UserError, match="expected one of auto, reference, chunked, triton"):
        token_entropy(ROWS, EYE, implementation="fast")  # type: ignore
