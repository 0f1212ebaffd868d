"""`weakdriven sweep`: two points under two seeds, shared stages once, one table, failures in it."""

import csv
import json
import shutil
import signal
from contextlib import nullcontext

import pyarrow.parquet as pq
import pytest

from command_line import WHOLE, weakdriven
from fault_cases import FORKED, killed_at
from run_files import put
from small_runs import Recorder
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

GRID = "joint.strong_weight=0.3,0.5"
POINTS = ["joint.strong_weight-0.3", "joint.strong_weight-0.5"]
SHARED = ["sft", "entropy/sft", "round-1/active", "baselines/sft"]
NOT_WRITTEN = "The table could not be updated (OSError: no room for figures); the runs continue."


class History(Recorder):
    """Remembers every stage of every run."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.begun, self.stop_at = [], stop_at

    def begin(self, stage, reason):
        self.begun.append((stage, reason))
        if self.stop_at == len([one for one, why in self.begun if one == "round-1/strong"]):
            raise KeyboardInterrupt

    def computed(self):
        return [stage for stage, why in self.begun if not why.startswith("taken over")]


def sweep(root, *overrides, grids=(GRID,), seeds=2, jobs=1, history=None, siblings=()):
    history = history or History()
    shared = {"grids": list(grids), "seeds": seeds, "jobs": jobs, "options": RunOptions(Siblings(siblings))}
    sweep_recipe("demo", [*WHOLE, *overrides], root, history, **shared)
    return history, read_json(root / "sweep.json")


def table(root):
    return list(csv.DictReader((root / "sweep.csv").open()))


@pytest.fixture(scope="session")
def swept(once, whole_run):
    """A sweep whose first seed takes what it can from the finished run."""
    root, result = once("swept", lambda root: sweep(root, siblings=[whole_run[0]]))
    return root, *result


@pytest.fixture
def again(swept, tmp_path):
    """A copy of the sweep that a test may change."""
    return shutil.copytree(swept[0], tmp_path / "again")


def test_every_point_is_a_run_of_its_own_under_every_seed(swept):
    root, _, found = swept
    for point, weight in zip(POINTS, (0.3, 0.5), strict=True):
        for seed in ("42", "43"):
            run = root / point / f"seed-{seed}"
            assert (run / "report.html").is_file() and f"seed: {seed}" in (run / "recipe.yaml").read_text()
            assert read_json(run / "round-1/strong/manifest.json")["settings"]["strong_weight"] == weight
    assert [one["status"] for one in found["runs"].values()] == ["done"] * 4 and not failures(found)


def test_what_points_share_is_computed_once_and_linked(swept):
    root, history, _ = swept
    for stage in SHARED:
        reasons = [why for name, why in history.begun if name == stage]
        assert len(reasons) == 4 and reasons.count("not run yet") == 1, f"{stage} of seed 43"
    assert history.computed().count("round-1/strong") == 3, "that of the finished run is taken over"
    first, second = (root / point / "seed-43/sft" for point in POINTS)
    assert (first / "model.safetensors").samefile(second / "model.safetensors")
    assert read_json(second / "manifest.json")["taken_from"] == str(first)
    assert ("sft", f"taken over from ../{POINTS[0]}/seed-43") in history.begun


def test_the_table_has_a_row_for_each_point_seed_model_and_benchmark(swept):
    root, _, _ = swept
    rows = table(root)
    assert len(rows) == 2 * 2 * 4 and {row["status"] for row in rows} == {"done"}
    for row in rows:
        run = root / row["point"] / f"seed-{row['seed']}"
        scores = read_json(run / "eval" / row["model"] / row["benchmark"] / "scores.json")
        assert (int(row["items"]), int(row["correct"])) == (scores["items"], scores["correct"])
        assert [float(row["low"]), float(row["high"])] == scores["interval"]
        assert row["joint.strong_weight"] == row["point"].rpartition("-")[2]
    last = next(row for row in rows if row["model"] == "round-1")
    run = root / last["point"] / f"seed-{last['seed']}"
    stages = ["entropy/base", "entropy/sft", "sft", "round-1/active", "round-1/strong"]
    manifests = [read_json(run / stage / "manifest.json") for stage in stages]
    assert float(last["seconds"]) == pytest.approx(sum(one["wall_seconds"] for one in manifests))
    assert int(last["peak_bytes"]) == max(one["peak_memory_bytes"] for one in manifests)
    assert int(last["trained_tokens"]) == sum(one["counters"].get("trained_tokens", 0) for one in manifests)
    assert int(last["steps"]) == manifests[-1]["counters"]["steps"] and float(last["share_of_steps"]) == 1
    columns = pq.read_table(root / "sweep.parquet").to_pydict()
    assert columns["joint.strong_weight"] == [float(row["joint.strong_weight"]) for row in rows]
    assert columns["seed"] == [int(row["seed"]) for row in rows] and list(columns) == list(rows[0])


def test_the_summary_compares_each_point_with_the_default_and_the_control(swept):
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


def test_a_sweep_is_written_for_people(swept):
    root, _, _ = swept
    text = (root / "sweep.md").read_text()
    assert "| 0.5 | 2 |" in text and "Runs: 4 of 4 done, 0 failed." in text
    assert "Difference: from SFT (same epochs)" in text
    assert "The same at every point" in text and "| SFT (same epochs) | 2 |" in text
    assert [figure.name for figure in figures_of(read_sweep(root))] == ["sweep"]
    assert (root / "figures/sweep.svg").is_file() and (root / "figures/sweep.png").is_file()


def test_a_second_call_computes_nothing_and_a_further_value_only_itself(swept, again):
    (again / "sweep.csv").unlink()
    history, found = sweep(again)
    assert history.begun == [] and found["summary"] == swept[2]["summary"]
    assert (again / "sweep.csv").read_text() == (swept[0] / "sweep.csv").read_text()
    history, found = sweep(again, grids=["joint.strong_weight=0.9"], seeds=1)
    computed = ["round-1/strong", "eval/round-1/arithmetic"]
    assert history.computed() == computed, "earlier points of the folder are siblings too"
    assert list(found["points"]) == ["joint.strong_weight-0.9"] and found["default"] is None


def test_a_changed_setting_replaces_no_finished_stage_of_any_point(again):
    before = (again / "sweep.json").read_bytes()
    with pytest.raises(UserError, match=r"(?s)8 finished stages .*seed-43/eval/round-1/arithmetic"):
        sweep(again, "joint.strong_anchor=0.5")
    assert (again / "sweep.json").read_bytes() == before


@pytest.mark.parametrize(
    "command, run",
    [
        (["run"], ""),
        pytest.param(["compare", "--methods", "sft_restart,wmss", "--seeds", "1"], "seed-43", marks=pytest.mark.slow),
        (["sweep", "--grid", "joint.weak=joint", "--seeds", "1"], "joint.weak-joint/seed-43"),
    ],
)
def test_finished_stages_of_a_folder_of_runs_are_reused_by_each_command(swept, tmp_path, command, run):
    name, *more = command
    words = ["demo", *WHOLE, "joint.strong_weight=0.3", "seed=43", "--take-from", swept[0]]
    done = weakdriven(name, *words, *more, "--output", tmp_path / "new")
    assert done.code == 0 and "42" not in done.err, done.err
    assert "report.html" in done.out or "Tables (" in done.out
    theirs = swept[0] / POINTS[0] / "seed-43/round-1/strong/model.safetensors"
    assert theirs.samefile(tmp_path / "new" / run / "round-1/strong/model.safetensors")


@pytest.mark.parametrize("faults", [1, 3])
def test_a_table_that_cannot_be_written_does_not_end_the_runs(again, monkeypatch, faults):
    calls = []

    def broken(*args):
        calls.append(args)
        if len(calls) <= faults:
            raise OSError("no room for figures")
        return write_sweep(*args)

    monkeypatch.setattr("weakdriven.pipeline.sweep.write_sweep", broken)
    history = History()
    with pytest.raises(OSError, match="no room") if faults == 3 else nullcontext():
        sweep(again, seeds=1, history=history)
    assert len(calls) == 3, "once for the finished runs, then after each of two points"
    assert history.notes.count(NOT_WRITTEN) == faults


def test_an_interrupted_sweep_is_resumed_and_keeps_what_is_finished(swept, whole_run, tmp_path):
    root, options = tmp_path / "stopped", {"seeds": 1, "siblings": [whole_run[0]]}
    shutil.copytree(swept[0] / POINTS[0] / "seed-42", root / POINTS[0] / "seed-42")
    with pytest.raises(KeyboardInterrupt):
        sweep(root, history=History(stop_at=1), **options)
    found = read_json(root / "sweep.json")
    assert list(found["runs"]) == [f"{POINTS[0]}/seed-42"] and "Runs: 1 of 2 done" in (root / "sweep.md").read_text()
    assert [row["status"] for row in table(root)] == ["done"] * 4 + ["not run yet"]
    finished = {path: path.stat().st_mtime_ns for path in root.glob(f"{POINTS[0]}/**/manifest.json")}
    history, found = sweep(root, **options)
    assert finished == {path: path.stat().st_mtime_ns for path in finished}
    assert {one["status"] for one in found["runs"].values()} == {"done"} and len(found["runs"]) == 2
    assert [stage for stage, _ in history.begun].count("round-1/strong") == 1
    assert not (root / ".locks").exists()


def test_a_rerun_that_is_stopped_keeps_finished_runs_and_reasons_of_failed_ones(swept, again):
    stale, failed = (f"{point}/seed-43" for point in POINTS)
    recipe = [*WHOLE, "joint.strong_weight=0.3", "seed=43"]
    assert is_finished(again / stale, load_recipe("demo", recipe))
    assert not is_finished(again / stale, load_recipe("demo", [*recipe, "eval.limit=4"]))
    facts = read_json(again / "sweep.json")
    facts["runs"][failed] = {"status": "failed", "reason": "No memory."}
    put(again / "sweep.json", facts)
    for run in (stale, failed):
        shutil.rmtree(again / run / "round-1/strong")
    assert not is_finished(again / stale, load_recipe("demo", recipe))
    reports = {path: path.stat().st_mtime_ns for path in again.glob("*/*/report.html")}
    with pytest.raises(KeyboardInterrupt):
        sweep(again, history=History(stop_at=1))
    found = read_json(again / "sweep.json")["runs"]
    assert set(facts["runs"]) - set(found) == {stale}, "it is not finished any more"
    assert found[failed] == facts["runs"][failed] and "Runs: 2 of 4 done" in (again / "sweep.md").read_text()
    assert reports == {path: path.stat().st_mtime_ns for path in reports}, "what is missing comes first"
    _, found = sweep(again, siblings=runs_in([swept[0]]))
    assert {one["status"] for one in found["runs"].values()} == {"done"}


def test_a_sweep_over_other_settings_does_not_use_the_folder(swept):
    root, before = swept[0], (swept[0] / "sweep.md").read_text()
    with pytest.raises(UserError, match=r"contains a sweep over joint\.strong_weight"):
        sweep(root, grids=["joint.weak=joint,frozen"])
    assert (root / "sweep.md").read_text() == before and not (root / "joint.weak-joint").exists()


def test_a_bad_row_is_reported_at_every_point(tmp_path):
    rows = tmp_path / "bad.jsonl"
    rows.write_text('{"id": "a", "question": "1 + 1?", "solution": "2"}\n{"id": "b", "question": "1 + 2?"}\n')
    _, found = sweep(tmp_path / "runs", f"data.path={rows}", seeds=1)
    reasons = [one["reason"] for one in found["runs"].values()]
    assert len(reasons) == 2 and all("bad.jsonl" in one and "row 2" in one for one in reasons)


def test_a_point_that_fails_has_its_reason_in_the_table_and_the_others_run(swept, tmp_path):
    root = tmp_path / "failing"
    shutil.copytree(swept[0] / POINTS[1], root / "earlier")
    grid = f"data.path=embedded:arithmetic,{tmp_path / 'nowhere.jsonl'}"
    _, found = sweep(root, grids=[grid], seeds=1)
    assert [one["status"] for one in found["runs"].values()] == ["done", "failed"]
    rows = table(root)
    assert [row["status"] for row in rows] == ["done"] * 4 + ["failed"]
    assert "nowhere.jsonl" in rows[-1]["reason"] and rows[-1]["accuracy"] == ""
    (reported,) = failures(found)
    assert "nowhere.jsonl" in reported and reported in (root / "sweep.md").read_text()
    with pytest.raises(UserError, match=r"No result from: .*nowhere\.jsonl"):
        print_sweep(root)
    last = [row for row in found["summary"] if row["point"] == rows[-1]["point"]]
    assert [(row["role"], row["seeds"], row.get("score")) for row in last] == [("result", [], None)]
    assert json.loads(json.dumps(write_sweep(root)["summary"])) == found["summary"], "again, from the runs alone"


@pytest.mark.slow
@FORKED
def test_a_killed_sweep_is_resumed_and_gives_the_table_of_an_uninterrupted_one(swept, whole_run, tmp_path):
    root, landmark = tmp_path / "killed", f"{POINTS[0]}/seed-43/round-1/strong/manifest.json"
    words = ["sweep", "demo", *WHOLE, "--grid", GRID, "--seeds", "2", "--quiet", "--take-from", whole_run[0]]
    assert killed_at(root / landmark, *words, "--output", root) == -signal.SIGKILL
    assert len(read_json(root / "sweep.json")["runs"]) < 4
    _, found = sweep(root, siblings=[whole_run[0]])
    scores = [[(row["point"], row["model"], row["by_seed"]) for row in one["summary"]] for one in (found, swept[2])]
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_parallel_runs_give_the_same_table_and_share_stages_as_well(swept, tmp_path):
    root = tmp_path / "parallel"
    _, found = sweep(root, seeds=1, jobs=2)
    alone = {(row["point"], row["model"]): row["by_seed"][:1] for row in swept[2]["summary"]}
    assert {(row["point"], row["model"]): row["by_seed"] for row in found["summary"]} == alone
    for stage in ("data", "entropy/base", "eval/base/arithmetic", *SHARED):
        runs = [root / point / "seed-42" for point in POINTS]
        taken = {run: "taken_from" in read_json(run / stage / "manifest.json") for run in runs}
        assert sorted(taken.values()) == [False, True], f"{stage} is computed once: the second run waits for the first"
        second = next(run for run in runs if taken[run])
        assert f"{stage}: taken over from" in (root / f"logs/{second.relative_to(root)}.log").read_text()


@pytest.mark.parametrize(
    "overrides, grids, words",
    [
        ([], ["joint.strong_wieght=0.1,0.2"], "Did you mean joint.strong_weight"),
        ([], ["joint.strong_weight=0.5,1.5"], "joint.strong_weight"),
        ([], ["lamda"], "Did you mean lambda"),
        (["joint.strong_weight=0.4"], ["lambda"], "joint.strong_weight is both in a grid and in your overrides"),
        (["eval.benchmarks=[]"], ["lambda"], "eval.benchmarks is empty"),
    ],
)
def test_a_mistake_is_reported_before_anything_runs(tmp_path, overrides, grids, words):
    with pytest.raises(UserError, match=words):
        sweep(tmp_path / "runs", *overrides, grids=grids, seeds=1)
    assert not (tmp_path / "runs").exists()


def test_a_recipe_that_is_valid_only_at_the_points_can_be_swept():
    axes = axes_of(["eval.temperature=0.6,1.0"])
    default, recipes = recipes_of("demo", ["eval.samples=4"], axes, points_of(axes))
    assert default is None and [one.eval.temperature for one in recipes.values()] == [0.6, 1.0]
    axes = axes_of(["joint.strong_weight=0.3,0.7"])
    with pytest.raises(UserError, match="temperature is 0"):
        recipes_of("demo", ["eval.samples=4"], axes, points_of(axes))


def test_a_sweep_does_not_use_the_directory_of_a_run(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match="is a run directory"):
        sweep(tmp_path, grids=["lambda"], seeds=1)
