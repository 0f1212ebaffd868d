"""Numbers of a benchmark from its samples, averages that mix nothing, and two models on the same items."""

import json

import pytest

from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS
from weakdriven.eval.scoring import average, compare, read_folder, score


def samples_of(right, level=None):
    """Samples of items that are right as the rows of `right` say."""
    return [
        {"id": f"i{p}", "sample": n, "correct": bool(c), "answer": "x" if c else None, "finish": "stop"}
        | {"tokens": 5, "undecided": False, "level": level and level[p]}
        for p, row in enumerate(right)
        for n, c in enumerate(row)
    ]


def write(folder, benchmark, right, **changes):
    (folder / benchmark).mkdir(parents=True)
    samples = samples_of(right)
    protocol = {"samples": len(right[0]), "temperature": 0.0, "top_p": 1.0, "max_new_tokens": 64}
    entry = BENCHMARKS[benchmark]
    scores = (
        score(benchmark, samples, [1], version=entry.version, rows=entry.rows)
        | {"protocol": protocol, "golds": "g", "model": "m"}
        | changes
    )
    (folder / benchmark / "scores.json").write_text(json.dumps(scores))
    (folder / benchmark / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return folder


def test_counts_levels_and_unanswered_items_add_up():
    scores = score("gsm8k", samples_of([[1, 0], [0, 0], [1, 1]], level=["a", "a", "b"]), [1, 2], version=2, rows=1319)
    assert scores["levels"]["a"] == {"items": 2, "answers": 4, "correct": 1}
    assert scores["levels"]["b"] == {"items": 1, "answers": 2, "correct": 2}
    assert (scores["correct"], scores["unanswered"], scores["accuracy"]) == (3, 3, 0.5)
    assert scores["pass_at_k"] == {"1": pytest.approx(0.5), "2": pytest.approx(2 / 3)}


def test_two_models_are_compared_item_by_item(tmp_path):
    a = write(tmp_path / "a", "gsm8k", [[1]] * 10 + [[0]] * 10)
    b = write(tmp_path / "b", "gsm8k", [[1]] * 9 + [[0]] * 1 + [[1]] * 8 + [[0]] * 2)
    write(tmp_path / "b", "math500", [[1]])
    (one,), left_out = compare(a, b)
    assert (one.test, one.items, one.accuracy_a, one.accuracy_b) == ("McNemar", 20, 0.5, 0.85)
    assert (one.result.only_a, one.result.only_b) == (1, 8)
    assert one.result.p_value == pytest.approx(2 * (1 + 9) / 2**9)
    assert left_out == ["math500"]


def test_several_samples_are_compared_by_their_means(tmp_path):
    a = write(tmp_path / "a", "gsm8k", [[0, 1]] * 30)
    b = write(tmp_path / "b", "gsm8k", [[1, 1]] * 30)
    (one,), _ = compare(a, b)
    assert one.test == "paired bootstrap" and one.result.difference == 0.5 and one.result.p_value < 0.001


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"golds": "h"}, "gold answers or graders differ"),
        ({"version": 1}, "version is 2 in the first folder and 1 in the second; run weakdriven eval regrade"),
        ({"protocol": {"samples": 1, "temperature": 0.7, "top_p": 1.0, "max_new_tokens": 64}}, "temperature is 0.0"),
    ],
)
def test_results_under_different_protocols_are_not_compared(tmp_path, changes, says):
    a = write(tmp_path / "a", "gsm8k", [[1], [0]])
    b = write(tmp_path / "b", "gsm8k", [[1], [0]], **changes)
    with pytest.raises(UserError, match=says):
        compare(a, b)


def test_folders_without_results_are_errors(tmp_path):
    a = write(tmp_path / "a", "gsm8k", [[1], [0]])
    with pytest.raises(UserError, match="no benchmark in common"):
        compare(a, write(tmp_path / "c", "math500", [[1]]))
    with pytest.raises(UserError, match="did you mean"):
        read_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"expected <benchmark>/scores.json"):
        read_folder(tmp_path / "empty")


def test_an_average_mixes_neither_versions_nor_parts_with_wholes(tmp_path):
    terms = {"whole": True, "model": "m", "protocol": {"samples": 1, "temperature": 0.0, "top_p": 1.0}}
    one = {"version": BENCHMARKS["gsm8k"].version, "accuracy": 0.5} | terms
    two = {"version": BENCHMARKS["math500"].version, "accuracy": 0.25} | terms
    assert average({"gsm8k": one, "math500": two}) == 0.375
    assert average({"gsm8k": one}) is None
    assert average({"gsm8k": one, "math500": two | {"version": 1}}) is None
    assert average({"gsm8k": one, "math500": two | {"whole": False}}) is None
    assert average({"gsm8k": one, "math500": two | {"model": "other"}}) is None
    sampled = {"samples": 4, "temperature": 0.7, "top_p": 1.0}
    assert average({"gsm8k": one, "math500": two | {"protocol": sampled}}) is None


def test_where_no_sample_is_right_the_interval_still_has_a_width():
    low, high = score("gsm8k", samples_of([[0, 0]] * 10), [1], version=2, rows=1319)["interval"]
    assert low == 0 and 0.2 < high < 0.35
