"""Numbers of both branches: means, divergence, and the warning about a growing gap."""

import json
import math
import random

import pytest

from weakdriven.errors import UserError
from weakdriven.losses.mixed_ce import MixStatistics
from weakdriven.wmss.gap import SUMS, GapWatch, means, refuse_divergence


def first_warning(gaps):
    """The step at which the watch reports, or None."""
    watch = GapWatch()
    reported = [step for step, gap in enumerate(gaps, 1) if watch.grows(gap)]
    assert len(reported) <= 1
    return reported[0] if reported else None


def test_a_gap_that_keeps_growing_is_reported_once_at_the_end_of_the_fourth_window():
    gaps = [0.002 * step for step in range(400)]
    assert first_warning(gaps) == 80
    watch = GapWatch()
    assert any([watch.grows(gap) for gap in gaps]) and watch.reported and not watch.state()["current"]
    text = GapWatch.WARNING.format(gap=0.5)
    assert "0.500 above" in text and "strong_weight_end=1.0" in text and "strong_anchor" in text


@pytest.mark.parametrize(
    "gaps",
    [
        [0.3] * 400,
        [0.8 * 0.99**step for step in range(400)],
        [0.0001 * step for step in range(400)],
        [0.1 + 0.002 * (step % 60) for step in range(400)],
        [-0.002 * step for step in range(400)],
    ],
    ids=["constant", "falling", "small", "rising-twice", "negative"],
)
def test_a_gap_that_does_not_keep_growing_is_not_reported(gaps):
    assert first_warning(gaps) is None


def test_noise_around_a_constant_gap_is_seldom_reported():
    draw = random.Random(0)
    reported = [first_warning([draw.gauss(0.3, 0.1) for _ in range(400)]) is not None for _ in range(200)]
    assert sum(reported) <= 4


def test_a_growing_gap_is_reported_despite_noise():
    draw = random.Random(0)
    reported = [first_warning([draw.gauss(0.003 * step, 0.05) for step in range(200)]) is not None for _ in range(100)]
    assert sum(reported) >= 95


def test_a_restored_watch_reports_at_the_same_step():
    gaps = [0.002 * step for step in range(400)]
    reported, watch = [], GapWatch()
    for step, gap in enumerate(gaps, 1):
        if watch.grows(gap):
            reported.append(step)
        if step % 7 == 0:
            kept, watch = json.loads(json.dumps(watch.state())), GapWatch()
            watch.restore(kept)
    assert reported == [80]


def test_means_are_per_supervised_token_and_leave_out_models_that_did_not_run():
    sums = [20.0, 4.0, *(float(number) for number in range(1, 10))]
    found = means(sums)
    assert len(sums) == len(SUMS)
    assert found.pop("tokens") == 4
    assert found.pop("strong_gap") == pytest.approx(2 / 4 - 1 / 4)
    assert found.pop("margin_share") == pytest.approx(6 / 4)
    assert found == {name: (i + 1) / 4 for i, name in enumerate(MixStatistics._fields) if name != "margin_tokens"}
    sums[4] = sums[7] = sums[10] = math.nan
    assert {"weak_loss", "margin_share", "weak_entropy"} == set(means([20.0, 4.0, *range(1, 10)])) - set(means(sums))


@pytest.mark.parametrize(
    "losses, norms, message",
    [
        ({"mixed": math.nan, "strong": 1.23, "weak": math.nan}, {}, r"the weak model's .* is nan \(strong: 1.23\)"),
        ({"mixed": math.inf, "strong": math.inf}, {}, "the strong model's cross-entropy is inf. "),
        (
            {"mixed": math.nan, "strong": math.nan, "weak": math.inf},
            {},
            "strong model's .* nan and the weak model's .*inf",
        ),
        ({"mixed": math.inf, "strong": 1.0, "weak": 2.0}, {}, "the mixed cross-entropy is inf"),
        ({"mixed": 1.0}, {"strong": 2.0, "weak": math.inf}, r"the weak model's gradient norm is inf \(strong: 2\)"),
    ],
)
def test_a_divergence_names_its_branch_and_step(losses, norms, message):
    refuse_divergence(7, {"mixed": 1.0, "strong": 2.0, "weak": 3.0}, {"strong": 0.0, "weak": 1e30})
    with pytest.raises(UserError, match=rf"diverged at step 7.*{message}") as caught:
        refuse_divergence(7, losses, norms)
    assert "Lower learning_rate" in str(caught.value)
