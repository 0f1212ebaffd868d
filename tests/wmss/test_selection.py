"""WD-DS: weights, probabilities, draws and counters."""

import json
import logging
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weakdriven.errors import UserError
from weakdriven.wmss import selection
from weakdriven.wmss.selection import (
    ROUNDING,
    draw_active,
    expected_unique,
    rank_correlation,
    selection_counters,
    selection_probabilities,
    selection_weights,
)

WEAK, STRONG = np.array([1, 0.5, 0.8, 0]), np.array([0.4, 0.6, 0.8, 0])
P_PAPER, P_OFFICIAL = [0.251656, 0.324503, 0.423841, 0], [0.843478, 0.121739, 0.034783, 0]
PARTS = {"consolidation": 0.1, "difficulty": 0.8, "repair": 0.1}


PAPER_ROWS, PAPER_BATCH = 111657, 512

# the formulas treat zeros and ties specially, so they are drawn often
ENTROPY = st.sampled_from([0.0, 0.25, 1.0]) | st.floats(1e-6, 15)
ENTROPIES = st.integers(1, 40).flatmap(lambda n: arrays.arrays(np.float64, (2, n), elements=ENTROPY))
WEIGHTS = st.tuples(*[st.just(0.0) | st.floats(0.01, 10)] * 3).filter(any)


def by_loop(weak, strong, parts, formula):
    """Eq. 9 of the paper, or the formula of the authors' code, one example at a time."""
    a, b, c = parts
    fall = [max(w - s, 0) for w, s in zip(weak, strong, strict=True)]
    rise = [max(s - w, 0) for w, s in zip(weak, strong, strict=True)]
    if formula == "paper":
        weights = [a * f + b * s + c * r for f, s, r in zip(fall, strong, rise, strict=True)]
    else:
        sums = [math.fsum(term) or math.inf for term in (weak, fall, rise)]  # a term without mass contributes 0
        weights = [
            a * w / sums[0] + b * f / sums[1] + c * r / sums[2] for w, f, r in zip(weak, fall, rise, strict=True)
        ]
    total = math.fsum(weights)
    return [weight / total if total else 1 / len(weights) for weight in weights]


def counters(formula, *, weak=WEAK, strong=STRONG, multiplier=1.0):
    p = selection_probabilities(weak, strong, formula=formula)
    active = draw_active(p, seed=0, multiplier=multiplier)
    return selection_counters(weak, strong, p, active, formula=formula, multiplier=multiplier, **PARTS), active


def test_paper_weights_of_the_example_are_the_published_ones():
    assert selection_weights(WEAK, STRONG).sum(0) == pytest.approx([0.38, 0.49, 0.64, 0])


@pytest.mark.parametrize("formula, expected", [("paper", P_PAPER), ("official", P_OFFICIAL)])
def test_probabilities_of_the_example_are_the_published_ones(formula, expected):
    assert selection_probabilities(WEAK, STRONG, formula=formula) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("formula, shares", [("paper", [0.039735, 0.953642, 0.006623]), ("official", [0.1, 0.8, 0.1])])
def test_term_shares_of_the_example_are_the_published_ones(formula, shares):
    found, _ = counters(formula)
    assert list(found["term_shares"]) == ["consolidation", "difficulty", "repair"]
    assert list(found["term_shares"].values()) == pytest.approx(shares, abs=1e-6)


def test_an_example_on_which_the_models_agree_can_have_the_largest_weight_of_the_papers_formula():
    p = selection_probabilities(WEAK, STRONG)
    assert WEAK[2] == STRONG[2]
    assert p.argmax() == 2


@settings(deadline=None, derandomize=True, database=None)
@given(ENTROPIES, WEIGHTS, st.sampled_from(["paper", "official"]))
def test_both_formulas_equal_a_plain_loop_also_with_zeros_and_ties(entropies, parts, formula):
    got = selection_probabilities(*entropies, formula=formula, **dict(zip(PARTS, parts, strict=True)))
    assert got == pytest.approx(by_loop(*entropies.tolist(), parts, formula), rel=1e-9, abs=1e-15)
    assert got.sum() == pytest.approx(1)


