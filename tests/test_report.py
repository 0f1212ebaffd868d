"""The report of whole, partial, empty and hostile run directories."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weakdriven.report import accuracy_rows, load_run, write_report
from weakdriven.report.charts import CURVE_POINTS, SCATTER_POINTS
from weakdriven.report.page import sample_items
from weakdriven.rundir import PLAN_FILE, write_json

EVIL = "<script>alert(1)</script>"
RECIPE = """name: demo
method: wmss
"""
PLAN = ["data", "sft", "entropy/base", "entropy/sft", "round-1/active", "round-1/strong", "baselines/sft"]
PLAN += [f"eval/{model}/arithmetic" for model in ("base", "sft", "round-1", "baseline-sft")]


def write_plan(run: Path, names: list[str], **keys: str) -> None:
    write_json(run / PLAN_FILE, {name: keys.get(name, "ab12") for name in names})


def put(path: Path, value: Any) -> None:
    """A list becomes JSON lines, a text stays as it is, the rest becomes JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in value) if isinstance(value, list) else json.dumps(value)
    path.write_text(value if isinstance(value, str) else lines, encoding="utf-8")


def manifest(run: Path, stage: str, second: int, **counters: Any) -> None:
    versions = {"torch": "2.9.0", "transformers": "4.57.1"}
    times = {"wall_seconds": 3.5 + second, "finished": f"2026-11-15T03:00:{second:02}+00:00"}
    rest = {"peak_memory_bytes": 812345678, "resumed": 0, "seed": 42, "counters": counters}
    put(run / stage / "manifest.json", {"stage": stage, "key": "ab12", "versions": versions, **times, **rest})


def start(run: Path, examples: int = 60, steps: int = 40, recipe: str = "demo") -> random.Random:
    """Data and phase 1 only."""
    rng = random.Random(7)
    put(run / "run.json", {"recipe": recipe, "weakdriven": "0.1.0", "created": "2026-11-15T03:00:00+00:00"})
    put(run / "recipe.yaml", RECIPE)
    write_plan(run, PLAN)
    rows = [{"id": f"train-{i}", "prompt": [{"role": "user", "content": f"What is {i} + 2?"}]} for i in range(examples)]
    put(run / "data/examples.jsonl", [{**row, "completion": "4", "gold": "4", "meta": {}} for row in rows])
    manifest(run, "data", 1, examples=examples)
    losses = [2 * 0.95**i + 0.3 + rng.random() / 10 for i in range(steps)]
    put(run / "sft/metrics.jsonl", [{"step": i, "loss": loss, "learning_rate": 1e-3} for i, loss in enumerate(losses)])
    manifest(run, "sft", 20, steps=steps, rows=16 * steps)
    return rng


def finish(run: Path, examples: int = 60, steps: int = 40, items: int = 80, recipe: str = "demo") -> None:
    """Everything that a run with one round and a control leaves behind."""
    rng = start(run, examples, steps, recipe)
    entropy = {"base": [rng.gammavariate(3, 0.2) for _ in range(examples)]}
    entropy["sft"] = [value * rng.uniform(0.4, 1.15) for value in entropy["base"]]
    for second, (model, values) in enumerate(entropy.items(), 22):
        rows = [{"id": f"train-{i}", "tokens": 20, "entropy": value, "nll": value} for i, value in enumerate(values)]
        put(run / f"entropy/{model}/scores.jsonl", rows)
        manifest(run, f"entropy/{model}", second)
    draws = [rng.choice([0, 0, 1, 1, 2]) for _ in range(examples)]
    rows = [{"id": f"train-{i}", "probability": 1 / examples, "draws": count} for i, count in enumerate(draws)]
    put(run / "round-1/active/active.jsonl", rows)
    shares = {"consolidation": 0.04, "difficulty": 0.95, "repair": 0.01}
    counts = {"examples": examples, "active": sum(map(bool, draws)), "falling": 48, "equal": 0, "rising": 12}
    odds = {"expected_unique": 0.61, "realised_unique": 0.6, "p_cv": 0.31, "zero_weight": 0, "formula": "paper"}
    manifest(run, "round-1/active", 24, **counts, **odds, term_shares=shares)
    losses = [0.5 * 0.97**i + 0.1 + rng.random() / 20 for i in range(steps)]
    rows = [{"step": i, "loss": x, "strong_loss": x * 0.8, "weak_loss": x * 1.4} for i, x in enumerate(losses)]
    put(run / "round-1/strong/metrics.jsonl", rows)
    manifest(run, "round-1/strong", 40, steps=steps, rows=10 * steps)
    put(run / "baselines/sft/metrics.jsonl", [{"step": 2 * i, "loss": x * 1.2} for i, x in enumerate(losses)])
    manifest(run, "baselines/sft", 41, steps=2 * steps, rows=32 * steps)
    for second, (model, chance) in enumerate(
        [("base", 0.1), ("sft", 0.5), ("baseline-sft", 0.55), ("round-1", 0.6)], 42
    ):
        right = [rng.random() < chance for _ in range(items)]
        put(run / f"eval/{model}/arithmetic/scores.json", scores(right))
        rows = [
            {"id": f"test-{i}", "prompt": f"What is {i} + 3?", "gold": i + 3, "correct": x} for i, x in enumerate(right)
        ]
        more = {"text": f"We add 3. {EVIL} The answer is 7.", "answer": "7", "reason": "other number", "tokens": 12}
        put(run / f"eval/{model}/arithmetic/samples.jsonl", [{**row, **more, "finish": "stop"} for row in rows])
        manifest(run, f"eval/{model}/arithmetic", second)


