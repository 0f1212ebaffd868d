"""Norms, rates and draws (paper App. B and D, Sec. 4), and some numbers of the paper's tables."""

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

ROWS = 111_657
"""The paper's math set."""

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
    """What S leaves out, on the fixture: docs/background/theory-dynamics.md speaks of it."""
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


@pytest.mark.parametrize("p", [[0.5, 0.4], [1.5, -0.5], [], [float("nan"), 1.0]])
def test_probabilities_that_are_no_distribution_raise_an_error(p):
    with pytest.raises(UserError, match="probabilities"):
        unique_rows(p)


# Tables of the paper (App. B.4, B.9)


def test_the_papers_steps_recompute():
    assert (optimizer_steps(ROWS, 512), optimizer_steps(ROWS, 256), optimizer_steps(100, 512)) == (218, 436, 1)


@pytest.mark.parametrize("before, after, printed", [(35.88, 36.10, 0.6), (2.09, 0.90, -56.9), (-26.63, -35.75, 34.2)])
def test_the_papers_logit_changes_recompute(before, after, printed):
    assert round(percent_change(before, after), 1) == printed


@pytest.mark.parametrize("printed, solved, problems", [(33.33, 10, 30), (77.50, 31, 40), (93.40, 467, 500)])
def test_the_papers_pass_at_64_is_a_whole_number_of_problems(printed, solved, problems):
    once = pass_at_k([64] * solved + [0] * (problems - solved), 64, 64)  # at k = n a problem counts once solved
    assert round(100 * once, 2) == printed
