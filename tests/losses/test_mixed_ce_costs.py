"""Cost of the mixed loss: how many products it computes and how many logits it holds."""

import pytest
import torch

from loss_cases import Watch, Way, every_fast_way, every_way, given_tensors, problem, tiles
from weakdriven.losses import tiles as tiling
from weakdriven.losses.mixed_ce import IGNORE, NO_GRADIENT, SEPARATE, SHARED, mixed_cross_entropy

T, D, V = 5, 4, 37
CHUNKED = Way("chunked", "cpu")


def watched(way, case, **options):
    with tiles(2, 1), Watch() as watch:
        loss, statistics, _ = case.solve(way, **options)
    assert loss.isfinite()
    return watch, statistics


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"strong_anchor": 0.5, "caps": (3.0, None)}], ids=["shared", "separate"])
@every_fast_way
def test_loss_and_all_gradients_take_six_products(way, options, dtype):
    watch, _ = watched(way, problem(T, D, D, V, dtype=dtype, **options))
    assert watch.work == 6 * T * D * V


@pytest.mark.parametrize("strong_weight", [0.0, 1.0])
@every_fast_way
def test_at_either_end_only_one_branch_is_computed(way, strong_weight):
    case = problem(T, D, 9, V, strong_weight=strong_weight)
    watch, statistics = watched(way, case)  # the hidden states of the dead branch are None
    width = 9 if strong_weight == 0 else D
    assert watch.work == 3 * T * width * V
    dead, alive = ("strong", "weak") if strong_weight == 0 else ("weak", "strong")
    values = statistics._asdict()
    assert values[f"{dead}_loss"].isnan() and values[f"{dead}_entropy"].isnan() and values["margin_tokens"].isnan()
    assert values[f"{alive}_loss"] == values["mixed_loss"] and values[f"{alive}_entropy"] == values["mixed_entropy"]
    assert statistics.strong_probability.isnan() == (strong_weight == 0)


@every_fast_way
def test_an_anchor_keeps_the_strong_branch_alive_without_any_weight(way):
    watch, statistics = watched(way, problem(T, D, D, V, strong_weight=0.0, strong_anchor=0.5))
    assert watch.work == 6 * T * D * V
    assert not any(value.isnan() for value in statistics)


@pytest.mark.parametrize("strong_weight, dead", [(0.0, 0), (1.0, 2)])
@every_way
def test_the_public_function_gives_the_dead_branch_no_gradient(way, strong_weight, dead):
    case = problem(T, D, 9, V)
    tensors, target = given_tensors(case, way.device), case.target_T.to(way.device)
    options = {"strong_weight": strong_weight, "implementation": way.implementation}
    mixed_cross_entropy(*tensors, target, **options).backward()
    assert [x.grad is None for x in tensors] == [i in (dead, dead + 1) for i in range(4)]


@pytest.mark.parametrize("anchor", [0.0, 0.5])
@pytest.mark.parametrize(
    "needed, products",
    [
        ((0, 1, 3, 4), 6),
        ((0, 1), 4),  # frozen weak model
        ((0, 3), 4),  # LoRA pair: frozen heads
        ((0,), 3),  # LoRA and a frozen weak model
        ((1,), 3),
        ((4,), 3),
        ((), 2),  # evaluation
    ],
)
@every_fast_way
def test_no_product_is_spent_on_an_unused_gradient(way, needed, products, anchor):
    case = problem(T, D, D, V, needs=sum(1 << i for i in needed), strong_anchor=anchor)
    assert watched(way, case)[0].work == products * T * D * V


def test_without_gradients_only_the_logits_are_computed():
    with torch.no_grad():
        assert watched(CHUNKED, problem(T, D, D, V, needs=0))[0].work == 2 * T * D * V
        case = problem(T, D, D, V)
        with tiles(2), Watch() as watch:
            loss = mixed_cross_entropy(*given_tensors(case), case.target_T)
    assert watch.work == 2 * T * D * V and not loss.requires_grad
    assert torch.equal(loss, case.solve(CHUNKED)[0])


@every_fast_way
def test_ignored_targets_cost_no_product_and_no_memory(way):
    case = problem(40, D, D, V)
    target = case.target_T.masked_fill(torch.arange(40) % 8 != 3, IGNORE)
    tensors = given_tensors(case, way.device)
    with Watch() as watch:
        mixed_cross_entropy(*tensors, target.to(way.device), implementation=way.implementation).backward()
    assert watch.work == 6 * 5 * D * V
    assert watch.largest <= 5 * V * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"strong_anchor": 0.5, "caps": (3.0, 3.0)}], ids=["shared", "separate"])
def test_chunked_never_holds_more_than_its_budget_and_the_gradients(options, dtype, monkeypatch):
    rows, width, vocabulary = 7, 8, 999
    element = 2 * torch.finfo(dtype).bits // 8 + (3 if dtype == torch.float32 and not options else 4) * 4
    budget = rows * vocabulary * element + 5
    monkeypatch.setattr(tiling, "CPU_TILE_BYTES", budget)
    case = problem(100, width, width, vocabulary, dtype=dtype, **options)
    with Watch() as watch:
        case.solve(CHUNKED)
    assert {shape[0] for shape in watch.shapes if shape[2] == vocabulary} == {7, 2}  # 14 tiles and what is left
    assert watch.largest <= max(rows, width) * vocabulary * 4
    sums = 2 * vocabulary * width * 4
    hidden_and_rows = 2 * 100 * (width + 16) * 4
    assert 0.6 * budget < watch.peak - sums <= budget + hidden_and_rows


@every_fast_way
def test_no_tensor_of_all_logits_is_ever_made(way):
    with tiles(2), Watch() as watch:
        problem(9, 1, 1, 500).solve(way)
    assert watch.largest == 2 * 500 * 4


@pytest.mark.parametrize("gradients", [NO_GRADIENT, SHARED, SEPARATE])
@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("dtype, vocabulary", [(torch.float32, 32_000), (torch.bfloat16, 262_144)])
def test_tiles_fill_the_budget_and_stay_inside_it(vocabulary, dtype, pair, gradients):
    like = torch.empty(0, dtype=dtype)
    chunk, tile = tiling.tile_rows(like, vocabulary, triton=True, pair=pair, gradients=gradients)
    held = (chunk + tile * pair) * vocabulary * like.element_size()
    assert 0.6 * tiling.TILE_BYTES < held <= tiling.TILE_BYTES
    if pair and gradients == SEPARATE:
        assert chunk == tile  # both gradients of a chunk are used at once
    chunk, tile = tiling.tile_rows(like, vocabulary, triton=False, pair=pair, gradients=gradients)
    copies = 3 if dtype == torch.float32 and gradients != SEPARATE else 4
    held = chunk * vocabulary * (2 * like.element_size() + copies * 4)
    assert chunk == tile and 0.6 * tiling.CPU_TILE_BYTES < held <= tiling.CPU_TILE_BYTES


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize("gradients", [NO_GRADIENT, SHARED, SEPARATE])
def test_a_budget_smaller_than_a_row_still_gives_a_row(gradients, triton, monkeypatch):
    monkeypatch.setattr(tiling, "TILE_BYTES", 10)
    monkeypatch.setattr(tiling, "CPU_TILE_BYTES", 10)
    for pair in (True, False):
        rows = tiling.tile_rows(torch.empty(0), 1000, triton=triton, pair=pair, gradients=gradients)
        assert min(rows) >= 1
