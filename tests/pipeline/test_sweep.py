"""The demo recipe, cut down, at three points under two seeds: shared stages once, one table, failures told."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from conftest import Recorder
from run_files import put
from weakdriven.commands.app import app
from weakdriven.commands.sweep import print_sweep
from weakdriven.config.file import load_recipe
from weakdriven.config.sweep import axes_of, points_of
from weakdriven.errors import UserError
from weakdriven.pipeline.run import RunOptions, is_finished
from weakdriven.pipeline.sweep import recipes_of, sweep_recipe
from weakdriven.report.sweep.figures import figures_of
from weakdriven.report.sweep.files import failures, read_sweep, write_sweep
from weakdriven.runs.directory import runs_in
from weakdriven.runs.files import read_json
from weakdriven.runs.take_over import Siblings

SMALL = ["data.limit=16", "eval.limit=8", "eval.max_new_tokens=8"]
GRID = "joint.strong_weight=0.3..0.7:3"
POINTS = ["joint.strong_weight-0.3", "joint.strong_weight-0.5", "joint.strong_weight-0.7"]
SHARED = ["data", "entropy/base", "sft", "entropy/sft", "round-1/active", "baselines/sft"]


class History(Recorder):
    """Remembers every stage of every run in turn."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.begun, self.stop_at = [], stop_at

    def begin(self, stage, reason):
        self.begun.append((stage, reason))
        if self.stop_at == len([one for one, why in self.begun if one == "round-1/strong"]):
            raise KeyboardInterrupt


def sweep(root, *overrides, grids=(GRID,), seeds=2, jobs=1, history=None):
    history = history or History()
    sweep_recipe("demo", [*SMALL, *overrides], root, history, grids=list(grids), seeds=seeds, jobs=jobs)
    return history, read_json(root / "sweep.json")


def table(root):
    return list(csv.DictReader((root / "sweep.csv").open()))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweeps") / "swept"
    return root, *sweep(root)


def test_every_point_is_a_run_of_its_own_under_every_seed(swept):
    root, _, found = swept
    for point, weight in zip(POINTS, (0.3, 0.5, 0.7), strict=True):
        for seed in ("42", "43"):
            run = root / point / f"seed-{seed}"
            assert (run / "report.html").is_file() and f"seed: {seed}" in (run / "recipe.yaml").read_text()
            manifest = read_json(run / "round-1/strong/manifest.json")
            assert manifest["settings"]["strong_weight"] == weight and "taken_from" not in manifest
    assert [one["status"] for one in found["runs"].values()] == ["done"] * 6 and not failures(found)


def test_what_points_share_is_computed_once_and_linked(swept):
    root, history, _ = swept
    for stage in SHARED:
        reasons = [why for name, why in history.begun if name == stage]
        each = 1 if stage in ("data", "entropy/base") else 2  # those that the seed decides are computed for each
        assert len(reasons) == 6 and reasons.count("not run yet") == each, stage
    weights = [root / point / "seed-43/sft/model.safetensors" for point in POINTS]
    assert weights[0].samefile(weights[1]) and weights[0].samefile(weights[2])
    assert not weights[0].samefile(root / POINTS[0] / "seed-42/sft/model.safetensors")
    taken = read_json(root / POINTS[2] / "seed-43/sft/manifest.json")["taken_from"]
    assert taken == str(root / POINTS[0] / "seed-43/sft")
    assert ("sft", f"taken over from ../{POINTS[0]}/seed-43") in history.begun


def test_the_table_has_a_row_for_each_point_seed_model_and_benchmark(swept):
    root, _, _ = swept
    rows = table(root)
    assert len(rows) == 3 * 2 * 4 and {row["status"] for row in rows} == {"done"}
    for row in rows:
        run = root / row["point"] / f"seed-{row['seed']}"
        scores = read_json(run / "eval" / row["model"] / row["benchmark"] / "scores.json")
        assert (int(row["items"]), int(row["correct"])) == (scores["items"], scores["correct"])
        assert [float(row["low"]), float(row["high"])] == scores["interval"]
        assert row["joint.strong_weight"] == row["point"].rpartition("-")[2]
    last = next(row for row in rows if row["model"] == "round-1")
    run = root / last["point"] / f"seed-{last['seed']}"
    leads = ["entropy/base", "entropy/sft", "sft", "round-1/active", "round-1/strong"]
    manifests = [read_json(run / stage / "manifest.json") for stage in leads]
    assert float(last["seconds"]) == pytest.approx(sum(one["wall_seconds"] for one in manifests))
    assert int(last["peak_bytes"]) == max(one["peak_memory_bytes"] for one in manifests)
    assert int(last["trained_tokens"]) == sum(one["counters"].get("trained_tokens", 0) for one in manifests)
    assert int(last["steps"]) == manifests[-1]["counters"]["steps"] and float(last["share_of_steps"]) == 1
    columns = pq.read_table(root / "sweep.parquet").to_pydict()
    assert columns["joint.strong_weight"] == [float(row["joint.strong_weight"]) for row in rows]
    assert columns["seed"] == [int(row["seed"]) for row in rows] and list(columns) == list(rows[0])