def scores(right: list[bool], version: int = 1) -> dict[str, Any]:
    accuracy = sum(right) / len(right)
    levels = {str(k): {"items": len(part), "correct": sum(part)} for k in (2, 3) if (part := right[k::2])}
    base = {"benchmark": "arithmetic", "version": version, "items": len(right), "correct": sum(right)}
    return {
        **base,
        "accuracy": accuracy,
        "interval": [accuracy - 0.05, accuracy + 0.05],
        "unanswered": 0,
        "levels": levels,
    }


def test_a_finished_run_becomes_one_page_that_asks_for_nothing_else(tmp_path: Path) -> None:
    finish(tmp_path)
    path = write_report(tmp_path)
    page = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html"
    assert "http" not in page and "<script" not in page and "<link" not in page and "url(" not in page
    assert "not run yet" not in page.lower()
    assert [file.name for file in tmp_path.glob("*report*")] == ["report.html"]
    assert "built-in method" not in page


def test_all_models_stand_in_the_accuracy_table_under_their_human_names(tmp_path: Path) -> None:
    finish(tmp_path)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    for name in ("M0, base model", "M1, after phase-1 SFT", "SFT, same epochs", "WMSS, round 1"):
        assert f"<td>{name}</td>" in page
    rows = accuracy_rows(tmp_path)
    assert [row["model"] for row in rows] == ["base", "sft", "baseline-sft", "round-1"]
    assert set(rows[0]) == {"model", "name", "benchmark", "items", "correct", "accuracy", "low", "high"}


def test_the_scatter_has_one_point_per_example(tmp_path: Path) -> None:
    finish(tmp_path, examples=83)
    assert write_report(tmp_path).read_text(encoding="utf-8").count('<circle class="point') == 83


def test_long_runs_are_thinned_and_the_page_says_so(tmp_path: Path) -> None:
    finish(tmp_path, examples=SCATTER_POINTS + 5, steps=2 * CURVE_POINTS + 1)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count('<circle class="point') == SCATTER_POINTS
    assert "A random 2,000 of them are drawn" in page and "one of every 3 logged steps is drawn" in page
    curves = re.findall(r'class="curve [^"]*" d="([^"]*)"', page)
    assert len(curves) == 5 and all(1 + curve.count("L") <= CURVE_POINTS for curve in curves)


def test_text_from_a_run_is_never_markup(tmp_path: Path) -> None:
    finish(tmp_path, recipe=EVIL)
    put(tmp_path / "recipe.yaml", RECIPE + f"note: {EVIL}\n")
    evil_row = {"id": "train-0", "prompt": [{"role": "user", "content": EVIL}], "completion": "4", "gold": "4"}
    put(tmp_path / "data/examples.jsonl", [evil_row])
    manifest(tmp_path, "data", 1, **{EVIL: EVIL, "more": {EVIL: [EVIL]}})
    (tmp_path / "eval/sft/arithmetic").rename(tmp_path / "eval/sft/<script>x")
    write_plan(tmp_path, [*PLAN, "eval/sft/<script>x", EVIL])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 6


