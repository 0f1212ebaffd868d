"""The model of large machines: its page is what the code computes, and it moves the way that machines do."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import scale
from scale import PAGE, SIZES, Estimate, achieved, filled, measured_step


def test_the_page_shows_what_the_code_computes():
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page) == page, "run python benchmarks/scale.py"
    assert all(make() in page for make in scale.TABLES.values())


def test_one_device_takes_the_measured_time():
    one = Estimate(SIZES[0], 1, 8)
    assert one.traffic() == 0
    assert one.step() == pytest.approx(one.accumulation * measured_step())


def test_the_measured_step_gives_a_speed_that_the_device_can_have():
    assert 0.3 * 989e12 < achieved() < 989e12, "dense bf16 of an H200"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
def test_sizes_are_those_of_their_names(size):
    assert size.weights / 1e9 == pytest.approx(float(size.name[:-1]), rel=0.06)


def test_more_devices_hold_less_each_and_never_take_longer():
    for size in SIZES:
        several = [Estimate(size, devices, 16) for devices in (8, 64, 512)]
        assert several[0].total() > several[1].total() > several[2].total()
        assert several[0].hours() > several[1].hours() > several[2].hours()


def test_each_device_of_the_largest_machine_still_has_a_row():
    one = Estimate(SIZES[0], 512, 8)
    assert one.tokens * one.accumulation * one.devices == scale.BATCH * scale.TOKENS
