"""`weakdriven select`: the active set alone, its explanation, and what a whole run makes of it afterwards."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from command_line import WHOLE, Result, assert_user_error, weakdriven
from small_runs import Recorder
from weakdriven.config.file import load_recipe
from weakdriven.pipeline.run import RunOptions, run_recipe, select_recipe
from weakdriven.runs.files import read_json

SHORT = [*WHOLE, "data.limit=16", "joint.batch_size=8", "joint.micro_batch_size=8", "baselines=[]"]
SHORT += ["eval.benchmarks=[]"]
STAGES = ["data", "entropy/base", "sft", "entropy/sft", "round-1/active"]


@pytest.fixture(scope="session")
def selected(once) -> tuple[Path, Result]:
    """A run directory in which only a selection was made, and what the command printed."""
    return once("selected", lambda root: weakdriven("select", "demo", *SHORT, "--output", root))


@pytest.fixture
def root(selected, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(selected[0], tmp_path / "run"))


def run(root: Path, *overrides: str) -> Recorder:
    run_recipe(load_recipe("demo", [*SHORT, *overrides]), root, recorder := Recorder(), RunOptions(replace=True))
    return recorder


def counters(root: Path, stage: str) -> dict:
    return read_json(root / stage / "manifest.json")["counters"]


def test_select_trains_what_it_needs_and_ends_with_the_explanation(selected):
    root, done = selected
    assert (done.code, done.err) == (0, "")
    stages, why = done.out.split("Selection of round 1")
    assert [line.split()[1].rstrip(":") for line in stages.splitlines() if line.startswith("[")] == STAGES
    assert f"{counters(root, 'round-1/active')['active']} of 16 examples" in why
    assert not (root / "round-1/strong").exists()
    again = weakdriven("select", "explain", root)
    assert again.code == 0 and done.out.endswith(again.out) and why in again.out


def test_select_is_short_for_select_draw(root):
    short = weakdriven("select", "demo", *SHORT, "--output", root)
    assert short == weakdriven("select", "draw", "demo", *SHORT, "--output", root) and short.code == 0
    assert short == weakdriven("select", "--output", root, "demo", *SHORT), "options may come first"
    assert short.out.count("already done") == len(STAGES)
    quiet = weakdriven("select", "demo", *SHORT, "--output", root, "--quiet")
    assert quiet.out == weakdriven("select", "explain", root).out


def test_a_changed_weight_draws_again_and_scores_nothing_again(root):
    done = weakdriven("select", "demo", *SHORT, "selection.repair=0.3", "--replace", "--output", root)
    assert "[5/5] round-1/active: repair 0.1 -> 0.3" in done.out
    assert done.out.count("already done") == len(STAGES) - 1


def test_a_selection_needs_no_files_of_benchmarks(root):
    recorder = Recorder()
    select_recipe(load_recipe("demo", [*SHORT, "eval.benchmarks=[math500]"]), root, recorder)
    assert recorder.skipped == STAGES and not recorder.ran
    assert list(json.loads((root / "plan.json").read_text())) == STAGES


def test_a_second_round_is_selected_with_the_strong_model_of_the_first(whole_run, tmp_path):
    root = shutil.copytree(whole_run[0], tmp_path / "run")
    done = weakdriven("select", "demo", *WHOLE, "joint.rounds=2", "--round", 2, "--output", root)
    assert done.code == 0 and "Selection of round 2" in done.out
    assert "round-1/strong: already done" in done.out and "round-2/strong" not in done.out
    assert [line.split()[1] for line in done.out.splitlines() if line.startswith("[") and ": " not in line] == [
        "entropy/round-1",
        "round-2/active",
    ]


@pytest.mark.parametrize(
    "words, message",
    [
        (["joint.rounds=1", "--round", "2"], "There is no round 2"),
        (["joint.rounds=1", "--round", "0"], "There is no round 0"),
        (["method=sft", "baselines=[]"], "method is sft"),
        (["selection.enabled=false"], "selection.enabled is false"),
    ],
)
def test_a_recipe_without_that_selection_raises_an_error(words, message, tmp_path):
    assert_user_error(weakdriven("select", "demo", *words, "--output", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_select_alone_shows_its_help(arguments):
    done = weakdriven("select", *arguments)
    assert all(command in done.out + done.err for command in ("Usage", "draw", "explain", "pairing"))


def test_explain_gives_the_probability_and_draws_of_an_example(selected):
    rows = pq.read_table(selected[0] / "round-1/active/active.parquet").to_pylist()
    chosen = next(row for row in rows if row["draws"])
    other = next(row for row in rows if not row["draws"])
    for row in (chosen, other):
        done = weakdriven("select", "explain", selected[0], "--id", row["id"])
        assert done.code == 0 and f"Example {row['id']}, round 1" in done.out
        assert f"{row['probability']:.4g}, " in done.out
        [draws] = [line.split()[5] for line in done.out.splitlines() if line.startswith("times in the active set")]
        assert int(draws) == row["draws"]


def test_explain_of_an_unknown_example_or_round_raises_an_error(selected):
    assert_user_error(weakdriven("select", "explain", selected[0], "--id", "nobody"), "nobody")
    assert_user_error(weakdriven("select", "explain", selected[0], "--round", 2), "round")


def test_a_run_with_a_selection_only_has_a_report(root):
    assert weakdriven("report", root).code == 0
    page = (root / "report.html").read_text()
    assert "from an older recipe" not in page and "round-1/strong" in page


def test_a_run_after_select_computes_only_the_rest_and_matched_steps_are_those_of_all_examples(root):
    first = run(root)
    assert first.skipped == STAGES and list(first.ran) == ["round-1/strong"]
    assert counters(root, "round-1/strong")["steps"] == 1, "the active set is less than two batches"
    again = run(root, "selection.match_steps=true")
    assert again.ran == {"round-1/strong": "match_steps None -> True"}
    assert (counters(root, "round-1/strong")["steps"], counters(root, "round-1/strong")["rows"]) == (2, 16)
    assert len((root / "round-1/strong/metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "overrides, steps",
    [
        (["joint.enabled=false"], 2),
        (["joint.batch_size=16", "joint.micro_batch_size=16"], 1),  # a batch larger than the active set
    ],
)
def test_matched_steps_without_joint_training_and_with_a_batch_larger_than_the_active_set(overrides, steps, root):
    assert counters(root, "round-1/active")["active"] < 16
    run(root, *overrides, "selection.match_steps=true")
    found = counters(root, "round-1/strong")
    assert (found["steps"], found["rows"]) == (steps, 16)
