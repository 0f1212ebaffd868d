"""The report of whole, partial, empty and hostile run directories."""

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_files import put, put_active, put_scores
from weakdriven.report import accuracy_rows, load_run, write_report
from weakdriven.report.charts import CURVE_POINTS
from weakdriven.report.costs import cost_words, selection_cost
from weakdriven.report.examples import BARS, SCATTER_POINTS, odds_bars
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
    rng, ids = start(run, examples, steps, recipe), [f"train-{i}" for i in range(examples)]
    entropy = {"base": [rng.gammavariate(3, 0.2) for _ in range(examples)]}
    entropy["sft"] = [value * rng.uniform(0.4, 1.15) for value in entropy["base"]]
    for second, (model, values) in enumerate(entropy.items(), 22):
        put_scores(run, model, ids, values)
        manifest(run, f"entropy/{model}", second, tokens_read=5000)
    draws = [rng.choice([0, 0, 1, 1, 2]) for _ in range(examples)]
    put_active(run, 1, ids, np.array(entropy["sft"]) / sum(entropy["sft"]), draws)
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
    assert {"items", "correct", "answers", "accuracy", "low", "high", "pass_at_k"} < set(rows[0])


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


@pytest.mark.parametrize("file", ["entropy/base/scores.parquet", "round-1/active/active.parquet"])
@pytest.mark.parametrize("share", [0, 0.5])
def test_a_torn_parquet_file_is_mentioned_and_the_page_still_stands(tmp_path: Path, file: str, share: float) -> None:
    finish(tmp_path)
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(whole[: int(share * len(whole))])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count(f"{file} cannot be read as Parquet") == 1
    assert page.count('<circle class="point') == (60 if "active" in file else 0)
    assert ("Sampling probability, round 1" in page) == ("active" not in file)
    assert "The draw, round 1" in page


def test_a_missing_parquet_file_leaves_out_its_chart(tmp_path: Path) -> None:
    finish(tmp_path)
    (tmp_path / "entropy/sft/scores.parquet").unlink()
    assert write_report(tmp_path).read_text(encoding="utf-8").count('<circle class="point') == 0


def test_entropies_without_a_draw_are_shown_as_not_drawn_yet(tmp_path: Path) -> None:
    finish(tmp_path)
    (tmp_path / "round-1/active/active.parquet").unlink()
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "no draw yet" in page and "draw not recorded" in page and page.count('<circle class="point') == 60


def test_files_of_different_examples_are_not_joined(tmp_path: Path) -> None:
    finish(tmp_path)
    ids = [f"other-{i}" for i in range(60)]
    put_active(tmp_path, 1, ids, [1 / 60] * 60, [1] * 60)
    data = load_run(tmp_path)
    assert data["problems"] == [
        "round-1/active: its examples are not those of the entropies; the chart leaves the draw out."
    ]
    assert len(data["rounds"][0]["points"]) == 60 and not data["rounds"][0]["drawn"]
    put_scores(tmp_path, "base", ids, [1.0] * 60)
    data = load_run(tmp_path)
    assert "the two models' entropies are of different examples" in data["problems"][0]
    assert data["rounds"][0]["points"] == []


def test_an_entropy_that_is_no_number_is_left_out_and_counted(tmp_path: Path) -> None:
    finish(tmp_path)
    put_scores(tmp_path, "base", [f"train-{i}" for i in range(60)], [None, float("nan"), *[1.0] * 58])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count('<circle class="point') == 58
    assert "58 examples; below" in page and "2 more lack an entropy" in page


def test_questions_are_read_only_for_points_that_are_drawn(tmp_path: Path) -> None:
    finish(tmp_path, examples=SCATTER_POINTS + 500)
    points = load_run(tmp_path)["rounds"][0]["points"]
    rows = {point["row"] for point in points}
    assert len(rows) == SCATTER_POINTS and all(point["question"] == f"What is {point['row']} + 2?" for point in points)
    lines = (tmp_path / "data/examples.jsonl").read_text().splitlines()
    put(tmp_path / "data/examples.jsonl", "\n".join(line if i in rows else "{torn" for i, line in enumerate(lines)))
    assert load_run(tmp_path)["problems"] == []
    put(tmp_path / "data/examples.jsonl", "\n".join(lines[:1000]))
    (problem,) = load_run(tmp_path)["problems"]
    missing = sum(row >= 1000 for row in rows)
    assert f"{missing:,} of 2,000 charted examples do not stand there in their place" in problem


def test_a_run_that_only_selects_shows_its_selection(tmp_path: Path) -> None:
    finish(tmp_path)
    write_plan(tmp_path, ["data", "sft", "entropy/base", "entropy/sft", "round-1/active"])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count('<circle class="point') == 60 and "The draw, round 1" in page


