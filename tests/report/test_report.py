"""The report of whole, partial, empty and hostile run directories."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from report_runs import PLAN, finish, manifest, own_part, points, scores, specs, start, write_plan
from run_files import put, put_active, put_scores
from weakdriven.report import accuracy_rows, load_run, write_report
from weakdriven.report.plots import CURVE_POINTS
from weakdriven.report.read import BARS, SCATTER_POINTS, odds_bars
from weakdriven.report.run.answers import sample_items
from weakdriven.report.run.costs import cost_words, selection_cost
from weakdriven.report.uniformity import uniformity
from weakdriven.runs.directory import PLAN_FILE, work_folder
from weakdriven.runs.files import read_json, write_json


@pytest.fixture
def run(tmp_path: Path) -> Path:
    finish(tmp_path)
    return tmp_path


def test_a_finished_run_becomes_one_page_that_asks_for_nothing_else(tmp_path: Path) -> None:
    finish(tmp_path)
    path = write_report(tmp_path)
    page = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html"
    ours = own_part(page)
    assert "http" not in ours and "<link" not in ours and "url(" not in ours and "src=" not in ours
    assert page.count("<script") == 3 and path.stat().st_size < 6e6
    assert "not run yet" not in page.lower()
    assert [file.name for file in tmp_path.glob("*report*")] == ["report.html"]
    assert "built-in method" not in page


def test_all_models_are_in_the_accuracy_table_under_their_human_names(run: Path) -> None:
    page = write_report(run).read_text(encoding="utf-8")
    for name in ("M0, base model", "M1, after phase-1 SFT", "SFT, same epochs", "WMSS, round 1"):
        assert f"<td>{name}</td>" in page
    rows = accuracy_rows(run)
    assert [row["model"] for row in rows] == ["base", "sft", "baseline-sft", "round-1"]
    assert {"items", "correct", "answers", "accuracy", "low", "high", "pass_at_k"} < set(rows[0])


def test_the_scatter_has_one_point_per_example(tmp_path: Path) -> None:
    finish(tmp_path, examples=83)
    assert len(points(write_report(tmp_path).read_text(encoding="utf-8"))) == 83


def test_long_runs_are_thinned_and_the_page_says_so(tmp_path: Path) -> None:
    finish(tmp_path, examples=SCATTER_POINTS + 5, steps=3 * CURVE_POINTS)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert len(points(page)) == SCATTER_POINTS and "A random sample of 2,000 is shown" in page
    assert "mean of 3 logged values (mixed), 3 logged values (strong alone), 3 logged values (weak alone)" in page
    rows = [row for row in specs(page)["loss-round-1"]["data"]["values"] if row["name"] == "mixed"]
    logged = [row["loss"] for row in load_run(tmp_path)["metrics"]["round-1/strong"]]
    assert len(rows) == len(logged) / 3 <= CURVE_POINTS
    assert rows[1] == pytest.approx(
        {**rows[1], "x": 4, "y": sum(logged[3:6]) / 3, "low": min(logged[3:6]), "high": max(logged[3:6])}
    )


def test_an_unfinished_run_names_what_is_missing(tmp_path: Path) -> None:
    start(tmp_path)
    page = write_report(tmp_path).read_text(encoding="utf-8").replace("<wbr>", "")
    assert "Nothing has been evaluated yet" in page
    for stage in ("entropy/base", "entropy/sft", "round-1/active", "round-1/strong", "baselines/sft"):
        assert re.search(rf"<td>{stage}</td>\s*<td[^>]*>not run yet", page)
    assert "Not run yet: round-1/strong, baselines/sft." in page
    resume = f"weakdriven run {tmp_path}/recipe.yaml --output {tmp_path}"
    for section in ("accuracy", "selection"):
        assert re.search(rf'<p class="absent" id="{section}">.*<code>{re.escape(resume)}</code>', page)
    assert f"<code>weakdriven diagnose {tmp_path} " in page and '<h2 id="logits">' not in page
    assert list(specs(page)) == ["loss-sft", "stages-time", "stages-memory"]


def test_a_stage_in_progress_is_unfinished_and_its_work_folder_is_no_stage(tmp_path: Path) -> None:
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
    rows = specs(page)["loss-sft"]["data"]["values"]
    assert [(row["x"], row["y"]) for row in rows] == [(0, 1.0), (2, 0.5), (4, 0.25), (5, 0.2)]
    assert rows[0]["piece"] != rows[1]["piece"] != rows[2]["piece"] == rows[3]["piece"]
    assert "2 logged values are not numbers" in page


def test_a_torn_last_line_is_mentioned_and_the_rest_survives(tmp_path: Path) -> None:
    start(tmp_path)
    with (tmp_path / "sft/metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "lo')
    data = load_run(tmp_path)
    assert len(data["metrics"]["sft"]) == 40
    assert "sft/metrics.jsonl: 1 unreadable" in data["problems"][0]


@pytest.mark.parametrize("file", ["entropy/base/scores.parquet", "round-1/active/active.parquet"])
@pytest.mark.parametrize("share", [0, 0.5])
def test_a_torn_parquet_file_is_mentioned_and_the_page_still_stands(run: Path, file: str, share: float) -> None:
    whole = (run / file).read_bytes()
    (run / file).write_bytes(whole[: int(share * len(whole))])
    page = write_report(run).read_text(encoding="utf-8")
    assert page.count(f"{file} cannot be read as Parquet") == 1
    assert len(points(page)) == (60 if "active" in file else 0)
    assert ("odds-round-1" in specs(page)) == ("active" not in file)
    assert "The draw, round 1" in page


def test_a_missing_parquet_file_leaves_out_its_chart(run: Path) -> None:
    (run / "entropy/sft/scores.parquet").unlink()
    assert points(write_report(run).read_text(encoding="utf-8")) == []


def test_entropies_without_a_draw_are_shown_as_not_drawn_yet(run: Path) -> None:
    (run / "round-1/active/active.parquet").unlink()
    page = write_report(run).read_text(encoding="utf-8")
    assert "no draw yet" in page and "draw not recorded" in page and len(points(page)) == 60


def test_files_of_different_examples_are_not_joined(run: Path) -> None:
    ids = [f"other-{i}" for i in range(60)]
    put_active(run, 1, ids, [1 / 60] * 60, [1] * 60)
    data = load_run(run)
    problem = "round-1/active: draw and entropies are of different examples, so no chart joins them."
    assert data["problems"] == [problem] and data["rounds"][0]["points"] == []
    put_scores(run, "base", ids, [1.0] * 60)
    data = load_run(run)
    assert data["problems"] == [problem] and data["rounds"][0]["points"] == []


def test_an_entropy_that_is_no_number_is_left_out_and_counted(run: Path) -> None:
    put_scores(run, "base", [f"train-{i}" for i in range(60)], [None, float("nan"), *[1.0] * 58])
    page = write_report(run).read_text(encoding="utf-8")
    assert len(points(page)) == 58
    assert "58 examples; below" in page and "2 more are left out" in page


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
    assert f"{missing:,} of 2,000 charted examples were not found" in problem


def test_a_run_that_only_selects_shows_its_selection(run: Path) -> None:
    write_plan(run, ["data", "sft", "entropy/base", "entropy/sft", "round-1/active"])
    page = write_report(run).read_text(encoding="utf-8")
    assert len(points(page)) == 60 and "The draw, round 1" in page


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
    words = cost_words(cost)
    assert "took 50.0 s, 20.0% of the 4 min 10 s" in words
    assert "SFT control took 3 min 20 s; WD-DS took 25.0% of that" in words


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


def test_the_cost_of_a_run_in_progress_is_so_far() -> None:
    waiting = [stage(one["name"], None, "not run yet") if one["name"] == "round-1/strong" else one for one in COSTLY]
    cost = selection_cost(waiting[:6])
    assert cost is not None and cost["control_share"] is None
    assert "took 50.0 s so far, 31.2% of the 2 min 40 s" in cost_words(cost)


def test_stages_of_an_older_recipe_cost_nothing_and_no_selection_has_no_cost() -> None:
    older = [one | {"status": "from an older recipe"} if "entropy" in one["name"] else one for one in COSTLY]
    cost = selection_cost(older)
    assert cost is not None and (cost["seconds"], cost["training_seconds"], cost["scans"]) == (5, 205, [])
    assert selection_cost(COSTLY[:2]) is None and selection_cost([]) is None


def test_the_page_shows_the_cost_of_data_selection(run: Path) -> None:
    manifest(run, "entropy/sft", 23, reused_from="runs/other")
    page = write_report(run).read_text(encoding="utf-8")
    # 25.5 s of entropy/base and 27.5 s of the draw, beside 4.5 s of data, 23.5 s of SFT, 43.5 s of joint training
    assert "took 53.0 s, 42.6% of the 2 min 04 s" in page and "WD-DS took 119.1% of that" in page
    assert "<td>196</td>" in page and "taken over from runs/other" in page
    start(run / "begun")
    assert "Cost of data selection" not in write_report(run / "begun").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "wmss, control, headline",
    [
        (70, 50, "WMSS (round 1) is significantly better than SFT (same epochs): +20.0 points on "),
        (40, 70, "WMSS (round 1) is significantly worse than SFT (same epochs): -30.0 points on "),
        (50, 53, "No significant difference between WMSS (round 1) and SFT (same epochs): -3.0 points on "),
    ],
)
def test_the_verdict_says_no_more_than_the_paired_test(tmp_path: Path, wmss: int, control: int, headline: str) -> None:
    start(tmp_path)
    for model, correct in (("round-1", wmss), ("baseline-sft", control)):
        # other items are right and wrong under each, so that the difference of three rests on 47 pairs
        right = [(i * 37 + (0 if model == "round-1" else 50)) % 100 < correct for i in range(100)]
        put(tmp_path / f"eval/{model}/arithmetic/scores.json", scores(right))
        rows = [{"id": f"test-{i}", "correct": one} for i, one in enumerate(right)]
        put(tmp_path / f"eval/{model}/arithmetic/samples.jsonl", rows)
        manifest(tmp_path, f"eval/{model}/arithmetic", 50)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert headline in page and f"On arithmetic, WMSS (round 1) scores {wmss}.0%" in page


def test_several_benchmarks_are_judged_one_by_one_and_on_average(run: Path) -> None:
    for model in ("round-1", "baseline-sft"):
        for file in ("scores.json", "samples.jsonl", "manifest.json"):
            text = (run / f"eval/{model}/arithmetic/{file}").read_text()
            put(run / f"eval/{model}/gsm8k/{file}", text)
    write_plan(run, [*PLAN, "eval/round-1/gsm8k", "eval/baseline-sft/gsm8k"])
    page = write_report(run).read_text(encoding="utf-8")
    assert "on average over 2 benchmarks, 95% interval" in page
    for benchmark in ("arithmetic", "gsm8k"):
        assert re.search(rf"<p class=\"more\">On {benchmark}, WMSS .*: [+-]\d+\.\d points", page)


def test_two_versions_of_a_benchmark_are_not_compared(tmp_path: Path) -> None:
    start(tmp_path)
    for model, version in (("round-1", 1), ("baseline-sft", 2)):
        put(tmp_path / f"eval/{model}/arithmetic/scores.json", scores([True, False], version=version))
        put(tmp_path / f"eval/{model}/arithmetic/samples.jsonl", [{"id": "a", "correct": True}])
        manifest(tmp_path, f"eval/{model}/arithmetic", 50)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "not comparable" in page and "difference" not in own_part(page)


def test_a_second_round_pairs_the_two_models_before_it(tmp_path: Path) -> None:
    finish(tmp_path)
    second = ["entropy/round-1", "round-2/active", "round-2/strong", "eval/round-2/arithmetic"]
    write_plan(tmp_path, [*PLAN, *second])
    data = load_run(tmp_path)
    assert [(one["weak"], one["strong"]) for one in data["rounds"]] == [("base", "sft"), ("sft", "round-1")]
    waiting = [stage["name"] for stage in data["stages"] if stage["status"] == "not run yet"]
    assert waiting == second


def test_stages_of_an_older_recipe_are_in_the_stage_table_and_nowhere_else(tmp_path: Path) -> None:
    finish(tmp_path)
    left = ["entropy/sft", "round-1/active", "round-1/strong", "eval/round-1/arithmetic"]
    write_plan(tmp_path, [name for name in PLAN if name not in left])
    data = load_run(tmp_path)
    assert [one["name"] for one in data["stages"] if one["status"] == "from an older recipe"] == left
    assert data["rounds"] == []
    assert [row["model"] for row in accuracy_rows(tmp_path)] == ["base", "sft", "baseline-sft"]
    page = write_report(tmp_path).read_text(encoding="utf-8").replace("<wbr>", "")
    assert "WMSS, round 1" not in page and "WMSS (round 1)" not in page and points(page) == []
    assert "This run trains no WMSS model" in page and "in 7 finished stages" in page
    assert all(own_part(page).count(name) == 1 for name in left)


def test_a_result_of_older_settings_is_out_of_date_and_counts_nowhere(run: Path) -> None:
    write_plan(run, PLAN, sft="cd34", **{"eval/round-1/arithmetic": "cd34"})
    data = load_run(run)
    stale = [one["name"] for one in data["stages"] if one["status"] == "out of date"]
    assert stale == ["sft", "eval/round-1/arithmetic"]
    assert [row["model"] for row in accuracy_rows(run)] == ["base", "sft", "baseline-sft"]
    assert "sft" not in data["metrics"]
    page = write_report(run).read_text(encoding="utf-8").replace("<wbr>", "")
    assert "No WMSS model has been evaluated yet" in page and "<td>WMSS, round 1</td>" not in page
    assert {row["name"] for row in specs(page)["loss-sft"]["data"]["values"]} == {"SFT, same epochs"}
    for stage in stale:
        assert re.search(rf"<td>{stage}</td>\s*<td[^>]*>out of date", page)


def test_scores_without_a_manifest_count_nowhere(run: Path) -> None:
    (run / "eval/round-1/arithmetic/manifest.json").unlink()
    assert [row["model"] for row in accuracy_rows(run)] == ["base", "sft", "baseline-sft"]
    assert "No WMSS model has been evaluated yet" in write_report(run).read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [None, "", "[", "{}", "[]", "[1]", '["data", "sft"]'])
def test_without_a_readable_plan_the_stages_on_disk_count(run: Path, text: str | None) -> None:
    (run / PLAN_FILE).unlink()
    if text is not None:
        put(run / PLAN_FILE, text)
    data = load_run(run)
    assert {one["name"]: one["status"] for one in data["stages"]} == dict.fromkeys(PLAN, "done")
    assert [one["number"] for one in data["rounds"]] == [1] and len(data["accuracy"]) == 4
    assert len(data["problems"]) == (text is not None)


def test_the_page_says_how_much_each_side_was_trained(run: Path) -> None:
    page = write_report(run).read_text(encoding="utf-8")
    words = "WMSS (round 1) on 1,040 examples, 80 steps; SFT (same epochs) on 1,280 examples, 80 steps."
    assert f"Total training: {words}" in page
    (run / "sft/manifest.json").unlink()
    assert "Total training" not in write_report(run).read_text(encoding="utf-8")


def test_what_was_taken_over_from_another_run_is_marked_and_not_counted(run: Path) -> None:
    before = write_report(run).read_text(encoding="utf-8")
    path = run / "sft/manifest.json"
    write_json(path, read_json(path) | {"taken_from": "../other/sft"})
    page = write_report(run).read_text(encoding="utf-8")
    assert "done, taken over" in page and "done, taken over" not in before
    assert "sft" in {row["stage"] for row in specs(before)["stages-time"]["data"]["values"]}
    assert "sft" not in {row["stage"] for row in specs(page)["stages-time"]["data"]["values"]}


def test_a_training_in_progress_is_drawn_also_where_an_older_result_is_still_there(run: Path) -> None:
    write_plan(run, PLAN, sft="cd34")
    put(work_folder(run, "sft") / "work" / "metrics.jsonl", [{"step": 1, "loss": 9.5}, {"step": 2, "loss": 9.25}])
    page = write_report(run).read_text(encoding="utf-8")
    rows = [row for row in specs(page)["loss-sft"]["data"]["values"] if row["name"] == "M1, after phase-1 SFT"]
    assert [row["y"] for row in rows] == [9.5, 9.25]


def test_missing_entropies_are_not_called_no_selection(run: Path) -> None:
    (run / "entropy/base/scores.parquet").unlink()
    page = write_report(run).read_text(encoding="utf-8")
    assert "selection is off" not in page and "Round 1: not run yet" in page
    write_plan(run, [name for name in PLAN if name not in ("entropy/base", "entropy/sft", "round-1/active")])
    assert "selection is off: rounds train on every example" in write_report(run).read_text(encoding="utf-8")


def test_answers_that_are_gone_are_not_called_other_items(run: Path) -> None:
    (run / "eval/round-1/arithmetic/samples.jsonl").unlink()
    assert "or samples are missing" in write_report(run).read_text(encoding="utf-8")


def test_a_diagnosis_of_another_version_is_mentioned_and_left_out(run: Path) -> None:
    for name in ("logits", "gradients", "drift"):
        put(run / f"diagnostics/{name}.json", {"facts": {"version": 0, "round": 1}, "pairs": {}, "models": []})
    page = write_report(run).read_text(encoding="utf-8")
    assert "diagnostics is incomplete or was written by another version; run weakdriven diagnose again." in page


def test_half_a_surrogate_pair_does_not_stop_the_page(tmp_path: Path) -> None:
    start(tmp_path, recipe="demo \ud83d")
    assert r"<h1>demo \ud83d</h1>" in write_report(tmp_path).read_text(encoding="utf-8")


def test_the_report_needs_no_heavy_library() -> None:
    heavy = "{'torch', 'transformers', 'datasets', 'pydantic'}"
    code = f"import sys, weakdriven.report, weakdriven.report.selection_explained; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_shown_answers_hold_as_many_wins_as_losses(run: Path) -> None:
    items = sample_items("arithmetic", load_run(run), "round-1", "baseline-sft")
    pairs = [(item["answers"]["round-1"]["correct"], item["answers"]["baseline-sft"]["correct"]) for item in items]
    assert pairs.count((True, False)) == pairs.count((False, True)) == 2


def test_a_model_has_one_colour_wherever_it_is_drawn(run: Path) -> None:
    found = specs(write_report(run).read_text(encoding="utf-8"))
    losses = {name: found[name]["layer"][0]["encoding"]["color"]["scale"] for name in ("loss-sft", "loss-round-1")}
    accuracy = found["accuracy-arithmetic"]["layer"][0]["encoding"]["color"]["scale"]
    of = dict(zip(accuracy["domain"], accuracy["range"], strict=True))
    assert len({*of.values()}) == 4
    first = dict(zip(losses["loss-sft"]["domain"], losses["loss-sft"]["range"], strict=True))
    assert first == {name: of[name] for name in first}
    joint = dict(zip(losses["loss-round-1"]["domain"], losses["loss-round-1"]["range"], strict=True))
    assert joint["strong alone"] == of["WMSS, round 1"] and joint["weak alone"] == of["M0, base model"]


def test_a_loss_axis_is_logarithmic_unless_a_loss_is_zero(run: Path) -> None:
    def scale() -> str:
        page = specs(write_report(run).read_text(encoding="utf-8"))
        return page["loss-sft"]["layer"][0]["encoding"]["y"]["scale"].get("type", "linear")

    assert scale() == "log"
    put(run / "sft/metrics.jsonl", [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.0}])
    assert scale() == "linear"


def test_odd_probabilities_have_no_uniformity(recwarn: pytest.WarningsRecorder) -> None:
    for odd in (1e200, -1.0, float("nan"), float("inf")):
        assert uniformity(np.array([odd, 0.5]), np.array([1, 0]), 2) is None
    assert not recwarn.list
