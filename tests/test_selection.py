"""WD-DS: weights, probabilities, draws and counters."""

import logging
import math

import numpy as np
import pytest

from weakdriven.errors import UserError
from weakdriven.selection import (
    align_scores,
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


def scores(**entropy):
    return [{"id": i, "entropy": value} for i, value in entropy.items()]


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


@pytest.mark.parametrize("formula", ["paper", "official"])
@pytest.mark.parametrize("parts", [(0.1, 0.8, 0.1), (1, 0, 0), (0.3, 0.3, 2)])
def test_both_formulas_equal_plain_numpy_on_random_entropies(formula, parts):
    rng = np.random.default_rng(0)
    weak, strong = rng.gamma(2, 0.3, 50), rng.gamma(2, 0.3, 50)
    a, b, c = parts
    if formula == "paper":
        want = [a * max(w - s, 0) + b * s + c * max(s - w, 0) for w, s in zip(weak, strong, strict=True)]
    else:
        fall, rise = np.where(weak > strong, weak - strong, 0), np.where(strong > weak, strong - weak, 0)
        want = a * weak / sum(weak) + b * fall / sum(fall) + c * rise / sum(rise)
    got = selection_probabilities(weak, strong, consolidation=a, difficulty=b, repair=c, formula=formula)
    assert got == pytest.approx(np.array(want) / np.sum(want))
    assert got.sum() == pytest.approx(1)


def test_an_official_term_without_mass_contributes_nothing():
    weak, strong = np.array([0.2, 0.4]), np.array([0.1, 0.4])  # no entropy rises
    want = 0.1 * weak / 0.6 + 0.8 * np.array([1, 0])
    assert selection_probabilities(weak, strong, formula="official") == pytest.approx(want / want.sum())


@pytest.mark.parametrize("formula", ["paper", "official"])
def test_all_zero_weights_are_drawn_uniformly_with_a_warning(formula, caplog):
    with caplog.at_level(logging.WARNING, "weakdriven.selection"):
        p = selection_probabilities(np.zeros(5), np.zeros(5), formula=formula)
    assert p.tolist() == [0.2] * 5
    assert "drawn uniformly" in caplog.text


def test_no_warning_is_given_where_some_weight_is_positive(caplog):
    selection_probabilities(WEAK, STRONG)
    assert not caplog.records


@pytest.mark.parametrize("formula", ["paper", "official"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_entropy_that_is_not_finite_is_an_error(bad, formula):
    with np.errstate(invalid="ignore"), pytest.raises(UserError, match="not finite"):
        selection_probabilities(np.array([0.1, 0.2]), np.array([0.3, bad]), formula=formula)


def test_a_non_finite_entropy_is_found_in_its_row():
    with pytest.raises(UserError, match=r"1 examples .*first: row 1"):
        selection_probabilities(np.array([0.1, 0.2]), np.array([0.3, math.nan]))


@pytest.mark.parametrize("p, expected", [(P_PAPER, 2.367976), (P_OFFICIAL, 1.536469), ([0.25] * 4, 2.734375)])
def test_expected_unique_of_four_draws_is_the_published_one(p, expected):
    assert expected_unique(np.array(p), 4) == pytest.approx(expected, abs=5e-6)


def test_uniform_draws_reach_the_published_number_of_rows():
    rows = expected_unique(np.full(111657, 1 / 111657), 111657)
    assert rows / 111657 == pytest.approx(0.632122, abs=1e-6)
    assert (round(rows), round(rows) // 512) == (70581, 137)
    assert expected_unique(np.full(1000, 1e-3), 1000) == pytest.approx(632.3, abs=0.05)


def test_realised_unique_rows_agree_with_the_expectation():
    p = np.full(1000, 1e-3)
    sizes = [len(draw_active(p, seed=seed)) for seed in range(100)]
    assert np.mean(sizes) == pytest.approx(632.3, abs=4 * 9.9 / 10)
    assert np.std(sizes) == pytest.approx(9.9, rel=0.4)


def test_dedup_gives_the_sorted_unique_rows_of_the_same_draw():
    p = selection_probabilities(WEAK, STRONG)
    for seed in range(20):
        kept = draw_active(p, seed=seed, dedup=False)
        assert len(kept) == 4
        assert kept.tolist() == sorted(kept.tolist())
        assert draw_active(p, seed=seed).tolist() == sorted(set(kept.tolist()))


@pytest.mark.parametrize("multiplier, count", [(0.5, 50), (1.0, 100), (2.0, 200), (0.026, 3)])
def test_the_multiplier_sets_the_number_of_draws(multiplier, count):
    assert len(draw_active(np.full(100, 0.01), seed=0, multiplier=multiplier, dedup=False)) == count


def test_a_draw_depends_on_its_seed_alone():
    p = np.full(100, 0.01)
    assert draw_active(p, seed=3).tolist() == draw_active(p, seed=3).tolist()
    assert draw_active(p, seed=3).tolist() != draw_active(p, seed=4).tolist()


@pytest.mark.parametrize("formula", ["paper", "official"])
def test_examples_of_weight_zero_are_never_drawn(formula):
    rng = np.random.default_rng(1)
    weak, strong = rng.random(40), rng.random(40)
    weak[::4] = strong[::4] = 0
    p = selection_probabilities(weak, strong, formula=formula)
    drawn = np.concatenate([draw_active(p, seed=seed, multiplier=5) for seed in range(10)])
    assert not p[::4].any()
    assert not (drawn % 4 == 0).any()


def test_scores_are_aligned_by_id_and_not_by_place():
    weak, strong = align_scores(scores(a=1.0, b=2.0, c=3.0), scores(c=30.0, a=10.0, b=20.0), ["b", "a"])
    assert (weak.tolist(), strong.tolist()) == ([2, 1], [20, 10])


@pytest.mark.parametrize("name", ["weak", "strong"])
@pytest.mark.parametrize(
    "bad, message",
    [
        (scores(a=1.0), "lack 1 examples"),
        ([*scores(a=1.0, b=2.0), *scores(b=2.0)], "twice"),
        (scores(a=1.0, b=math.nan), "not finite for 1 examples"),
        (scores(a=1.0, b=math.inf), "not finite for 1 examples"),
    ],
    ids=["missing", "repeated", "nan", "infinite"],
)
def test_scores_that_cannot_be_trusted_are_an_error_naming_model_and_id(name, bad, message):
    columns = {"weak": scores(a=1.0, b=2.0), "strong": scores(a=1.0, b=2.0)} | {name: bad}
    with pytest.raises(UserError, match=message) as error:
        align_scores(columns["weak"], columns["strong"], ["a", "b"])
    assert f"The {name} model's" in str(error.value)
    assert "'b'" in str(error.value)


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


def test_unique_shares_in_the_counters_are_of_the_draws():
    found, active = counters("paper", multiplier=2.0)
    assert found["realised_unique"] == len(active) / 8
    assert found["expected_unique"] == pytest.approx(expected_unique(np.array(P_PAPER), 8) / 8, abs=1e-5)
