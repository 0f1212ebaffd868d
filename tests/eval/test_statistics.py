"""pass@k, intervals and comparisons of models and of methods, against published numbers, counting and plain loops."""

from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakdriven.eval.statistics import (
    binomial_p_value,
    bootstrap_interval,
    by_seed,
    compare_seeds,
    interval_of,
    item_p_value,
    mcnemar,
    paired_bootstrap,
    pass_at_k,
    score_of,
    t_quantile,
    t_test,
    wilson_interval,
)


@pytest.mark.parametrize(
    "correct, items, low, high",
    [  # the first four are method 3 of Newcombe (1998), table I
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (5, 10, 0.2366, 0.7634),
        (20, 20, 0.8389, 1),
    ],
)
def test_wilson_intervals_are_the_published_ones(correct, items, low, high):
    assert wilson_interval(correct, items) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("items", [1, 7, 40])
def test_a_wilson_interval_contains_its_share_and_is_symmetric(items):
    for correct in range(items + 1):
        low, high = wilson_interval(correct, items)
        assert 0 <= low <= correct / items + 1e-12 and correct / items - 1e-12 <= high <= 1
        assert wilson_interval(items - correct, items) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize("correct, items", [(0, 0), (3, 2), (-1, 2)])
def test_impossible_shares_are_errors(correct, items):
    with pytest.raises(ValueError, match="is not a proportion"):
        wilson_interval(correct, items)


@pytest.mark.parametrize(
    "counts, n, table",
    [  # the unbiased estimator of Chen et al., 2021
        ([3], 64, {1: 0.046875, 4: 0.178667, 8: 0.334677, 16: 0.584869, 32: 0.880952, 64: 1}),
        ([32], 64, {4: 0.943404, 8: 0.997624}),
        ([0], 64, {1: 0, 4: 0, 64: 0}),
        ([0, 1, 3, 64], 64, {1: 0.265625, 8: 0.364919, 32: 0.595238, 64: 0.75}),
    ],
)
def test_pass_at_k_is_the_unbiased_estimator(counts, n, table):
    for k, expected in table.items():
        assert pass_at_k(counts, n, k) == pytest.approx(expected, abs=5e-7)


samples = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), min_size=1, max_size=6))
)


@given(samples)
def test_pass_at_k_counts_the_draws_that_hold_a_correct_sample(case):
    n, counts = case
    for k in range(1, n + 1):
        hits = [sum(min(draw) < c for draw in combinations(range(n), k)) / comb(n, k) for c in counts]
        assert pass_at_k(counts, n, k) == pytest.approx(np.mean(hits))


@pytest.mark.parametrize(
    "counts, n, k, message",
    [
        ([1], 4, 5, "pass@5 of 4 samples: k must be"),
        ([1], 4, 0, "pass@0 of 4 samples: k must be"),
        ([5], 4, 2, "from 0 to n=4"),
        ([-1], 4, 2, "from 0 to n=4"),
        ([0.5], 4, 2, "whole numbers"),
        ([], 4, 2, "at least one problem"),
    ],
)
def test_impossible_counts_are_errors(counts, n, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(counts, n, k)


def test_a_bootstrap_interval_is_repeatable_and_near_the_normal_one():
    values = np.random.default_rng(1).random(400)
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.004)
    assert bootstrap_interval(values) == (low, high) != bootstrap_interval(values, seed=43)


def test_a_bootstrap_of_many_problems_works_in_pieces():
    low, high = bootstrap_interval(np.arange(200_000) % 2, draws=200)
    assert 0.49 < low < 0.5 < high < 0.51


@pytest.mark.parametrize(
    "only_a, only_b, p_value",
    [(0, 0, 1.0), (1, 1, 1.0), (5, 0, 0.0625), (2, 8, 0.109375), (10, 25, 0.016674)],
)
def test_the_p_value_of_mcnemar_is_the_exact_binomial_one(only_a, only_b, p_value):
    assert binomial_p_value(only_a, only_b) == pytest.approx(p_value, abs=1e-6)
    a = [1] * only_a + [0] * only_b + [1, 0]
    b = [0] * only_a + [1] * only_b + [1, 0]
    compared = mcnemar(a, b)
    assert (compared.only_a, compared.only_b) == (only_a, only_b)
    assert compared.p_value == pytest.approx(p_value, abs=1e-6)
    assert compared.difference == pytest.approx((only_b - only_a) / len(a))
    assert 0 < binomial_p_value(1000, 1200) < 1e-4, "thousands of items are counted exactly"


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=10))
@settings(max_examples=50, deadline=None)
def test_mcnemar_agrees_with_an_enumeration_of_all_signs(pairs):
    a, b = zip(*pairs, strict=True)
    differ = [int(y) - int(x) for x, y in pairs if x != y]
    falls = [abs(sum(signs)) >= abs(sum(differ)) for signs in product([-1, 1], repeat=len(differ))]
    assert mcnemar(a, b, draws=10).p_value == pytest.approx(np.mean(falls))


def test_mcnemar_takes_no_means():
    with pytest.raises(ValueError, match="use paired_bootstrap"):
        mcnemar([0.5, 1], [1, 1])


def test_swapping_the_models_mirrors_a_comparison():
    rng = np.random.default_rng(3)
    a, b = rng.random(50), rng.random(50) + 0.1
    one, other = paired_bootstrap(a, b), paired_bootstrap(b, a)
    assert one.difference == pytest.approx(-other.difference)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]))
    assert one.p_value == other.p_value


def test_a_clear_difference_is_significant_and_none_is_not():
    rng = np.random.default_rng(4)
    a = rng.random(200)
    clear, none = paired_bootstrap(a, a + 0.05 + 0.1 * rng.random(200)), paired_bootstrap(a, a)
    assert clear.p_value < 0.001 and clear.interval[0] > 0
    assert none.p_value == 1 and none.difference == 0 and none.interval == (0, 0)


