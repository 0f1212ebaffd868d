"""What a process may use of the machine."""

import os

import pytest

from weakdriven.runs.machine import CORES, cores


@pytest.mark.parametrize("given, expected", [("1", 1), ("4096", 3), (None, 3)])
def test_cores_are_those_of_the_process_or_its_share_of_them(given, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 5})
    monkeypatch.delenv(CORES, raising=False)
    if given:
        monkeypatch.setenv(CORES, given)
    assert cores() == expected
