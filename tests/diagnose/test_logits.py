"""Statistics of one model's logits against dense float64, and the arithmetic of the paper's tables."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import padded_batch, tiny_model, token_rows
from loss_cases import Watch
from weakdriven.diagnose import logits as home
from weakdriven.diagnose.logits import logit_statistics
from weakdriven.diagnose.summary import calibration_error, change, summarise
from weakdriven.losses.entropy import token_scores
from weakdriven.losses.head import Head
from weakdriven.models.head import head, hidden_states

QWEN3_ROWS = 151_936
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random_case(T: int, D: int, V: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    hidden, weight = 2 * torch.randn(T, D, generator=draw), torch.randn(V, D, generator=draw)
    return hidden.to(DEVICE), weight.to(DEVICE), torch.randint(V, (T,), generator=draw).to(DEVICE)


def dense(logits_TV: np.ndarray, target_T: np.ndarray) -> dict[str, np.ndarray]:
    """Every statistic by its definition, row by row."""
    rows = []
    for z, y in zip(logits_TV.astype(np.float64), target_T, strict=True):
        others = np.delete(z, y)
        p = np.exp(z - z.max())
        p /= p.sum()
        rows.append(
            {
                "target": z[y],
                "background": others.mean(),
                "gap": z[y] - others.mean(),
                "mean": z.mean(),
                "std": z.std(),
                "centered_norm": np.linalg.norm(z - z.mean()),
                "max": z.max(),
                "min": z.min(),
                "l2": np.linalg.norm(z),
                "entropy": -(p[p > 0] * np.log(p[p > 0])).sum(),
                "max_probability": p.max(),
                "nll": -np.log(p[y]),
                "rank": 1 + (z > z[y]).sum(),
            }
        )
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def assert_dense(found: dict[str, Tensor], logits_TV: Tensor, target_T: Tensor) -> None:
    for name, expected_T in dense(logits_TV.double().cpu().numpy(), target_T.cpu().numpy()).items():
        got_T = found[name].cpu().numpy()
        np.testing.assert_allclose(got_T, expected_T, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("tile_bytes", [1, 3000, 10**9])
@pytest.mark.parametrize("T, D, V", [(1, 1, 2), (8, 16, 128), (13, 3, 33), (5, 8, 5000)])
def test_any_tile_equals_the_definitions(T, D, V, tile_bytes, monkeypatch):
    for name in ("CPU_TILE_BYTES", "TILE_BYTES"):
        monkeypatch.setattr(home, name, tile_bytes)
    hidden, weight, target = random_case(T, D, V)
    assert_dense(logit_statistics(hidden, weight, target), hidden.double() @ weight.double().T, target)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2", "cohere", "granite", "phi"])
def test_statistics_are_those_of_a_models_logits(family):
    model = tiny_model(family).eval()
    batch = padded_batch(token_rows(3))
    with torch.no_grad():
        hidden = hidden_states(model, {"input_ids": batch["input_ids"], "use_cache": False}).flatten(0, 1)
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits.flatten(0, 1)
    target = batch["input_ids"].flatten()
    assert_dense(logit_statistics(hidden, head(model), target), logits, target)


def test_entropy_and_likelihood_equal_those_of_the_selection():
    hidden, weight, target = random_case(40, 8, 65)
    found, scores = logit_statistics(hidden, weight, target), token_scores(hidden, weight, target)
    torch.testing.assert_close(found["entropy"].float(), scores.entropy_T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["nll"].float(), scores.nll_T, rtol=1e-5, atol=1e-5)


def test_rows_that_pad_a_head_count_as_they_do_in_the_losses():
    hidden, weight, target = random_case(6, 4, 20)
    padded = torch.cat([weight, torch.zeros(12, 4, device=DEVICE)])
    assert_dense(logit_statistics(hidden, padded, target), hidden @ padded.T, target)


def test_half_precision_states_are_multiplied_in_float32():
    hidden, weight, target = random_case(9, 16, 50)
    hidden, weight = hidden.bfloat16(), weight.bfloat16()
    assert_dense(logit_statistics(hidden, weight, target), hidden.double() @ weight.double().T, target)


def test_float64_stays_float64():
    hidden, weight, target = (x.double() if x.is_floating_point() else x for x in random_case(4, 5, 40))
    found = logit_statistics(hidden, weight, target)
    expected = dense((hidden @ weight.T).cpu().numpy(), target.cpu().numpy())
    np.testing.assert_allclose(found["centered_norm"].cpu().numpy(), expected["centered_norm"], rtol=1e-13)


def test_logits_of_the_size_of_the_papers_lose_nothing():
    draw = torch.Generator().manual_seed(1)
    logits = 3.06 * torch.randn(3, 20_000, generator=draw) + 3.65
    logits[:, 7] = torch.tensor([36.0, 90.0, 2.0])
    target = torch.full((3,), 7)
    assert_dense(logit_statistics(logits, Head(torch.eye(20_000)), target), logits, target)


def test_a_row_that_is_not_finite_is_nan_and_leaves_the_others_alone():
    logits = torch.tensor([[4.0, 1, 0, -1], [4.0, math.nan, 0, -1], [4.0, math.inf, 0, -1], [2, 1.5, 0.5, 0]])
    found = logit_statistics(logits, torch.eye(4), torch.zeros(4, dtype=torch.long))
    for name, value_T in found.items():  # nan times the zeros of the identity spoils the row, as it should
        assert value_T.isnan().tolist() == [False, True, True, False], name
    assert found["entropy"][[0, 3]].tolist() == pytest.approx([0.3106389, 1.1378989], abs=1e-6)


def test_a_vocabulary_of_one_has_no_background():
    found = logit_statistics(torch.ones(1, 2), torch.ones(1, 2), torch.zeros(1, dtype=torch.long))
    assert math.isnan(found["background"].item()) and math.isnan(found["gap"].item())
    assert (found["std"].item(), found["entropy"].item(), found["rank"].item()) == (0, 0, 1)


def test_no_tokens_give_no_values():
    found = logit_statistics(torch.empty(0, 3), torch.ones(5, 3), torch.empty(0, dtype=torch.long))
    assert {value_T.shape for value_T in found.values()} == {(0,)}


def test_no_tensor_has_the_size_of_all_logits(monkeypatch):
    tile = 8 * 1000 * 4
    monkeypatch.setattr(home, "CPU_TILE_BYTES", tile * home.COPIES)
    hidden, weight, target = random_case(64, 4, 1000)
    with Watch() as watch:
        logit_statistics(hidden, weight, target)
    assert watch.largest == tile
    assert watch.peak <= home.COPIES * tile


@pytest.mark.parametrize(
    "before, after, difference, percent",
    [
        (35.88, 36.10, 0.22, 0.6),
        (2.09, 0.90, -1.19, -56.9),
        (-26.63, -35.75, -9.12, 34.2),
        (1865.96, 1688.59, -177.37, -9.5),
    ],
)
def test_changes_are_printed_as_in_the_papers_tables(before, after, difference, percent):
    found = change(before, after)
    assert found["difference"] == pytest.approx(difference, abs=1e-9)
    assert round(100 * found["relative"], 1) == percent


def test_a_change_from_a_missing_value_or_zero_is_missing():
    assert change(None, 1.0) == change(1.0, None) == {"difference": None, "relative": None}
    assert change(0.0, 1.0) == {"difference": 1.0, "relative": None}


def test_the_standard_error_counts_an_example_as_one_observation():
    rng = np.random.default_rng(0)
    value_N = rng.normal(size=50)
    alone = summarise(value_N, np.arange(50))
    assert alone["error"] == pytest.approx(value_N.std(ddof=1) / 50**0.5)
    again = summarise(np.repeat(value_N, 4), np.repeat(np.arange(50), 4))  # four equal tokens tell no more than one
    assert again["error"] == pytest.approx(alone["error"]) and again["mean"] == pytest.approx(alone["mean"])


def test_missing_values_are_counted_and_left_out():
    assert summarise(np.array([np.nan, np.inf]), np.array([0, 1])) == {"mean": None, "error": None, "left_out": 2}
    assert summarise(np.array([2.0]), np.array([5])) == {"mean": 2.0, "error": None, "left_out": 0}


def test_the_calibration_error_is_how_far_confidence_is_from_being_right():
    rng = np.random.default_rng(0)
    confidence_T = rng.uniform(0.5, 1, 100_000)
    right_T = (rng.uniform(size=100_000) < confidence_T).astype(float)
    assert calibration_error(confidence_T, right_T) < 0.01
    too_sure_T = np.minimum(confidence_T + 0.1, 1)
    assert calibration_error(too_sure_T, right_T) == pytest.approx((too_sure_T - confidence_T).mean(), abs=0.01)
    mixed_T = np.where(confidence_T < 0.75, confidence_T - 0.1, too_sure_T)  # a mean would hide both
    assert calibration_error(mixed_T, right_T) > 0.05
    broken_T = np.array([0.9, np.nan, 0.9])
    assert calibration_error(broken_T, np.array([1.0, np.nan, 1.0])) == pytest.approx(0.1)
    assert calibration_error(np.full(3, np.nan), np.full(3, np.nan)) is None