def test_the_summary_knows_the_default_the_control_and_what_is_the_same_everywhere(swept):
    _, _, found = swept
    assert found["default"] == POINTS[1] and found["hardware"] and found["versions"]["torch"]
    by = {(row["point"], row["model"]): row for row in found["summary"]}
    assert {model for _, model in by} == {"base", "sft", "baseline-sft", "round-1"}
    for (point, model), row in by.items():
        assert row["role"] == {"round-1": "result", "baseline-sft": "control"}.get(model, "other")
        assert row["shared"] == (model != "round-1") and row["seeds"] == ["42", "43"]
        assert row["score"] == pytest.approx(sum(row["by_seed"]) / 2)
        if model == "round-1":
            control, default = by[point, "baseline-sft"], by[POINTS[1], "round-1"]
            assert row["against_control"]["difference"] == pytest.approx(row["score"] - control["score"])
            if point == POINTS[1]:
                assert row["against_default"] is None
            else:
                assert row["against_default"]["difference"] == pytest.approx(row["score"] - default["score"])


def test_people_find_a_table_and_a_figure(swept):
    root, _, _ = swept
    text = (root / "sweep.md").read_text()
    assert "| 0.5 | 2 |" in text and "the default" in text and "Runs: 6 of 6 done, 0 failed." in text
    assert "The same at every point" in text and "SFT, same epochs" in text
    assert [figure.name for figure in figures_of(read_sweep(root))] == ["sweep"]
    assert (root / "figures/sweep.svg").is_file() and (root / "figures/sweep.png").is_file()


def test_a_second_call_computes_nothing_and_a_further_value_only_itself(swept, tmp_path):
    root = tmp_path / "again"
    shutil.copytree(swept[0], root)
    history, found = sweep(root)
    assert history.begun == [] and found["summary"] == swept[2]["summary"]
    history, found = sweep(root, grids=["joint.strong_weight=0.9"], seeds=1)
    computed = [stage for stage, why in history.begun if why == "not run yet"]
    assert computed == ["round-1/strong", "eval/round-1/arithmetic"], "earlier points of the folder are siblings too"
    assert list(found["points"]) == ["joint.strong_weight-0.9"] and found["default"] is None


def test_what_a_folder_elsewhere_has_finished_is_taken_over(swept, tmp_path):
    history = History()
    options = {"grids": ["joint.strong_weight=0.9"], "seeds": 1, "options": RunOptions(Siblings(runs_in([swept[0]])))}
    sweep_recipe("demo", SMALL, tmp_path / "more", history, **options)
    computed = [stage for stage, why in history.begun if why == "not run yet"]
    assert computed == ["round-1/strong", "eval/round-1/arithmetic"]
    words = ["demo", *SMALL, "joint.strong_weight=0.3", "seed=43", "--take-from", str(swept[0])]
    theirs = swept[0] / POINTS[0] / "seed-43/round-1/strong/model.safetensors"
    for command, more, run in (("run", [], ""), ("compare", ["--methods", "sft,wmss", "--seeds", "1"], "seed-43")):
        done = CliRunner().invoke(app, [command, *words, *more, "--output", str(tmp_path / command)])
        assert done.exit_code == 0, done.output
        assert theirs.samefile(tmp_path / command / run / "round-1/strong/model.safetensors")


@pytest.mark.parametrize("faults", [1, 7])
def test_a_table_that_cannot_be_written_does_not_end_the_runs(swept, tmp_path, monkeypatch, faults):
    root, calls = tmp_path / "again", []

    def broken(*args):
        calls.append(args)
        if len(calls) <= faults:
            raise OSError("no room for figures")
        return write_sweep(*args)

    shutil.copytree(swept[0], root)
    monkeypatch.setattr("weakdriven.pipeline.sweep.write_sweep", broken)
    history = History()
    with pytest.raises(OSError, match="no room") if faults == 7 else nullcontext():
        sweep(root, history=history)
    assert len(calls) == 7, "what was done before, and after each of three points under two seeds"
    told = "The table so far could not be written (OSError: no room for figures); the runs go on."
    assert history.notes.count(told) == faults