def test_entropies_are_not_changed_in_place():
    weak, strong = WEAK.copy(), STRONG.copy()
    p = selection_probabilities(weak, strong, formula="official")
    before = p.copy()
    counters("official", weak=weak, strong=strong)
    draw_active(p, seed=0)
    assert all(np.array_equal(x, y) for x, y in ((weak, WEAK), (strong, STRONG), (p, before)))


def test_lists_and_single_precision_are_accepted():
    want = selection_probabilities(WEAK, STRONG)
    assert selection_probabilities(WEAK.tolist(), STRONG.tolist()).tolist() == want.tolist()
    single = selection_probabilities(WEAK.astype(np.float32), STRONG.astype(np.float32))
    assert single.dtype == np.float64
    assert single == pytest.approx(want, abs=1e-7)
    assert draw_active(want.astype(np.float32), seed=0).tolist() == draw_active(want.tolist(), seed=0).tolist()


@pytest.mark.parametrize("formula", ["paper", "official"])
def test_all_zero_weights_are_drawn_uniformly_with_a_warning(formula, caplog):
    with caplog.at_level(logging.WARNING, "weakdriven.wmss.selection"):
        p = selection_probabilities(np.zeros(5), np.zeros(5), formula=formula)
    assert p.tolist() == [0.2] * 5
    assert "drawn uniformly" in caplog.text


@pytest.mark.parametrize("formula", ["paper", "official"])
@pytest.mark.parametrize("name, bad", [("weak", math.nan), ("weak", -math.inf), ("strong", math.inf)])
def test_an_entropy_that_is_not_finite_is_an_error(name, bad, formula):
    columns = {"weak": [0.1, 0.2], "strong": [0.3, 0.4]} | {name: [0.3, bad]}
    with pytest.raises(UserError, match=f"{name} entropies are not finite in 1 of 2 rows"):
        selection_probabilities(columns["weak"], columns["strong"], formula=formula)


def test_non_finite_entropies_are_counted_and_the_first_rows_named():
    strong = np.where(np.arange(20) % 2, math.nan, 0.5)
    with pytest.raises(UserError, match=r"10 of 20 rows \(first: 1, 3, 5, 7, 9\)"):
        selection_probabilities(np.ones(20), strong)


@pytest.mark.parametrize(
    "weak, strong, message",
    [
        ([0.1], [0.1, 0.2], "1 weak and 2 strong entropies"),
        ([], [], r"weak entropies have shape \(0,\)"),
        ([0.1], [], r"strong entropies have shape \(0,\)"),
        ([[0.1, 0.2]], [0.1, 0.2], r"weak entropies have shape \(1, 2\)"),
        (0.1, [0.1], r"weak entropies have shape \(\)"),
        ([0.1, 0.2, 0.3], [0.1, -0.5, -0.2], r"strong entropies are negative in 2 of 3 rows \(first: 1, 2\).*-0.5"),
    ],
    ids=["lengths", "empty", "one-empty", "table", "number", "negative"],
)
def test_wrong_shapes_and_negative_entropies_are_an_error(weak, strong, message):
    with pytest.raises(UserError, match=message):
        selection_probabilities(weak, strong)


@pytest.mark.parametrize("formula", ["paper", "official"])
def test_a_rounding_error_below_zero_counts_as_zero(formula):
    weak, strong = WEAK.copy(), STRONG.copy()
    weak[3], strong[3] = -ROUNDING, -ROUNDING / 2
    p = selection_probabilities(weak, strong, formula=formula)
    assert p.tolist() == selection_probabilities(WEAK, STRONG, formula=formula).tolist()