def test_an_unfinished_run_names_what_is_missing(tmp_path: Path) -> None:
    start(tmp_path)
    page = write_report(tmp_path).read_text(encoding="utf-8").replace("<wbr>", "")
    assert "Nothing has been evaluated yet" in page
    for stage in ("entropy/base", "entropy/sft", "round-1/active", "round-1/strong", "baselines/sft"):
        assert re.search(rf"<td>{stage}</td>\s*<td[^>]*>not run yet", page)
    assert "Not run yet: entropy/base, entropy/sft, round-1/active." in page
    assert 'class="curve green"' in page


def test_a_stage_under_way_is_unfinished_and_its_work_folder_is_no_stage(tmp_path: Path) -> None:
    start(tmp_path)
    manifest(tmp_path, ".work/entropy--base/out", 30)
    stages = {stage["name"]: stage["status"] for stage in load_run(tmp_path)["stages"]}
    assert stages["entropy/base"] == "unfinished" and stages["entropy/sft"] == "not run yet"
    assert not [name for name in stages if "work" in name]


def test_a_directory_with_only_run_json_renders(tmp_path: Path) -> None:
    put(tmp_path / "run.json", {"recipe": "demo"})
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<h1>demo</h1>" in page and "Nothing has been evaluated yet" in page


def test_numbers_that_are_none_are_gaps(tmp_path: Path) -> None:
    start(tmp_path)
    rows = [{"step": i, "loss": value} for i, value in enumerate([1.0, float("nan"), 0.5, None, 0.25, 0.2])]
    put(tmp_path / "sft/metrics.jsonl", [*rows, {"step": 5, "train_runtime": 3.0}])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    (curve,) = re.findall(r'class="curve [^"]*" d="([^"]*)"', page)
    assert curve.count("M") == 3 and curve.count("L") == 1
    assert "nan" not in curve and "not numbers: 2" in page


