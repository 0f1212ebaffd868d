"""Norms, rates and draws (paper App. B and D, Sec. 4), and whether the paper's tables recompute."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from theory_cases import near, quick, tokens

from research.theory import (
    centered_norm,
    crossover,
    first_order_rate,
    norm_parts,
    sensitivity_ratio,
    sgd_step,
    slowest_weight,
    unique_rows,
)
from research.theory.counterexamples import TYPICAL
from research.theory.rates import optimizer_steps, percent_change
from weakdriven.errors import UserError
from weakdriven.eval.statistics import pass_at_k
from weakdriven.wmss.selection import expected_unique

VOCABULARY, ROWS = 151_936, 111_657  # Qwen3's, and the paper's math set

# Centered norms (App. D.1)


def test_centered_norms_of_the_fixture():
    strong, weak = (centered_norm(x).item() for x in TYPICAL[:2])
    assert (strong, weak) == (near(3.7416574, 1e-7), near(1.5811388, 1e-7))
    ratio = sensitivity_ratio(strong, weak)
    assert ratio == near(5.6) and crossover(ratio) == near(0.2970504, 1e-7)


@quick
@given(tokens(), st.floats(-50, 50))
def test_the_centered_norm_is_the_deviation_and_ignores_shifts(case, shift):
    logits = case[0]
    want = math.sqrt(logits.shape[1]) * logits.std(1, correction=0)
    torch.testing.assert_close(centered_norm(logits), want, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(centered_norm(logits + shift), centered_norm(logits), rtol=0, atol=1e-9)
    assert norm_parts(logits + shift).everywhere


def test_the_papers_norms_fit_its_deviations_and_lengths():
    norms, means, lengths = (1191.33, 1240.10, 1229.79), (3.65, 2.87, 0.97), (1978.92, 1865.96, 1688.59)
    deviations = [norm / math.sqrt(VOCABULARY) for norm in norms]
    assert deviations == near([3.056, 3.181, 3.155], 5e-4)
    assert [abs(x - printed) < 0.0051 for x, printed in zip(deviations, (3.06, 3.18, 3.16), strict=True)] == [True] * 3
    least = [math.hypot(norm, math.sqrt(VOCABULARY) * mean) for norm, mean in zip(norms, means, strict=True)]
    assert least == near([1855.6, 1670.1, 1286.6], 0.06)
    assert all(length >= low for length, low in zip(lengths, least, strict=True))


@quick
@given(tokens())
def test_a_mean_length_is_at_least_what_mean_parts_give(case):
    logits = case[0]
    parts = math.hypot(centered_norm(logits).mean().item(), math.sqrt(logits.shape[1]) * logits.mean().item())
    assert norm_parts(logits).left.mean().item() >= parts - 1e-9


# Sensitivity and crossover (App. D.3, B.8)


def test_the_crossover_lies_where_the_rate_is_lowest():
    ratio = sensitivity_ratio(1240.10, 1191.33)
    assert ratio == near(1.083551) and crossover(ratio) == near(0.489971)
    assert slowest_weight(ratio) == near(0.479950)
    rates = [first_order_rate(w, ratio) for w in (slowest_weight(ratio), 0.5, 1.0)]
    assert rates == [near(0.520050), near(0.520888), near(1.0836, 5e-5)]
    assert first_order_rate(crossover(ratio), ratio) < rates[1] < first_order_rate(0.42, ratio) < rates[2]


@quick
@given(st.floats(0.1, 10), st.floats(0, 1))
def test_the_slowest_weight_is_the_minimum_and_the_crossover_shares_evenly(ratio, strong_weight):
    lowest = first_order_rate(slowest_weight(ratio), ratio)
    assert lowest == near(ratio / (1 + ratio), 1e-12) and lowest <= first_order_rate(strong_weight, ratio) + 1e-12
    assert (1 - crossover(ratio)) ** 2 == near(ratio * crossover(ratio) ** 2, 1e-12)
    assert max(first_order_rate(w, ratio) for w in (0.0, 1.0)) >= first_order_rate(strong_weight, ratio) - 1e-12


def test_with_the_residual_of_each_weight_the_strong_branch_contributes_most_in_the_middle():
    """What S leaves out, on the fixture: docs/theory.md speaks of it."""
    shares = {w / 100: sgd_step(*TYPICAL, learning_rate=1, strong_weight=w / 100, freeze_weak=True) for w in range(101)}
    best = min(shares, key=lambda w: shares[w].predicted_T.item())
    assert best == near(0.49, 0.011) and shares[best].predicted_T < 2 * shares[1.0].predicted_T


# Rows after deduplication (Sec. 6)


def test_uniform_draws_leave_one_minus_one_over_e():
    found = unique_rows(np.full(ROWS, 1 / ROWS))
    assert found.fraction == near(0.632122) and found.holds and round(found.expected) == 70_581
    assert optimizer_steps(round(found.expected), 512) == 137


def test_the_spread_of_a_uniform_draw_is_the_exact_one():
    n, found = 1000, unique_rows(np.full(1000, 1 / 1000))
    exact = n * (1 - 1 / n) ** n + n * (n - 1) * (1 - 2 / n) ** n - n**2 * (1 - 1 / n) ** (2 * n)
    assert (found.expected, found.deviation) == (near(632.3, 0.05), near(9.9, 0.05))
    assert found.deviation == near(math.sqrt(exact), 0.02)


def test_the_spread_of_an_uneven_draw_is_that_of_the_draws():
    rng = np.random.default_rng(0)
    weights = rng.gamma(1 / 0.65**2, size=400)
    p = weights / weights.sum()
    counts = [len(np.unique(rng.choice(400, 400, p=p))) for _ in range(2000)]
    found = unique_rows(p)
    assert np.mean(counts) == near(found.expected, 0.7) and np.std(counts) == near(found.deviation, 0.5)


@quick
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 60))
def test_uneven_weights_leave_fewer_rows_and_agree_with_the_selection(weights, draws):
    p = np.array(weights) / sum(weights) if sum(weights) > 1e-3 else np.eye(len(weights))[0]
    found = unique_rows(p, draws)
    assert found.holds and found.expected == near(expected_unique(p, draws), 1e-9)


def test_the_papers_steps_need_uneven_weights():
    """123 steps of 512; gamma weights with a coefficient of variation of 0.65 would give as many rows."""
    share = [rows / ROWS for rows in (123 * 512, 124 * 512 - 1)]
    assert share == near([0.5640, 0.5686], 5e-5)
    expected = 1 - (1 + 0.65**2) ** (-1 / 0.65**2)
    assert share[0] < expected < share[1]


@pytest.mark.parametrize("p", [[0.5, 0.4], [1.5, -0.5], [], [float("nan"), 1.0]])
def test_what_is_no_distribution_is_refused(p):
    with pytest.raises(UserError, match="probabilities"):
        unique_rows(p)


# Steps and averages


def test_the_papers_steps_and_averages():
    assert (optimizer_steps(ROWS, 512), optimizer_steps(ROWS, 256), optimizer_steps(100, 512)) == (218, 436, 1)
    assert near(0.564220) == 123 / 218
    averages = [(a + b) / 2 for a, b in ((0.658, 0.852), (0.714, 0.876), (0.694, 0.873))]
    assert averages == near([0.755, 0.795, 0.7835], 1e-12)


# Tables of logits (App. B.4)


@pytest.mark.parametrize(
    "before, after, printed",
    [
        (35.88, 36.10, 0.6),
        (2.09, 0.90, -56.9),
        (33.79, 35.20, 4.2),
        (2.93, 3.45, 17.7),
        (2.87, 0.97, -66.2),
        (3.18, 3.16, -0.6),
        (1240.10, 1229.79, -0.8),
        (48.75, 60.50, 24.1),
        (-26.63, -35.75, 34.2),
        (1865.96, 1688.59, -9.5),
        (0.44, 0.48, 9.1),
        (0.85, 0.83, -2.4),
    ],
)
def test_the_papers_logit_tables_recompute(before, after, printed):
    assert round(percent_change(before, after), 1) == printed


def test_the_papers_gap_is_target_less_background():
    assert near([33.79, 35.20, 1.41], 1e-9) == [35.88 - 2.09, 36.10 - 0.90, 35.20 - 33.79]


# Tables of pass@k (App. B.9) and of the weight sweep (App. B.8)

PASS_AT_K = {  # k = 1, 4, 8, 16, 32, 64: WMSS, then DPO, and the number of problems
    "AIME2025": ((17.97, 24.69, 26.59, 28.57, 30.83, 33.33), (14.20, 22.40, 24.90, 27.30, 29.10, 30.00), 30),
    "AMC23": ((49.49, 63.25, 68.06, 71.79, 75.13, 77.50), (42.80, 56.70, 61.00, 65.20, 69.80, 75.00), 40),
    "MATH500": ((75.32, 84.36, 87.20, 89.48, 91.49, 93.20), (70.90, 84.00, 87.40, 89.90, 91.80, 93.40), 500),
}


@pytest.mark.parametrize(
    "benchmark, ratios, growth, solved",
    [
        ("AIME2025", (1.27, 1.11), (15.36, 15.8), (10, 9)),
        ("AMC23", (1.16, 1.03), (28.01, 32.2), (31, 30)),
        ("MATH500", (1.06, 1.00), (17.88, 22.5), (466, 467)),
    ],
)
def test_the_papers_pass_at_k_recomputes(benchmark, ratios, growth, solved):
    *methods, problems = PASS_AT_K[benchmark]
    wmss, dpo = methods
    assert (round(wmss[0] / dpo[0], 2), round(wmss[-1] / dpo[-1], 2)) == ratios
    assert tuple(round(scores[-1] - scores[0], 2) for scores in methods) == growth
    for scores, count in zip(methods, solved, strict=True):
        assert list(scores) == sorted(scores)
        once = pass_at_k([64] * count + [0] * (problems - count), 64, 64)  # at k = n a problem counts once solved
        assert round(100 * once, 2) == scores[-1]


LAMBDA = """
0.1 7.8 71.4 77.2 88.2 94.9 90.4 71.7
0.2 10.0 67.1 72.8 89.1 96.6 91.8 71.2
0.3 12.2 70.8 74.7 89.4 95.5 93.3 72.7
0.4 16.7 73.1 75.2 91.9 97.8 94.9 74.9
0.42 20.0 74.9 73.9 91.8 98.2 94.1 75.5
0.44 20.0 74.5 73.1 91.7 97.8 93.6 75.1
0.46 16.7 73.2 72.4 91.0 97.8 93.5 74.1
0.48 20.0 73.3 71.8 91.4 98.0 92.9 74.6
0.5 20.0 73.3 73.9 91.0 95.7 92.6 74.4
0.52 21.1 70.7 71.0 91.2 96.5 92.4 73.8
0.54 16.7 74.0 71.3 91.4 97.2 93.5 74.0
0.56 16.7 73.0 71.9 90.6 96.8 92.8 73.6
0.58 16.7 73.3 70.2 90.9 97.5 92.9 73.6
0.6 10.0 68.9 64.8 89.2 94.7 90.8 69.7
0.7 20.0 71.7 66.9 89.3 96.2 91.9 72.7
0.8 20.0 70.9 61.4 88.1 95.5 89.6 70.9
0.9 12.2 66.1 60.8 85.7 93.6 87.4 67.6
"""


def test_the_averages_of_the_papers_weight_sweep_are_over_six_sets():
    for line in LAMBDA.split("\n")[1:-1]:
        _, *scores, printed = map(float, line.split())
        assert len(scores) == 6 and np.mean(scores) == near(printed, 0.051)


def test_mean_gains_over_sft_on_math():
    """Three backbones: UNDIAL, NEFTune, SPIN and SSB against SFT, then WMSS, from the printed averages."""
    gains = {"baselines": [-2.9, 0.7, 2.4, 1.9, 0.7, 1.8, 3.4, 3.9, -0.2, 0.5, 0.7, 1.7], "wmss": [4.9, 5.9, 2.9]}
    assert np.mean(gains["baselines"]) == near(1.2167, 5e-5) and np.mean(gains["wmss"]) == near(4.5667, 5e-5)