def test_bars_count_every_example_once_and_the_chosen_apart() -> None:
    bars = odds_bars(np.array([0.0, 0.1, 0.25, 0.65]), np.array([0, 0, 1, 1]))
    assert len(bars) == BARS and bars[-1]["to"] == pytest.approx(2.6)
    filled = [
        (round(bar["low"] * BARS / bars[-1]["high"]), bar["examples"], bar["chosen"]) for bar in bars if bar["examples"]
    ]
    # the top is the 99.5% quantile of 0, 0.4, 1, 2.6 (2.576), so a bar is 0.10733 wide
    assert filled == [(0, 1, 0), (3, 1, 0), (9, 1, 1), (23, 1, 1)]
    assert odds_bars(np.array([float("nan")]), np.array([0])) == []


def stage(name: str, seconds: float | None, status: str = "done", **counters: Any) -> dict[str, Any]:
    return {"name": name, "status": status, "manifest": {"wall_seconds": seconds, "counters": counters}}


COSTLY = [
    stage("data", 10),
    stage("sft", 100),
    stage("entropy/base", 20, tokens_read=50_000),
    stage("entropy/sft", 25),
    stage("round-1/active", 5),
    stage("round-1/strong", 90),
    stage("baselines/sft", 200),
    stage("eval/base/arithmetic", 1000),
]


def test_the_cost_of_choosing_the_data_by_hand() -> None:
    cost = selection_cost(COSTLY)
    assert cost is not None
    assert (cost["seconds"], cost["training_seconds"], cost["share"]) == (50, 250, 0.2)
    assert (cost["control_seconds"], cost["control_share"]) == (200, 0.25)
    assert [(one["model"], one["tokens_per_second"]) for one in cost["scans"]] == [("base", 2500), ("sft", None)]
    assert cost_words(cost) == (
        "Choosing the data (WD-DS: the models' entropies and the draw) took 50.0 s, 20.0% of the 4 min 10 s that this "
        "run spent on all but evaluation and baselines. The SFT control took 3 min 20 s in all; WD-DS is 25.0% of that."
    )


def test_entropies_of_another_run_cost_nothing_here() -> None:
    reused = stage("entropy/base", 20, tokens_read=50_000, reused_from="runs/other")
    cost = selection_cost([reused if one["name"] == "entropy/base" else one for one in COSTLY])
    assert cost is not None
    assert (cost["seconds"], cost["training_seconds"]) == (30, 230)
    assert [(one["reused_from"], one["tokens_per_second"]) for one in cost["scans"]] == [
        ("runs/other", None),
        (None, None),
    ]
    assert cost_words(cost).endswith("Entropies taken over from another run are not counted.")


def test_the_cost_of_a_run_under_way_is_told_so_far() -> None:
    waiting = [stage(one["name"], None, "not run yet") if one["name"] == "round-1/strong" else one for one in COSTLY]
    cost = selection_cost(waiting[:6])
    assert cost is not None and cost["control_share"] is None
    assert "took 50.0 s so far, 31.2% of the 2 min 40 s that this run spent so far" in cost_words(cost)


def test_stages_of_an_older_recipe_cost_nothing_and_no_selection_has_no_cost() -> None:
    older = [one | {"status": "from an older recipe"} if "entropy" in one["name"] else one for one in COSTLY]
    cost = selection_cost(older)
    assert cost is not None and (cost["seconds"], cost["training_seconds"], cost["scans"]) == (5, 205, [])
    assert selection_cost(COSTLY[:2]) is None and selection_cost([]) is None


def test_the_page_tells_what_choosing_the_data_cost(tmp_path: Path) -> None:
    finish(tmp_path)
    manifest(tmp_path, "entropy/sft", 23, reused_from="runs/other")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    # 25.5 s of entropy/base and 27.5 s of the draw, beside 4.5 s of data, 23.5 s of SFT, 43.5 s of joint training
    assert "took 53.0 s, 42.6% of the 2 min 04 s" in page and "WD-DS is 119.1% of that" in page
    assert "<td>196</td>" in page and "taken over from runs/other" in page
    start(tmp_path / "begun")
    assert "What choosing the data cost" not in write_report(tmp_path / "begun").read_text(encoding="utf-8")


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
    heavy = "{'torch', 'transformers', 'datasets', 'pydantic'}"
    code = f"import sys, weakdriven.report; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_shown_answers_hold_as_many_wins_as_losses(tmp_path: Path) -> None:
    finish(tmp_path)
    items = sample_items("arithmetic", load_run(tmp_path))
    pairs = [(item["answers"]["round-1"]["correct"], item["answers"]["baseline-sft"]["correct"]) for item in items]
    assert pairs.count((True, False)) == pairs.count((False, True)) == 2