def test_the_files_can_be_written_again_from_the_runs_alone(swept, tmp_path):
    root = tmp_path / "again"
    shutil.copytree(swept[0], root)
    before = (root / "sweep.csv").read_text()
    (root / "sweep.csv").unlink()
    assert json.loads(json.dumps(write_sweep(root)["summary"])) == swept[2]["summary"]
    assert (root / "sweep.csv").read_text() == before


def test_an_interrupted_sweep_goes_on_and_keeps_what_is_finished(swept, tmp_path):
    root = tmp_path / "stopped"
    shutil.copytree(swept[0] / POINTS[0] / "seed-42", root / POINTS[0] / "seed-42")
    with pytest.raises(KeyboardInterrupt):
        sweep(root, history=History(stop_at=1), seeds=1)
    found = read_json(root / "sweep.json")
    assert list(found["runs"]) == [f"{POINTS[0]}/seed-42"] and "Runs: 1 of 3 done" in (root / "sweep.md").read_text()
    assert [row["status"] for row in table(root)] == ["done"] * 4 + ["not run yet"] * 2
    finished = {path: path.stat().st_mtime_ns for path in root.glob(f"{POINTS[0]}/**/manifest.json")}
    history, found = sweep(root, seeds=1)
    assert finished == {path: path.stat().st_mtime_ns for path in finished}
    assert {one["status"] for one in found["runs"].values()} == {"done"} and len(found["runs"]) == 3
    assert [stage for stage, _ in history.begun].count("round-1/strong") == 2
    assert not (root / ".locks").exists()


def test_a_rerun_that_is_stopped_keeps_what_was_done_in_the_table(swept, tmp_path):
    root = tmp_path / "again"
    shutil.copytree(swept[0], root)
    stale = root / POINTS[0] / "seed-43"
    recipe = [*SMALL, "joint.strong_weight=0.3", "seed=43"]
    assert is_finished(stale, load_recipe("demo", recipe))
    assert not is_finished(stale, load_recipe("demo", [*recipe, "eval.limit=4"]))
    shutil.rmtree(stale / "round-1/strong")  # told as done, and is not any more
    assert not is_finished(stale, load_recipe("demo", recipe))
    reports = {path: path.stat().st_mtime_ns for path in root.glob("*/*/report.html")}
    with pytest.raises(KeyboardInterrupt):
        sweep(root, history=History(stop_at=1))
    found = read_json(root / "sweep.json")["runs"]
    assert set(swept[2]["runs"]) - set(found) == {f"{POINTS[0]}/seed-43"}
    assert "Runs: 5 of 6 done" in (root / "sweep.md").read_text()
    assert reports == {path: path.stat().st_mtime_ns for path in reports}, "what is missing comes first"


def test_the_reason_of_a_failed_run_stays_until_it_has_run_again(swept, tmp_path):
    root = tmp_path / "again"
    shutil.copytree(swept[0], root)
    failed, facts = f"{POINTS[1]}/seed-43", read_json(root / "sweep.json")
    facts["runs"][failed] = {"status": "failed", "reason": "No memory."}
    put(root / "sweep.json", facts)
    shutil.rmtree(root / failed / "round-1/strong")
    with pytest.raises(KeyboardInterrupt):
        sweep(root, history=History(stop_at=1))
    assert read_json(root / "sweep.json")["runs"] == facts["runs"]
    _, found = sweep(root)
    assert {one["status"] for one in found["runs"].values()} == {"done"}


def test_a_sweep_over_other_settings_does_not_take_the_folder(swept):
    root, before = swept[0], (swept[0] / "sweep.md").read_text()
    answer = r"holds a sweep over joint\.strong_weight, and this one is over joint\.weak; give another --output"
    with pytest.raises(UserError, match=answer):
        sweep(root, grids=["joint.weak=joint,frozen"])
    assert (root / "sweep.md").read_text() == before and not (root / "joint.weak-joint").exists()


