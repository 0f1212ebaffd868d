"""Confidence intervals of a share of correct answers."""

import pytest

from weakdriven.eval.passk import wilson_interval


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


@pytest.mark.parametrize("items", [1, 7, 512])
def test_an_interval_holds_its_share_stays_in_bounds_and_mirrors(items):
    for correct in range(items + 1):
        low, high = wilson_interval(correct, items)
        assert 0 <= low <= correct / items + 1e-12 and correct / items - 1e-12 <= high <= 1
        assert wilson_interval(items - correct, items) == pytest.approx((1 - high, 1 - low))