@pytest.mark.parametrize(
    "given_settings, message",
    [
        ({"formula": "Paper"}, "formula is 'Paper', expected 'paper' .* or 'official'"),
        ({"difficulty": -0.8}, "difficulty is -0.8"),
        ({"repair": math.nan}, "repair is nan"),
        ({"consolidation": math.inf}, "consolidation is inf"),
        ({"consolidation": 0, "difficulty": 0, "repair": 0}, "are all 0"),
    ],
    ids=["formula", "negative", "nan", "infinite", "zero"],
)
def test_settings_without_probabilities_are_an_error(given_settings, message):
    for function in (selection_probabilities, selection_weights):
        with pytest.raises(UserError, match=message):
            function(WEAK, STRONG, **given_settings)


@pytest.mark.parametrize("p, expected", [(P_PAPER, 2.367976), (P_OFFICIAL, 1.536469), ([0.25] * 4, 2.734375)])
def test_expected_unique_of_four_draws_is_the_published_one(p, expected):
    assert expected_unique(np.array(p), 4) == pytest.approx(expected, abs=5e-6)


def test_expected_unique_is_precise_for_rare_and_certain_rows():
    assert expected_unique(np.array([1e-18]), 4) == pytest.approx(4e-18, rel=1e-12)
    assert expected_unique(np.array([1.0, 0.0]), 4) == 1