def test_a_bad_row_is_named_at_every_point(tmp_path):
    rows = tmp_path / "bad.jsonl"
    rows.write_text('{"id": "a", "question": "1 + 1?", "solution": "2"}\n{"id": "b", "question": "1 + 2?"}\n')
    _, found = sweep(tmp_path / "runs", f"data.path={rows}", grids=["joint.strong_weight=0.3,0.5"], seeds=1)
    reasons = [one["reason"] for one in found["runs"].values()]
    assert len(reasons) == 2 and all("bad.jsonl" in one and "row 2" in one for one in reasons)


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_gives_the_table_of_one_that_was_not(swept, tmp_path):
    root = tmp_path / "killed"
    command = [sys.executable, "-m", "weakdriven", "sweep", "demo", *SMALL, "--grid", GRID, "--seeds", "2", "--quiet"]
    process = subprocess.Popen([*command, "--output", str(root)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    while process.poll() is None and not (root / POINTS[1] / "seed-42/round-1/strong/manifest.json").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(read_json(root / "sweep.json")["runs"]) < 6
    _, found = sweep(root)
    scores = [[(row["point"], row["model"], row["by_seed"]) for row in one["summary"]] for one in (found, swept[2])]
    assert scores[0] == scores[1]


def test_a_point_that_fails_is_told_with_its_reason_and_the_others_go_on(swept, tmp_path):
    root = tmp_path / "failing"
    shutil.copytree(swept[0] / POINTS[1], root / "earlier")
    grid = f"data.path=embedded:arithmetic,{tmp_path / 'nowhere.jsonl'}"
    _, found = sweep(root, grids=[grid], seeds=1)
    states = [one["status"] for one in found["runs"].values()]
    assert states == ["done", "failed"]
    rows = table(root)
    assert [row["status"] for row in rows] == ["done"] * 4 + ["failed"]
    assert "nowhere.jsonl" in rows[-1]["reason"] and rows[-1]["accuracy"] == ""
    (told,) = failures(found)
    assert "nowhere.jsonl" in told and told in (root / "sweep.md").read_text()
    with pytest.raises(UserError, match=r"Without a result: .*nowhere\.jsonl"):
        print_sweep(root)
    last = [row for row in found["summary"] if row["point"] == rows[-1]["point"]]
    assert [(row["role"], row["seeds"], row.get("score")) for row in last] == [("result", [], None)]


@pytest.mark.slow
def test_runs_side_by_side_give_the_same_table_and_share_as_well(swept, tmp_path):
    root = tmp_path / "beside"
    _, found = sweep(root, grids=["joint.strong_weight=0.3,0.5"], seeds=1, jobs=2)
    alone = {row["point"]: row["by_seed"][:1] for row in swept[2]["summary"] if row["model"] == "round-1"}
    assert [(row["point"], row["by_seed"]) for row in found["summary"] if row["model"] == "round-1"] == [
        (point, alone[point]) for point in POINTS[:2]
    ]
    for stage in SHARED:
        taken = ["taken_from" in read_json(root / point / "seed-42" / stage / "manifest.json") for point in POINTS[:2]]
        assert sorted(taken) == [False, True], f"{stage} is computed by one and taken over by the other"
    assert (root / f"logs/{POINTS[0]}/seed-42.log").is_file()


@pytest.mark.parametrize(
    "overrides, grids, answer",
    [
        (
            [],
            ["joint.strong_wieght=0.1,0.2"],
            "joint.strong_wieght is not a setting. Did you mean joint.strong_weight?",
        ),
        ([], ["joint.strong_weight=0.5,1.5"], "joint.strong_weight: Input should be less than or equal to 1"),
        ([], ["lamda"], "Did you mean lambda?"),
        (["joint.strong_weight=0.4"], ["lambda"], "joint.strong_weight is in a grid and in your overrides"),
        (["eval.benchmarks=[]"], ["lambda"], "eval.benchmarks names none"),
    ],
)
def test_what_cannot_be_swept_is_told_before_anything_runs(tmp_path, overrides, grids, answer):
    root = tmp_path / "runs"
    with pytest.raises(UserError, match=answer):
        sweep_recipe("demo", overrides, root, Recorder(), grids=grids, seeds=1)
    assert not root.exists()


def test_a_recipe_that_is_one_only_with_what_its_points_say_can_be_swept():
    axes = axes_of(["eval.temperature=0.6,1.0"])
    default, recipes = recipes_of("demo", ["eval.samples=4"], axes, points_of(axes))
    assert default is None and [one.eval.temperature for one in recipes.values()] == [0.6, 1.0]
    with pytest.raises(UserError, match="temperature is 0, so all 4 samples would be the same"):
        axes = axes_of(["joint.strong_weight=0.3,0.7"])
        recipes_of("demo", ["eval.samples=4"], axes, points_of(axes))


def test_the_folder_of_a_run_is_not_taken_for_a_sweep(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match="is the directory of one run; give another --output"):
        sweep_recipe("demo", [], tmp_path, Recorder(), grids=["lambda"], seeds=1)
