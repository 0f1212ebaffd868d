"""What the verdict of a run says first: a fall below M1, the difference, and missing answers where they explain it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from report_runs import manifest, own_part, scores, start
from run_files import put
from weakdriven.report import load_run, write_report
from weakdriven.report.run.answers import Wins, count_wins
from weakdriven.report.run.verdict import outcome, verdict
from weakdriven.runs.files import read_json, write_json


def evaluate(run: Path, model: str, right: Sequence[bool], unread: Sequence[int] = (), cut: Sequence[int] = ()) -> None:
    """One benchmark of a model: which items are right, and which of the wrong ones have no answer or were cut."""
    stage = f"eval/{model}/arithmetic"
    rows = [
        {
            "id": f"test-{i}",
            "correct": one,
            "answer": None if i in unread else "4",
            "finish": "length" if i in cut else "stop",
        }
        for i, one in enumerate(right)
    ]
    put(run / stage / "samples.jsonl", rows)
    put(run / stage / "scores.json", scores(list(right)) | {"unanswered": len(unread), "cut": len(cut)})
    manifest(run, stage, 50)


def right(count: int, first: int = 0) -> list[bool]:
    """The first `first` items wrong, the next `count` right, of 100."""
    return [first <= i < first + count for i in range(100)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    start(tmp_path)
    return tmp_path


def test_who_solved_what_is_counted_by_hand(run: Path) -> None:
    evaluate(run, "round-1", right(40), unread=range(50, 60), cut=[60, 99])
    evaluate(run, "baseline-sft", right(60, first=20), unread=[0, 1])
    wins = count_wins(load_run(run), ["arithmetic"], "round-1", "baseline-sft")
    assert wins == Wins(both=20, only_ours=20, only_theirs=40, neither=20, ours_missing=11, theirs_missing=2)
    assert wins.share == pytest.approx((11 - 2) / (40 - 20))


@pytest.mark.parametrize(("unread", "said"), [(7, True), (6, False)])
def test_missing_answers_are_named_from_a_third_of_the_difference_on(run: Path, unread: int, said: bool) -> None:
    evaluate(run, "round-1", right(60), unread=range(60, 60 + unread))
    evaluate(run, "baseline-sft", right(80))
    sentences = verdict(load_run(run))
    assert any(f"in {unread} of the 20 items that only SFT (same epochs) solved" in one for one in sentences) == said
    assert "worse" in sentences[0]
    page = own_part(write_report(run).read_text(encoding="utf-8"))
    assert f"<td>20 ({unread})</td>" in page and 'class="verdict worse"' in page


def test_missing_answers_of_the_control_explain_a_gain_too(run: Path) -> None:
    evaluate(run, "round-1", right(80))
    evaluate(run, "baseline-sft", right(60), cut=range(60, 75))
    (why,) = [one for one in verdict(load_run(run)) if "required form" in one]
    assert "75%" in why and "15 of the 20 items that only WMSS (round 1) solved, SFT (same epochs) gave no" in why
    assert outcome(load_run(run)) == "better"


def test_samples_that_do_not_say_how_they_ended_explain_nothing(run: Path) -> None:
    for model, count in (("round-1", 60), ("baseline-sft", 80)):
        evaluate(run, model, right(count))
        rows = [{"id": f"test-{i}", "correct": one} for i, one in enumerate(right(count))]
        put(run / f"eval/{model}/arithmetic/samples.jsonl", rows)
    assert not any("required form" in one for one in verdict(load_run(run)))
    assert "who solved what" not in write_report(run).read_text(encoding="utf-8")


def started(run: Path, stage: str, **inputs: str) -> None:
    manifest(run, stage, 41)
    path = run / stage / "manifest.json"
    write_json(path, read_json(path) | {"inputs": inputs})


def plan(run: Path, *stages: str) -> None:
    known = read_json(run / "plan.json")
    write_json(run / "plan.json", known | {name: "m1" if name == "sft" else "ab12" for name in stages})
    path = run / "sft/manifest.json"
    write_json(path, read_json(path) | {"key": "m1"})


def first_sentence(run: Path, wmss: int, m1: int, **others: int) -> str:
    plan(
        run, "sft", *(f"baselines/{name}" for name in others), *(f"eval/baseline-{name}/arithmetic" for name in others)
    )
    evaluate(run, "sft", right(m1))
    evaluate(run, "round-1", right(wmss))
    for name, count in {"sft": 70, **others}.items():
        evaluate(run, f"baseline-{name}", right(count))
    return verdict(load_run(run))[0]


def test_a_model_worse_than_the_m1_it_started_from_comes_first(run: Path) -> None:
    started(run, "baselines/spin", model="m1")
    started(run, "baselines/neftune", model="other", budget="m1")  # M1 only says how long to train
    words = first_sentence(run, 30, 60, spin=35, neftune=20)
    assert words.startswith("Worse than M1") and "WMSS (round 1): -30.0 points" in words and "SPIN: -25.0" in words
    assert "NEFTune" not in words and "SFT" not in words


def test_a_small_fall_below_m1_is_said_of_wmss_and_called_not_significant(run: Path) -> None:
    started(run, "baselines/spin", model="m1")
    words = first_sentence(run, 59, 60, spin=59)
    assert words.startswith("Worse than M1") and "not significant" in words and "SPIN" not in words


def test_nothing_is_said_of_m1_where_all_are_better(run: Path) -> None:
    started(run, "baselines/spin", model="m1")
    assert "M1" not in first_sentence(run, 62, 60, spin=80)


def test_the_table_counts_answers_that_are_missing_and_cut(run: Path) -> None:
    evaluate(run, "round-1", right(60), unread=range(60, 73), cut=range(70, 77))
    rows: list[dict[str, Any]] = load_run(run)["accuracy"]
    assert (rows[0]["no_answer"], rows[0]["cut"]) == (13, 7)
    page = own_part(write_report(run).read_text(encoding="utf-8"))
    assert "<td>13</td><td>7</td>" in page


def test_a_model_below_the_untrained_base_is_said_to_be_and_is_not_called_better(run: Path) -> None:
    evaluate(run, "base", right(70))
    evaluate(run, "round-1", right(60))
    evaluate(run, "baseline-sft", right(40))
    data = load_run(run)
    assert verdict(data)[0].startswith("WMSS (round 1) scores lower than the untrained base model: -10.0 points")
    assert outcome(data) == "open"
    evaluate(run, "base", right(60))
    assert "untrained" not in " ".join(verdict(load_run(run))) and outcome(load_run(run)) == "better"
