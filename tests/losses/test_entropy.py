"""Token entropy against METHODS 1.4 and a dense float64 computation."""

import pytest
import torch
from torch.nn import functional as F

from weakdriven.losses.entropy import token_entropy, token_entropy_reference
from weakdriven.losses.head import Head

ROWS = torch.tensor([[4.0, 1, 0, -1], [2, 1.5, 0.5, 0], [3, 1.25, 0.25, -0.5]])


def fixture_entropy(rows):
    return token_entropy(ROWS[rows], torch.eye(4), torch.zeros(len(rows), dtype=torch.long))


def random_case(T, D, V):
    draw = torch.Generator().manual_seed(0)
    shapes = (T, D), (V, D)
    return *(torch.randn(s, generator=draw) for s in shapes), torch.randint(V, (T,), generator=draw)


def test_entropies_of_the_fixture_are_the_published_ones():
    entropy, nll = fixture_entropy([0, 1, 2])
    assert entropy.tolist() == pytest.approx([0.3106389, 1.1378989, 0.6992252], abs=1e-6)
    assert nll.tolist() == pytest.approx([0.0721724, 0.6754903, 0.2373613], abs=1e-6)


@pytest.mark.parametrize("rows, mean", [([0, 1], 0.7242689), ([1, 2], 0.9185621)])
def test_the_sequence_entropy_tells_the_right_rows_from_the_off_by_one_reading(rows, mean):
    assert fixture_entropy(rows)[0].mean().item() == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 8, 1024])
@pytest.mark.parametrize("T, D, V", [(1, 1, 2), (8, 16, 128), (13, 3, 33)])
def test_any_chunk_size_equals_the_reference_and_float64(T, D, V, chunk):
    hidden, head, target = random_case(T, D, V)
    entropy, nll = token_entropy(hidden, head, target, chunk=chunk)
    logits = hidden.double() @ head.double().T
    p = logits.softmax(-1)
    torch.testing.assert_close(entropy, token_entropy_reference(hidden @ head.T))
    torch.testing.assert_close(entropy.double(), -(p * p.log()).sum(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(nll.double(), F.cross_entropy(logits, target, reduction="none"), rtol=1e-5, atol=1e-5)


def test_a_certain_prediction_has_entropy_zero_and_an_even_one_the_logarithm_of_the_vocabulary():
    logits = torch.stack([torch.tensor([1000.0] + [0] * 7), torch.zeros(8)])
    entropy, _ = token_entropy(logits, torch.eye(8), torch.tensor([0, 0]))
    assert entropy.tolist() == pytest.approx([0, 2.0794415], abs=1e-6)


def test_half_precision_logits_are_summed_in_float32():
    hidden, head, target = random_case(8, 16, 128)
    entropy, nll = token_entropy(hidden.bfloat16(), head.bfloat16(), target)
    assert entropy.dtype == nll.dtype == torch.float32
    torch.testing.assert_close(entropy, token_entropy(hidden, head, target)[0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("options", [{"scale": 0.125}, {"cap": 2.0}, {"bias_V": True}, {"scale": 3.0, "cap": 2.0}])
def test_a_head_that_scales_caps_or_shifts_is_taken_whole(options):
    hidden, weight, target = random_case(13, 3, 33)
    bias = torch.linspace(-2, 2, 33) if options.get("bias_V") else None
    head = Head(weight, **options | {"bias_V": bias})
    entropy, nll = token_entropy(hidden, head, target, chunk=4)
    logits = (hidden.double() @ weight.double().T + (0 if bias is None else bias.double())) * options.get("scale", 1)
    if "cap" in options:
        logits = options["cap"] * (logits / options["cap"]).tanh()
    p = logits.softmax(-1)
    torch.testing.assert_close(entropy.double(), -(p * p.log()).sum(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(nll.double(), F.cross_entropy(logits, target, reduction="none"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shift", [0.0, 1e3, -1e3])
def test_entropy_does_not_move_with_a_shift_of_all_logits(shift):
    entropy, _ = token_entropy(ROWS + shift, torch.eye(4), torch.zeros(3, dtype=torch.long))
    assert entropy.tolist() == pytest.approx([0.3106389, 1.1378989, 0.6992252], abs=1e-6 if shift == 0 else 2e-4)
