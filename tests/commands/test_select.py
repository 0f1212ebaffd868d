"""`weakdriven select`: the active set alone, why it came out so, and what a whole run makes of it afterwards."""

import json
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from conftest import SMALL, Recorder, run_small, small_recipe
from weakdriven.commands.app import main
from weakdriven.pipeline.run import select_recipe
from weakdriven.report.selection_explained import explain_selection

SHORT = ["data.limit=32", "baselines=[]", "eval.benchmarks=[]"]
STAGES = ["data", "entropy/base", "sft", "entropy/sft", "round-1/active"]


class Result(NamedTuple):
    code: int | str | None
    out: str
    err: str


@pytest.fixture
def weakdriven(monkeypatch, capsys):
    """The command line, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["weakdriven", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return Result(stop.value.code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def selected(tmp_path_factory) -> Path:
    """A run directory in which only a selection was made."""
    root, recorder = tmp_path_factory.mktemp("selected") / "run", Recorder()
    assert select_recipe(small_recipe(*SHORT), root, recorder)
    assert list(recorder.ran) == STAGES
    with (root.parent / "why.txt").open("w") as file:
        explain_selection(root, 1, Console(file=file, width=200))
    return root


@pytest.fixture
def root(selected, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(selected, tmp_path / "run"))


def refused(result: Result, words: str) -> None:
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("Error: ") and words in result.err and "Traceback" not in result.err


def test_select_trains_what_it_needs_and_ends_with_the_explanation(weakdriven, selected, tmp_path):
    done = weakdriven("select", "demo", *SMALL, *SHORT, "--output", tmp_path / "run")
    assert (done.code, done.err) == (0, "")
    stages, why = done.out.split("Selection of round 1")
    assert [line.split()[1].rstrip(":") for line in stages.splitlines() if line.startswith("[")] == STAGES
    assert why == (selected.parent / "why.txt").read_text().split("Selection of round 1")[1]
    assert not (tmp_path / "run/round-1/strong").exists()
    active = json.loads((tmp_path / "run/round-1/active/manifest.json").read_text())["counters"]["active"]
    assert f"{active} of 32 examples" in why


def test_select_is_short_for_select_draw(weakdriven, root):
    short = weakdriven("select", "demo", *SMALL, *SHORT, "--output", root)
    long = weakdriven("select", "draw", "demo", *SMALL, *SHORT, "--output", root)
    options_first = weakdriven("select", "--output", root, "demo", *SMALL, *SHORT)
    assert short == long == options_first and short.code == 0
    assert short.out.count("done before") == len(STAGES)


def test_a_quiet_select_prints_the_explanation_only(weakdriven, root, selected):
    done = weakdriven("select", "demo", *SMALL, *SHORT, "--output", root, "--quiet")
    assert done.out == (selected.parent / "why.txt").read_text()


def test_a_run_after_select_computes_nothing_of_it_again(root):
    recorder = run_small(root, *SHORT)
    assert recorder.skipped == STAGES
    assert list(recorder.ran) == ["round-1/strong"]


def test_a_changed_weight_draws_again_and_scores_nothing_again(weakdriven, root):
    done = weakdriven("select", "demo", *SMALL, *SHORT, "selection.repair=0.3", "--output", root)
    assert "[5/5] round-1/active: repair 0.1 -> 0.3" in done.out
    assert done.out.count("done before") == len(STAGES) - 1


def test_the_second_round_of_a_finished_run_is_explained(weakdriven, two_round_run):
    done = weakdriven("select", "demo", *SMALL, "joint.rounds=2", "--round", 2, "--output", two_round_run[0])
    assert done.code == 0 and "Selection of round 2" in done.out and "not run yet" not in done.out
    assert "round-2/active: done before" in done.out and "round-2/strong" not in done.out


@pytest.mark.parametrize("turn, rounds", [(2, 1), (0, 1), (3, 2)])
def test_a_round_that_the_recipe_does_not_have_is_refused(turn, rounds, weakdriven, tmp_path):
    done = weakdriven("select", "demo", f"joint.rounds={rounds}", "--round", turn, "--output", tmp_path / "run")
    refused(done, f"There is no round {turn}: joint.rounds is {rounds}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["method=sft", "baselines=[]"], "selects nothing: method is sft; use method: wmss"),
        (["selection.enabled=false"], "selects nothing: selection.enabled is false; use"),
    ],
)
def test_a_recipe_without_a_selection_is_refused(overrides, words, weakdriven, tmp_path):
    refused(weakdriven("select", "demo", *overrides, "--output", tmp_path / "run"), words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_select_alone_shows_its_help(arguments, weakdriven):
    done = weakdriven("select", *arguments)
    assert all(command in done.out + done.err for command in ("Usage", "draw", "explain", "pairing"))


def test_select_of_an_unknown_recipe_is_refused(weakdriven):
    refused(weakdriven("select", "nothing"), "nothing")


def test_explain_prints_what_select_ended_with(weakdriven, selected):
    done = weakdriven("select", "explain", selected)
    assert (done.code, done.out) == (0, (selected.parent / "why.txt").read_text())


def test_explain_says_why_an_example_was_chosen_or_not(weakdriven, selected):
    rows = pq.read_table(selected / "round-1/active/active.parquet").to_pylist()
    chosen = next(row for row in rows if row["draws"])
    other = next(row for row in rows if not row["draws"])
    for row in (chosen, other):
        done = weakdriven("select", "explain", selected, "--id", row["id"])
        assert done.code == 0 and f"Example {row['id']}, round 1" in done.out
        assert f"{row['probability']:.4g}, " in done.out
        [draws] = [line.split()[5] for line in done.out.splitlines() if line.startswith("times in the active set")]
        assert int(draws) == row["draws"]


def test_explain_refuses_an_unknown_example_and_a_round_that_is_not_there(weakdriven, selected):
    refused(weakdriven("select", "explain", selected, "--id", "nobody"), "nobody")
    refused(weakdriven("select", "explain", selected, "--round", 2), "round")


def test_a_run_with_a_selection_only_has_a_report(weakdriven, root):
    assert weakdriven("report", root).code == 0
    page = (root / "report.html").read_text()
    assert "from an older recipe" not in page and "round-1/strong" in page


@pytest.mark.parametrize("joint", ["joint.enabled=true", "joint.enabled=false"])
def test_matched_steps_are_those_of_an_epoch_over_all_examples(joint, root):
    run_small(root, *SHORT, joint)
    before = json.loads((root / "round-1/strong/manifest.json").read_text())["counters"]
    assert before["steps"] == 1, "the active set is less than two batches"
    again = run_small(root, *SHORT, joint, "selection.match_steps=true")
    assert again.ran == {"round-1/strong": "match_steps None -> True"}
    after = json.loads((root / "round-1/strong/manifest.json").read_text())["counters"]
    assert (after["steps"], after["rows"]) == (2, 32)
    assert len((root / "round-1/strong/metrics.jsonl").read_text().splitlines()) == 2


def test_matched_steps_fill_a_batch_that_is_larger_than_the_active_set(root):
    active = json.loads((root / "round-1/active/manifest.json").read_text())["counters"]["active"]
    assert active < 32
    run_small(root, *SHORT, "joint.batch_size=32", "joint.micro_batch_size=32", "selection.match_steps=true")
    counters = json.loads((root / "round-1/strong/manifest.json").read_text())["counters"]
    assert (counters["steps"], counters["rows"]) == (1, 32)


def test_a_selection_needs_no_files_of_benchmarks(root):
    recorder = Recorder()
    select_recipe(small_recipe(*SHORT[:2], "eval.benchmarks=[math500]"), root, recorder)
    assert recorder.skipped == STAGES and not recorder.ran
    assert list(json.loads((root / "plan.json").read_text())) == STAGES