def test_a_torn_last_line_is_mentioned_and_the_rest_survives(tmp_path: Path) -> None:
    start(tmp_path)
    with (tmp_path / "sft/metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "lo')
    data = load_run(tmp_path)
    assert len(data["metrics"]["sft"]) == 40
    assert "sft/metrics.jsonl: 1 unreadable" in data["problems"][0]


@pytest.mark.parametrize(
    "wmss, control, words",
    [
        (
            70,
            50,
            "20.0 points more than SFT (same epochs), 50.0% (95% interval 45.0 to 55.0); the intervals do not overlap.",
        ),
        (50, 53, "3.0 points less than SFT (same epochs), 53.0% (95% interval 48.0 to 58.0); the intervals overlap."),
    ],
)
def test_the_verdict_says_no_more_than_the_intervals(tmp_path: Path, wmss: int, control: int, words: str) -> None:
    start(tmp_path)
    for model, correct in (("round-1", wmss), ("baseline-sft", control)):
        put(tmp_path / f"eval/{model}/arithmetic/scores.json", scores([True] * correct + [False] * (100 - correct)))
        manifest(tmp_path, f"eval/{model}/arithmetic", 50)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert f"On arithmetic, WMSS (round 1) scores {wmss}.0%" in page and words in page


def test_two_versions_of_a_benchmark_are_not_compared(tmp_path: Path) -> None:
    start(tmp_path)
    for model, version in (("round-1", 1), ("baseline-sft", 2)):
        put(tmp_path / f"eval/{model}/arithmetic/scores.json", scores([True, False], version=version))
        manifest(tmp_path, f"eval/{model}/arithmetic", 50)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "not comparable" in page and "overlap" not in page


def test_a_second_round_pairs_the_two_models_before_it(tmp_path: Path) -> None:
    finish(tmp_path)
    second = ["entropy/round-1", "round-2/active", "round-2/strong", "eval/round-2/arithmetic"]
    write_plan(tmp_path, [*PLAN, *second])
    data = load_run(tmp_path)
    assert [(one["weak"], one["strong"]) for one in data["rounds"]] == [("base", "sft"), ("sft", "round-1")]
    waiting = [stage["name"] for stage in data["stages"] if stage["status"] == "not run yet"]
    assert waiting == second


def test_what_an_older_recipe_left_stands_in_the_stage_table_and_nowhere_else(tmp_path: Path) -> None:
    finish(tmp_path)
    left = ["entropy/sft", "round-1/active", "round-1/strong", "eval/round-1/arithmetic"]
    write_plan(tmp_path, [name for name in PLAN if name not in left])
    data = load_run(tmp_path)
    assert [one["name"] for one in data["stages"] if one["status"] == "from an older recipe"] == left
    assert data["rounds"] == []
    assert [row["model"] for row in accuracy_rows(tmp_path)] == ["base", "sft", "baseline-sft"]
    page = write_report(tmp_path).read_text(encoding="utf-8").replace("<wbr>", "")
    assert "WMSS, round 1" not in page and "WMSS (round 1)" not in page and 'class="point' not in page
    assert "This run trains no WMSS model" in page and "in 7 finished stages" in page
    assert all(page.count(name) == 1 for name in left)


def test_a_result_of_older_settings_is_out_of_date_and_counts_nowhere(tmp_path: Path) -> None:
    finish(tmp_path)
    write_plan(tmp_path, PLAN, sft="cd34", **{"eval/round-1/arithmetic": "cd34"})
    data = load_run(tmp_path)
    stale = [one["name"] for one in data["stages"] if one["status"] == "out of date"]
    assert stale == ["sft", "eval/round-1/arithmetic"]
    assert [row["model"] for row in accuracy_rows(tmp_path)] == ["base", "sft", "baseline-sft"]
    assert data["metrics"]["sft"] == []
    page = write_report(tmp_path).read_text(encoding="utf-8").replace("<wbr>", "")
    assert "No WMSS model has been evaluated yet" in page and "<td>WMSS, round 1</td>" not in page
    assert 'class="curve green"' not in page and 'class="curve orange dashed"' in page
    for stage in stale:
        assert re.search(rf"<td>{stage}</td>\s*<td[^>]*>out of date", page)


def test_scores_without_a_manifest_count_nowhere(tmp_path: Path) -> None:
    finish(tmp_path)
    (tmp_path / "eval/round-1/arithmetic/manifest.json").unlink()
    assert [row["model"] for row in accuracy_rows(tmp_path)] == ["base", "sft", "baseline-sft"]
    assert "No WMSS model has been evaluated yet" in write_report(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [None, "", "[", "{}", "[]", "[1]", '["data", "sft"]'])
def test_without_a_readable_plan_the_stages_on_disk_count(tmp_path: Path, text: str | None) -> None:
    finish(tmp_path)
    (tmp_path / PLAN_FILE).unlink()
    if text is not None:
        put(tmp_path / PLAN_FILE, text)
    data = load_run(tmp_path)
    assert {one["name"]: one["status"] for one in data["stages"]} == dict.fromkeys(PLAN, "done")
    assert [one["number"] for one in data["rounds"]] == [1] and len(data["accuracy"]) == 4
    assert len(data["problems"]) == (text is not None)


def test_the_page_says_how_much_each_side_was_trained(tmp_path: Path) -> None:
    finish(tmp_path)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    told = "WMSS (round 1) on 1,040 rows, 80 steps; SFT (same epochs) on 1,280 rows, 80 steps."
    assert f"Trained in all: {told}" in page
    (tmp_path / "sft/manifest.json").unlink()
    assert "Trained in all" not in write_report(tmp_path).read_text(encoding="utf-8")


def test_half_a_surrogate_pair_does_not_stop_the_page(tmp_path: Path) -> None:
    start(tmp_path, recipe="demo \ud83d")
    assert r"<h1>demo \ud83d</h1>" in write_report(tmp_path).read_text(encoding="utf-8")


def test_the_report_needs_no_heavy_library() -> None:
    code = "import sys, weakdriven.report; print({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_shown_answers_hold_as_many_wins_as_losses(tmp_path: Path) -> None:
    finish(tmp_path)
    items = sample_items("arithmetic", load_run(tmp_path))
    pairs = [(item["answers"]["round-1"]["correct"], item["answers"]["baseline-sft"]["correct"]) for item in items]
    assert pairs.count((True, False)) == pairs.count((False, True)) == 2
