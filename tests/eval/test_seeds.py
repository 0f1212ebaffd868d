"""Means, intervals and tests over seeds and problems, against plain loops and known numbers."""

import numpy as np
import pytest

from weakdriven.eval.seeds import by_seed, compare_seeds, interval_of, item_p_value, score_of, t_test


def drawn(seeds, problems, share, seed=0):
    return (np.random.default_rng(seed).random((seeds, problems)) < share).astype(float)


def test_each_benchmark_counts_the_same_however_many_problems_it_has():
    scores = {"large": np.ones((2, 1000)), "small": np.zeros((2, 10))}
    assert score_of(scores) == 0.5 and by_seed(scores).tolist() == [0.5, 0.5]


def test_the_interval_is_that_of_a_plain_loop_over_drawn_seeds_and_problems():
    scores = {"a": drawn(3, 40, 0.5, 1), "b": drawn(3, 15, 0.3, 2)}
    rng, means = np.random.default_rng(7), []
    for _ in range(4000):
        seeds = rng.integers(0, 3, 3)
        each = [np.mean([one[seeds][:, rng.integers(0, one.shape[1], one.shape[1])]]) for one in scores.values()]
        means.append(np.mean(each))
    expected = np.quantile(means, [0.025, 0.975])
    assert interval_of(scores) == pytest.approx(expected, abs=0.012)


def test_seeds_that_differ_widen_the_interval_and_problems_alone_do_not_hide_it():
    alike = {"a": np.tile(drawn(1, 200, 0.5), (3, 1))}
    apart = {"a": np.concatenate([np.ones((1, 200)), np.zeros((1, 200)), drawn(1, 200, 0.5)])}
    widths = [np.diff(interval_of(one))[0] for one in (alike, apart)]
    assert widths[1] > 5 * widths[0]


def test_one_seed_leaves_the_interval_of_its_problems():
    values = drawn(1, 500, 0.4)
    low, high = interval_of({"a": values})
    half = 1.96 * np.sqrt(values.mean() * (1 - values.mean()) / 500)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.005)


def test_a_method_against_itself_is_no_different():
    scores = {"a": drawn(3, 50, 0.5)}
    found = compare_seeds(scores, scores)
    assert (found.difference, found.interval, found.p_items, found.p_seeds) == (0.0, (0.0, 0.0), 1.0, None)


def test_a_clear_gain_is_found_by_problems_and_by_seeds():
    rng, before = np.random.default_rng(3), drawn(5, 300, 0.4)
    after = np.maximum(before, rng.random((5, 300)) < 0.1)
    found = compare_seeds({"a": before}, {"a": after})
    assert found.interval[0] > 0 and found.p_items < 0.001
    assert found.p_seeds is not None and found.p_seeds < 0.01
    assert found.difference == pytest.approx(np.mean(found.by_seed)) and len(found.by_seed) == 5


def test_the_p_value_over_problems_is_uniform_where_nothing_differs():
    rng = np.random.default_rng(11)
    found = [item_p_value({"a": rng.normal(size=(2, 60))}, 400, number) for number in range(300)]
    assert np.mean(np.array(found) < 0.05) < 0.1 and 0.4 < np.mean(found) < 0.6


@pytest.mark.parametrize("freedom, quantile", [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423)])
def test_students_quantiles_give_a_p_value_of_a_twentieth(freedom, quantile):
    # values with mean m and deviation 1 have t = m * sqrt(n)
    values = np.zeros(freedom + 1)
    values[0], values[1] = 1, -1
    values = values / values.std(ddof=1) + quantile / np.sqrt(freedom + 1)
    assert t_test(values) == pytest.approx(0.05, abs=1e-4)


def test_one_seed_and_equal_differences_have_no_t_test():
    assert t_test(np.array([0.3])) is None and t_test(np.array([0.3, 0.3])) is None
    assert t_test(np.array([0.1 + 0.2, 0.3, 0.3])) is None, "rounding is no difference"


def test_other_problems_cannot_be_compared():
    with pytest.raises(ValueError, match="same seeds and problems"):
        compare_seeds({"a": np.ones((2, 3))}, {"a": np.ones((2, 4))})
