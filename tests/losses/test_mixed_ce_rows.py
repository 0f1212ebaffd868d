"""The Triton rows against the torch rows, tile by tile: every option, odd blocks, strides."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loss_cases import CUDA
from weakdriven.losses.mix_rows import NO_GRADIENT, SEPARATE, SHARED, Mixing, mix_rows
from weakdriven.losses.triton import mixed_ce as kernel

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="with CUDA, Triton compiles")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs CUDA")]),
]
on_each_device = pytest.mark.parametrize("device", DEVICES)


def tile(rows, vocabulary, dtype, seed, *, spare=0):
    """Two tiles of raw logits, the strong one as the first columns of a wider one, and targets."""
    draw = torch.Generator().manual_seed(seed)
    columns = (vocabulary + spare, vocabulary)
    wide = [(3 * torch.randn(rows, width, generator=draw)).to(dtype) for width in columns]
    return *wide, torch.randint(vocabulary, (rows,), generator=draw)


def both(device, strong, weak, target, *, vocabulary, statistics, gradients, **mixing):
    """What each leaves in its tiles, and its rows of results."""
    found, options = [], {"statistics": statistics, "gradients": gradients}
    for fill in (mix_rows, kernel.mix_rows):
        place = "cpu" if fill is mix_rows else device
        wide = [None if x is None else x.clone().to(place) for x in (strong, weak)]
        views = [None if x is None else x[:, :vocabulary] for x in wide]
        results = fill(*views, target.to(place), Mixing(**mixing), **options)
        found.append(([None if x is None else x.cpu().float() for x in wide], results.cpu()))
    return found


def assert_same(device, rows, vocabulary, dtype, seed, *, weak=True, spare=0, **options):
    strong, other, target = tile(rows, vocabulary, dtype, seed, spare=spare)
    (want, want_results), (got, results) = both(
        device, strong, other if weak else None, target, vocabulary=vocabulary, **options
    )
    asked = slice(None) if options["statistics"] else slice(0, 1)
    torch.testing.assert_close(results[:, asked], want_results[:, asked], rtol=1e-5, atol=3e-5, equal_nan=True)
    atol = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    for mine, true in zip(got[: 1 + weak], want, strict=False):
        torch.testing.assert_close(mine, true, rtol=atol, atol=atol)
        assert torch.equal(mine[:, vocabulary:], true[:, vocabulary:])
    before = strong.float(), other.float()
    written = [not torch.equal(mine, x) for mine, x in zip(got, before, strict=True) if mine is not None]
    gradients = options["gradients"]
    assert written == [gradients != NO_GRADIENT, gradients == SEPARATE][: 1 + weak]


@on_each_device
@settings(deadline=None, derandomize=True, database=None, max_examples=30)
@given(st.data())
def test_every_option_gives_the_results_and_gradients_of_the_torch_rows(device, data):
    def draw(*choices):
        return data.draw(st.sampled_from(choices))

    gradients = draw(NO_GRADIENT, SHARED, SEPARATE)
    caps = (0.0, 3.0, 30.0) if gradients != SHARED else (0.0,)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "BLOCK", draw(16, 32))  # so that rows of any length take several blocks
        assert_same(
            device,
            draw(1, 2),
            data.draw(st.integers(1, 70)),
            draw(torch.float32, torch.bfloat16, torch.float16),
            data.draw(st.integers(0, 999)),
            weak=draw(True, True, False),
            spare=draw(0, 5),
            strong_weight=data.draw(st.floats(0.01, 0.99)),
            strong_anchor=draw(0.0, 0.7) if gradients != SHARED else 0.0,
            strong_scale=draw(1.0, 0.125, 1.7),
            weak_scale=draw(1.0, 0.125, 1.7),
            strong_cap=draw(*caps),
            weak_cap=draw(*caps),
            statistics=draw(True, False),
            gradients=gradients,
        )


PLAIN = {"strong_weight": 0.42}


@pytest.mark.parametrize(
    "vocabulary, gradients",
    [(1, SHARED), (16, SEPARATE), (4095, SHARED), (4096, SEPARATE), (4097, SHARED), (10_000, SEPARATE)],
)
@on_each_device
def test_rows_around_the_size_of_a_block_are_right(device, vocabulary, gradients):
    options = PLAIN | {"statistics": True, "gradients": gradients}
    assert_same(device, 2, vocabulary, torch.float32, 3, **options)


@pytest.mark.parametrize("last", [0, 39])
@on_each_device
def test_a_target_in_the_first_or_last_place_is_found(device, last):
    strong, weak, _ = tile(1, 40, torch.float32, 5)
    options = PLAIN | {"statistics": True, "gradients": SHARED}
    (want_tiles, want), (tiles, got) = both(device, strong, weak, torch.tensor([last]), vocabulary=40, **options)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tiles[0], want_tiles[0])
    assert tiles[0][0].argmin() == last


@on_each_device
def test_disabled_statistics_are_nan(device):
    strong, weak, target = tile(2, 40, torch.float32, 6)
    options = PLAIN | {"statistics": False, "gradients": NO_GRADIENT}
    for _, results in both(device, strong, weak, target, vocabulary=40, **options):
        assert results[:, 0].isfinite().all() and results[:, 1:].isnan().all()


@on_each_device
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_row_does_not_depend_on_its_neighbours(device):
    strong, weak, target = tile(3, 40, torch.float32, 7)
    options = PLAIN | {"statistics": True, "gradients": SEPARATE, "strong_anchor": 0.5}
    _, (tiles, together) = both(device, strong, weak, target, vocabulary=40, **options)
    strong[0], weak[2] = torch.nan, torch.inf
    _, (others, apart) = both(device, strong, weak, target, vocabulary=40, **options)
    assert torch.equal(together[1], apart[1]) and together[1].isfinite().all()
    assert torch.equal(tiles[0][1], others[0][1]) and torch.equal(tiles[1][1], others[1][1])
    assert not apart[0, 0].isfinite() and not apart[2, 0].isfinite()