def test_uniform_draws_reach_the_published_number_of_rows():
    rows = expected_unique(np.full(PAPER_ROWS, 1 / PAPER_ROWS), PAPER_ROWS)
    assert rows / PAPER_ROWS == pytest.approx(0.632122, abs=5e-7)
    assert (round(rows), round(rows) // PAPER_BATCH) == (70581, 137)
    assert expected_unique(np.full(1000, 1e-3), 1000) == pytest.approx(632.3, abs=0.05)


@pytest.mark.parametrize("seed, drawn", [(0, [2, 1, 0, 0]), (42, [2, 1, 2, 2])])
def test_draws_of_the_example_are_the_published_ones(seed, drawn):
    p = selection_probabilities(WEAK, STRONG)
    assert np.random.default_rng(seed).choice(4, 4, p=p).tolist() == drawn  # numpy may change its streams one day
    assert draw_active(p, seed=seed, dedup=False).tolist() == sorted(drawn)
    assert draw_active(p, seed=seed).tolist() == sorted(set(drawn))


@pytest.mark.parametrize(
    "rows, multiplier, seed", [(1, 1.0, 0), (7, 3.0, 42), (1000, 0.3, [42, 1]), (50_000, 1.0, [7, 0, 3])]
)
def test_a_draw_is_that_of_numpys_choice_in_order(rows, multiplier, seed):
    rng = np.random.default_rng(rows)
    weak, strong = rng.gamma(2, 0.3, rows), rng.gamma(2, 0.3, rows)
    weak[1::3] = strong[1::3] = 0
    p = selection_probabilities(weak, strong)
    drawn = np.random.default_rng(seed).choice(rows, round(multiplier * rows), p=p)
    assert np.array_equal(draw_active(p, seed=seed, multiplier=multiplier, dedup=False), np.sort(drawn))
    assert np.array_equal(draw_active(p, seed=seed, multiplier=multiplier), np.unique(drawn))


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(ENTROPIES, st.integers(0, 2**32), st.floats(0.1, 4))
def test_a_draw_is_that_of_numpys_choice_with_zeros_and_ties(entropies, seed, multiplier):
    p = selection_probabilities(*entropies)
    drawn = np.random.default_rng(seed).choice(len(p), max(round(multiplier * len(p)), 1), p=p)
    assert np.array_equal(draw_active(p, seed=seed, multiplier=multiplier, dedup=False), np.sort(drawn))
    assert np.array_equal(draw_active(p, seed=seed, multiplier=multiplier), np.unique(drawn))


@pytest.mark.parametrize(
    "p, message",
    [
        ([0.5, 0.4], "sum to 0.9, expected 1"),
        ([0.5, 0.5 + 1e-6], "sum to 1.000001, expected 1"),
        ([1.5, -0.5], r"negative in 1 of 2 rows \(first: 1\), as low as -0.5"),
        ([math.nan, 1.0], r"not finite in 1 of 2 rows \(first: 0\)"),
        ([], r"probabilities have shape \(0,\)"),
        ([[0.5, 0.5]], r"shape \(1, 2\)"),
    ],
    ids=["sum", "nearly", "negative", "nan", "empty", "table"],
)
def test_wrong_probabilities_are_an_error(p, message):
    with pytest.raises(UserError, match=message):
        draw_active(p, seed=0)


@pytest.mark.parametrize("multiplier", [0, -1.0, math.nan, math.inf])
def test_a_multiplier_that_is_not_positive_and_finite_is_an_error(multiplier):
    with pytest.raises(UserError, match=f"multiplier is {multiplier}, expected"):
        draw_active([1.0], seed=0, multiplier=multiplier)


@pytest.mark.parametrize(
    "a, b, expected",
    [
        ([1, 2, 3], [10, 20, 400], 1),
        ([1, 2, 3], [3, 2, 1], -1),
        ([1, 2, 3, 4, 5], [5, 6, 7, 8, 7], 0.8207827),  # ranks of b: 1, 2, 3.5, 5, 3.5
        ([1, 1, 2], [1, 2, 3], 0.8660254),  # ranks of a: 1.5, 1.5, 3
    ],
)
def test_rank_correlation_agrees_with_a_hand_calculation(a, b, expected):
    assert rank_correlation(np.array(a), np.array(b)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("a, b", [([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [0, 0, 0]), ([5], [7])])
def test_rank_correlation_with_a_constant_is_none(a, b):
    assert rank_correlation(np.array(a), np.array(b)) is None


def test_counters_describe_the_example_selection():
    found, active = counters("paper")
    p = np.array(P_PAPER)
    assert {k: found[k] for k in ("examples", "falling", "equal", "rising", "zero_weight")} == {
        "examples": 4,
        "falling": 1,
        "equal": 2,
        "rising": 1,
        "zero_weight": 1,
    }
    assert found["active"] == len(active)
    assert found["realised_unique"] == len(active) / 4
    assert found["expected_unique"] == pytest.approx(2.367976 / 4, abs=1e-5)
    assert found["effective_sample_size"] == pytest.approx(1 / (p**2).sum(), rel=1e-5)
    assert found["p_cv"] == pytest.approx(p.std() / 0.25, rel=1e-5)
    assert (found["p_min"], found["p_max"]) == pytest.approx((0, 0.423841), abs=1e-6)
    assert found["formula_rank_correlation"] == pytest.approx(0.2)  # ranks 2 3 4 1 against 4 3 2 1


def test_repeated_rows_count_once_among_the_realised_ones():
    p = selection_probabilities(WEAK, STRONG)
    active = draw_active(p, seed=42, dedup=False)  # 1, 2, 2, 2
    found = selection_counters(WEAK, STRONG, p, active, formula="paper", multiplier=1.0, **PARTS)
    assert (found["active"], found["realised_unique"]) == (4, 0.5)


def test_counters_can_be_written_as_json():
    found, _ = counters("official")
    assert json.loads(json.dumps(found)) == found


def test_the_rank_correlation_of_many_rows_is_close_to_that_of_all_even_for_periodic_data(monkeypatch):
    rng = np.random.default_rng(2)
    weak, strong = rng.gamma(2, 0.3, (2, 4000))
    weak[::8] = strong[::8] = 0
    everything = counters("paper", weak=weak, strong=strong)[0].pop("formula_rank_correlation")
    monkeypatch.setattr(selection, "RANKED_ROWS", 1000)
    found, again = (counters("paper", weak=weak, strong=strong)[0].pop("formula_rank_correlation") for _ in range(2))
    p, official = (selection_probabilities(weak, strong, formula=formula) for formula in ("paper", "official"))
    assert everything == rank_correlation(p, official)
    assert found == again != everything
    assert found == pytest.approx(everything, abs=4 / 1000**0.5)
    assert rank_correlation(p[::4], official[::4]) != pytest.approx(everything, abs=4 / 1000**0.5)
