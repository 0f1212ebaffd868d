"""Effect of mixing on each token: against dense float64 by the paper's definitions, and the paper's numbers."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from loss_cases import Watch
from weakdriven.diagnose import gradients as ours
from weakdriven.diagnose import logits as home
from weakdriven.diagnose.gradients import (
    crossover,
    effective_rate,
    pair_statistics,
    sensitivity_ratio,
    step_share,
    top_hard_negatives,
)
from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import mixed_cross_entropy_with_statistics

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STRONG, WEAK = [4.0, 1, 0, -1], [2, 1.5, 0.5, 0]
WEIGHTS = pytest.mark.parametrize("strong_weight", [0.0, 0.42, 0.5, 1.0])


def of_logits(strong, weak, target=0, *, strong_weight=0.5) -> dict[str, Tensor]:
    strong, weak = (torch.tensor([z], dtype=torch.float32) for z in (strong, weak))
    eye = torch.eye(strong.shape[1])
    return pair_statistics(strong, eye, weak, eye, torch.tensor([target]), strong_weight=strong_weight)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def dense(strong: np.ndarray, weak: np.ndarray, y: int, strong_weight: float) -> dict[str, float]:
    """One token by the definitions of the paper, over all pairs of the true token and another."""
    mixed = strong_weight * strong + (1 - strong_weight) * weak
    p_strong, p_weak, p_mixed = softmax(strong), softmax(weak), softmax(mixed)
    others = [k for k in range(len(strong)) if k != y]
    hard = [k for k in others if weak[y] - weak[k] < strong[y] - strong[k]]
    ratio = p_mixed[y] / p_strong[y]
    wide = {k: (strong[y] - strong[k]) - (weak[y] - weak[k]) for k in hard}
    amplified = [k for k in hard if ratio >= math.exp(-(1 - strong_weight) * wide[k])]
    net = [k for k in hard if strong_weight * p_mixed[k] >= p_strong[k]]
    hardest = max(hard, key=lambda k: p_mixed[k], default=None)
    onehot = np.eye(len(strong))[y]
    hessian = np.diag(p_mixed) - np.outer(p_mixed, p_mixed)
    sft, mix = np.linalg.norm(p_strong - onehot), np.linalg.norm(p_mixed - onehot)
    return {
        "hard_negatives": len(hard),
        "uniform_margin": float(all(weak[y] - weak[k] <= strong[y] - strong[k] for k in others)),
        "amplified": len(amplified),
        "net_amplified": len(net),
        "hardest_amplified": math.nan if hardest is None else float(hardest in amplified),
        "hard_mass_strong": p_strong[hard].sum(),
        "hard_mass_mixed": p_mixed[hard].sum(),
        "negative_mass_weak": p_weak[others].sum(),
        "negative_mass_strong": p_strong[others].sum(),
        "negative_mass_mixed": p_mixed[others].sum(),
        "sft_gradient": sft,
        "mixed_gradient": mix,
        "strong_relative": strong_weight * mix / sft,
        "weak_relative": (1 - strong_weight) * mix / sft,
        "curvature": np.linalg.norm(hessian),
        "cross_curvature": strong_weight * (1 - strong_weight) * np.linalg.norm(hessian),
        "disagreement": np.abs(p_weak - p_strong).sum() / 2,
    }


def random_pair(T, D, E, V, seed=0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    strong, weak = 1.5 * torch.randn(T, D, generator=draw), torch.randn(T, E, generator=draw)
    heads = torch.randn(V, D, generator=draw), torch.randn(V, E, generator=draw)
    target = torch.randint(V, (T,), generator=draw)
    return strong.to(DEVICE), heads[0].to(DEVICE), weak.to(DEVICE), heads[1].to(DEVICE), target.to(DEVICE)


@WEIGHTS
@pytest.mark.parametrize("tile_bytes", [1, 10**9])
@pytest.mark.parametrize("T, D, E, V", [(1, 1, 1, 2), (12, 16, 8, 64), (7, 5, 3, 33)])
def test_any_tile_equals_the_definitions(T, D, E, V, tile_bytes, strong_weight, monkeypatch):
    for name in ("CPU_TILE_BYTES", "TILE_BYTES"):
        monkeypatch.setattr(home, name, tile_bytes)
    strong, strong_head, weak, weak_head, target = (
        x.double() if x.is_floating_point() else x for x in random_pair(T, D, E, V)
    )
    found = pair_statistics(strong, strong_head, weak, weak_head, target, strong_weight=strong_weight)
    logits = (strong @ strong_head.T).cpu().numpy(), (weak @ weak_head.T).cpu().numpy()
    for row in range(T):
        expected = dense(logits[0][row], logits[1][row], int(target[row]), strong_weight)
        got = {name: value_T[row].item() for name, value_T in found.items()}
        if strong_weight == 1:  # P_mix is P_strong, so that rounding decides; exactly equal counts as amplified
            del expected["net_amplified"], expected["amplified"], expected["hardest_amplified"]
            assert got["amplified"] == got["hard_negatives"]
        assert {name: got[name] for name in expected} == pytest.approx(expected, rel=1e-7, abs=1e-9, nan_ok=True)


def test_float32_differs_by_rounding_only():
    case = random_pair(20, 16, 8, 100)
    single = pair_statistics(*case, strong_weight=0.5)
    double = pair_statistics(*(x.double() if x.is_floating_point() else x for x in case), strong_weight=0.5)
    for name, value_T in single.items():
        torch.testing.assert_close(value_T, double[name], rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)


def test_sums_agree_with_what_the_loss_logs():
    case = random_pair(30, 8, 8, 40)
    found = pair_statistics(*case, strong_weight=0.42)
    strong, strong_head, weak, weak_head, target = case
    _, logged = mixed_cross_entropy_with_statistics(
        strong, Head(strong_head), weak, Head(weak_head), target, strong_weight=0.42
    )
    assert found["uniform_margin"].sum().item() == logged.margin_tokens.item()
    assert (1 - found["negative_mass_mixed"]).sum().item() == pytest.approx(logged.mixed_probability.item(), rel=1e-5)
    assert (1 - found["negative_mass_strong"]).sum().item() == pytest.approx(logged.strong_probability.item(), rel=1e-5)


def test_the_fixture_gives_the_published_numbers():
    found = of_logits(STRONG, WEAK)
    assert found["negative_mass_strong"].item() == pytest.approx(0.0696295, abs=1e-6)
    assert found["negative_mass_mixed"].item() == pytest.approx(0.2112938, abs=1e-6)
    assert found["mixed_gradient"].item() ** 2 == pytest.approx(0.0665390, abs=1e-6)
    assert found["cross_curvature"].item() == pytest.approx(0.0670593, abs=1e-6)
    assert found["uniform_margin"].item() == 1
    assert (found["hard_negatives"].item(), found["amplified"].item(), found["net_amplified"].item()) == (3, 3, 3)
    gradients = np.linalg.norm([-0.105647, 0.068528, 0.025210, 0.011908])
    gradients /= np.linalg.norm([-0.069630, 0.046320, 0.017040, 0.006269])
    assert found["strong_relative"].item() == pytest.approx(gradients, rel=1e-4)
    assert found["weak_relative"].item() == pytest.approx(gradients, rel=1e-4)


def test_theorem_one_holds_wherever_its_condition_does():
    found = pair_statistics(*random_pair(4000, 3, 2, 4), strong_weight=0.3)
    uniform_T = found["uniform_margin"] == 1
    assert 100 < uniform_T.sum() < 3900
    assert (found["negative_mass_mixed"] >= found["negative_mass_strong"] - 1e-6)[uniform_T].all()
    assert not (found["negative_mass_mixed"] >= found["negative_mass_strong"])[~uniform_T].all()


def test_two_equal_models_have_no_hard_negative_and_half_of_the_gradient_each():
    found = of_logits(STRONG, STRONG)
    assert (found["hard_negatives"].item(), found["uniform_margin"].item(), found["disagreement"].item()) == (0, 1, 0)
    assert math.isnan(found["hardest_amplified"].item())
    assert found["strong_relative"].item() == found["weak_relative"].item() == 0.5


def test_a_confident_model_has_a_small_negative_mass_that_is_not_zero():
    found = of_logits([40.0, 0, 0, 0], [30.0, 0, 0, 0])
    assert found["negative_mass_strong"].item() == pytest.approx(3 * math.exp(-40), rel=1e-5)
    assert found["strong_relative"].item() == pytest.approx(0.5 * math.exp(5), rel=1e-5)
    assert found["amplified"].item() == 3


def test_a_target_far_below_the_others_is_still_compared():
    found = of_logits([-300.0, 0, 0, -1], [-200.0, 1, 0, -1])
    expected = dense(np.array([-300.0, 0, 0, -1]), np.array([-200.0, 1, 0, -1]), 0, 0.5)
    assert found["hard_negatives"].item() == expected["hard_negatives"] == 0
    assert found["negative_mass_mixed"].item() == 1


def test_without_a_gradient_of_sft_the_ratio_is_nan():
    found = of_logits([300.0, 0, 0, 0], [2.0, 0, 0, 0])
    assert found["sft_gradient"].item() == 0
    assert math.isnan(found["strong_relative"].item()) and found["mixed_gradient"].isfinite()


def test_a_row_that_is_not_finite_is_nan_and_leaves_the_others_alone():
    strong = torch.tensor([STRONG, STRONG, [math.nan, 1, 0, -1]])
    weak = torch.tensor([WEAK, [2, math.inf, 0.5, 0], WEAK])
    found = pair_statistics(
        strong, torch.eye(4), weak, torch.eye(4), torch.zeros(3, dtype=torch.long), strong_weight=0.5
    )
    for name, value_T in found.items():
        assert value_T.isnan().tolist() == [False, True, True], name


def test_heads_of_different_length_are_compared_over_their_common_rows():
    strong, strong_head, weak, weak_head, target = random_pair(6, 4, 4, 20)
    longer = torch.cat([strong_head, torch.randn(7, 4, device=DEVICE)])
    found = pair_statistics(strong, longer, weak, weak_head, target, strong_weight=0.5)
    expected = pair_statistics(strong, strong_head, weak, weak_head, target, strong_weight=0.5)
    for name, one in found.items():
        torch.testing.assert_close(one, expected[name], equal_nan=True)


@WEIGHTS
def test_top_hard_negatives_are_those_with_the_most_gradient(strong_weight):
    strong, strong_head, weak, weak_head, target = random_pair(9, 6, 4, 40)
    found = top_hard_negatives(strong, strong_head, weak, weak_head, target, strong_weight=strong_weight, count=5)
    strong_TV, weak_TV = ((h @ w.T).double().cpu().numpy() for h, w in ((strong, strong_head), (weak, weak_head)))
    for row, y in enumerate(target.tolist()):
        z_s, z_w = strong_TV[row], weak_TV[row]
        p = softmax(strong_weight * z_s + (1 - strong_weight) * z_w)
        hard = [k for k in range(40) if z_w[y] - z_w[k] < z_s[y] - z_s[k] and k != y]
        expected = sorted(hard, key=lambda k: -p[k])[:5]
        ids = [k for k in found.ids_TK[row].tolist() if k >= 0]
        assert ids == expected
        count = len(ids)
        np.testing.assert_allclose(found.mixed_TK[row, :count].numpy(), p[ids], rtol=1e-4)
        np.testing.assert_allclose(found.weak_TK[row, :count].numpy(), softmax(z_w)[ids], rtol=1e-4)
        np.testing.assert_allclose(found.strong_TK[row, :count].numpy(), softmax(z_s)[ids], rtol=1e-4)
        np.testing.assert_allclose(found.gradient_TK[row, :count].numpy(), strong_weight * p[ids], rtol=1e-4)
        assert found.mixed_TK[row, count:].isnan().all()


def test_no_tokens_give_no_values():
    nothing = torch.empty(0, 3), torch.ones(5, 3), torch.empty(0, 3), torch.ones(5, 3), torch.empty(0).long()
    assert {value_T.shape for value_T in pair_statistics(*nothing, strong_weight=0.5).values()} == {(0,)}
    assert top_hard_negatives(*nothing, strong_weight=0.5).ids_TK.shape == (0, 5)


def test_no_tensor_has_the_size_of_all_logits(monkeypatch):
    tile = 8 * 1000 * 4
    monkeypatch.setattr(home, "CPU_TILE_BYTES", tile * ours.COPIES)
    case = random_pair(64, 4, 4, 1000)
    with Watch() as watch:
        pair_statistics(*case, strong_weight=0.5)
    assert watch.largest <= 2 * tile  # a sum in float64
    assert watch.peak <= ours.COPIES * tile


def test_sensitivity_and_crossover_of_the_paper_recompute():
    ratio = sensitivity_ratio(1240.10, 1191.33)
    assert (ratio, crossover(ratio)) == (pytest.approx(1.083551, abs=1e-6), pytest.approx(0.489971, abs=1e-6))
    fixture = sensitivity_ratio(3.7416574, 1.5811388)
    assert (fixture, crossover(fixture)) == (pytest.approx(5.6, abs=1e-5), pytest.approx(0.2970504, abs=1e-6))
    assert step_share(crossover(ratio), ratio) == pytest.approx(0.5)
    assert step_share(0.5, ratio) == pytest.approx(ratio / (1 + ratio))


def test_the_crossover_of_the_paper_is_near_the_slowest_rate():
    ratio = 1.083551
    slowest = 1 / (1 + ratio)
    assert slowest == pytest.approx(0.479950, abs=1e-6)
    rates = [effective_rate(weight, ratio) for weight in (slowest, 0.5, 1.0)]
    assert rates == pytest.approx([0.520050, 0.520888, 1.083551], abs=1e-6)
    assert rates == sorted(rates)


def test_a_weak_model_without_spread_has_no_sensitivity_ratio():
    assert math.isnan(sensitivity_ratio(1.0, 0.0))