def test_the_p_value_by_random_swaps_agrees_with_all_swaps():
    differences = np.array([0.3, -0.1, 0.2, 0.4, 0.05, -0.2, 0.25, 0.1])
    falls = [abs(np.dot(signs, differences)) >= abs(differences.sum()) - 1e-12 for signs in product([-1, 1], repeat=8)]
    assert paired_bootstrap(np.zeros(8), differences).p_value == pytest.approx(np.mean(falls), abs=0.02)


@pytest.mark.parametrize("a, b, message", [([1], [1, 0], "same items: 1 and 2"), ([], [], "at least one problem")])
def test_models_on_different_items_are_not_compared(a, b, message):
    for compare in (mcnemar, paired_bootstrap):
        with pytest.raises(ValueError, match=message):
            compare(a, b)
    with pytest.raises(ValueError, match="finite number"):
        paired_bootstrap([float("nan")], [1.0])


def drawn(seeds, problems, share, seed=0):
    return (np.random.default_rng(seed).random((seeds, problems)) < share).astype(float)


def test_each_benchmark_counts_the_same_however_many_problems_it_has():
    scores = {"large": np.ones((2, 1000)), "small": np.zeros((2, 10))}
    assert score_of(scores) == 0.5 and by_seed(scores).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("groups, seeds, seed_spread", [(1, 3, 0.02), (1, 5, 0.0), (1, 5, 0.05), (3, 3, 0.01)])
def test_the_interval_contains_the_true_score_95_times_of_100(groups, seeds, seed_spread):
    """Differences of right and wrong answers, as in the study: -1, 0 and 1, on problems that differ."""
    rng, counts, inside = np.random.default_rng([groups, seeds]), {"a": 100, "b": 40}, 0
    for _ in range(1000):
        gain_P = {name: rng.normal(0, 0.15, count) for name, count in counts.items()}
        studied = []
        for _ in range(groups):
            gain_S = rng.normal(0, seed_spread, (seeds, 1))
            scores = {}
            for name, count in counts.items():
                chance_SP, drawn_SP = (gain_S + gain_P[name]) / 2, rng.random((seeds, count))
                scores[name] = (drawn_SP < 0.15 + chance_SP) * 1.0 - (drawn_SP > 0.85 + chance_SP)
            studied.append(scores)
        low, high = interval_of(*studied)
        inside += low <= 0 <= high
    assert 930 <= inside <= 970


def test_seeds_that_agree_by_chance_leave_the_residual():
    """Both seeds have 10 right of 20, on other problems each: no seed or problem explains anything."""
    values = np.array([[1.0, 0.0] * 10, [0.0, 1.0] * 10])
    half = 2.09302 * np.sqrt(np.full(40, 0.25).sum() / 19 / 40)
    assert interval_of({"a": values}) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-5)


def test_one_seed_has_the_t_interval_of_its_problems():
    values = drawn(1, 30, 0.4)
    half = 2.04523 * values.std(ddof=1) / np.sqrt(30)
    assert interval_of({"a": values}) == pytest.approx((values.mean() - half, values.mean() + half), abs=1e-5)


def test_seeds_alone_make_the_interval_of_problems_that_are_all_alike():
    values = np.repeat([[0.1], [0.2], [0.4]], 20, axis=1)
    half = 4.30265 * np.std([0.1, 0.2, 0.4], ddof=1) / np.sqrt(3)
    assert interval_of({"a": values}) == pytest.approx((0.7 / 3 - half, 0.7 / 3 + half), abs=1e-5)


def test_what_never_varies_has_an_interval_without_width():
    assert interval_of({"a": np.full((3, 8), 0.5)}) == (0.5, 0.5) and interval_of({"a": np.ones((1, 1))}) == (1, 1)


def test_a_clear_gain_is_found_by_problems_and_by_seeds():
    rng, before = np.random.default_rng(3), drawn(5, 300, 0.4)
    after = np.maximum(before, rng.random((5, 300)) < 0.1)
    found = compare_seeds({"a": before}, {"a": after})
    assert found.interval[0] > 0 and found.p_items < 0.001
    assert found.p_seeds is not None and found.p_seeds < 0.01
    assert found.difference == pytest.approx(np.mean(found.by_seed)) and len(found.by_seed) == 5


def test_the_p_value_over_problems_is_uniform_where_nothing_differs():
    rng = np.random.default_rng(11)
    found = [item_p_value({"a": rng.normal(size=(2, 60))}, 400, number) for number in range(200)]
    assert np.mean(np.array(found) < 0.05) < 0.1 and 0.4 < np.mean(found) < 0.6


@pytest.mark.parametrize("freedom, quantile", [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423)])
def test_students_quantiles_give_a_p_value_of_a_twentieth(freedom, quantile):
    # values with mean m and deviation 1 have t = m * sqrt(n)
    values = np.zeros(freedom + 1)
    values[0], values[1] = 1, -1
    values = values / values.std(ddof=1) + quantile / np.sqrt(freedom + 1)
    assert t_test(values) == pytest.approx(0.05, abs=1e-4)
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-4)


def test_one_seed_and_equal_differences_have_no_t_test():
    assert t_test(np.array([0.3])) is None and t_test(np.array([0.3, 0.3])) is None
    assert t_test(np.array([0.1 + 0.2, 0.3, 0.3])) is None, "rounding is no difference"


def test_other_problems_cannot_be_compared():
    with pytest.raises(ValueError, match="same seeds and problems"):
        compare_seeds({"a": np.ones((2, 3))}, {"a": np.ones((2, 4))})
