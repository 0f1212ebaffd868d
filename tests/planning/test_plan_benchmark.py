"""docs/background/plan-accuracy.md agrees with the code and its predictions with the recorded measurements."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    """benchmarks/plan.py, whose neighbours it imports by name."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import plan

        yield plan
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in ("plan", "common", "joint_step", "methods"):
            sys.modules.pop(name, None)


def test_the_table_in_the_docs_is_what_the_code_computes(bench):
    text = bench.DOCS.read_text(encoding="utf-8")
    written = text.split(bench.BEGIN)[1].split(bench.END)[0].strip()
    assert written == bench.table(bench.compared())


def test_memory_is_within_a_tenth_and_time_within_a_quarter_of_every_recorded_row(bench):
    rows = bench.compared()
    assert len(rows) >= 20 and sum(not row.fitted for row in rows) >= 20
    assert {row.benchmark for row in rows} >= {"joint_step", "methods"}
    for row in rows:
        memory, time = row.errors
        assert abs(memory) < 0.1, row
        assert abs(time) < 0.25, row
