"""One page for several runs: labels, reference, comparability, and what it says of differences."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from report_runs import EVIL, finish, specs, start, write_plan
from run_files import put
from weakdriven.commands.app import app
from weakdriven.errors import UserError
from weakdriven.eval.statistics import wilson_interval
from weakdriven.report.compare.page import headline, is_significant, outcome, write_compare
from weakdriven.report.compare.table import runs_compared
from weakdriven.runs.files import read_json, read_jsonl, write_json


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two runs whose scores know their terms, as evaluation writes them."""
    found = [tmp_path / "a", tmp_path / "b"]
    for run in found:
        finish(run)
        for path in run.glob("eval/*/*/scores.json"):
            write_json(path, read_json(path) | {"golds": "g", "samples": 1})
        for path in run.glob("**/manifest.json"):
            stage = path.parent.relative_to(run).as_posix()
            write_json(path, read_json(path) | {"key": stage, "inputs": {}})
        plan = read_json(run / "plan.json")
        write_plan(run, list(plan), **{name: name for name in plan})
    return found


def test_every_model_of_every_run_is_a_row_tested_against_the_first_control(runs: list[Path]) -> None:
    found = runs_compared(runs, None)
    assert len(found["rows"]) == 8 and found["against"] == "a: SFT (same epochs)"
    rows = {row["method"]: row for row in found["rows"]}
    assert "against" not in rows[found["against"]]
    wmss, control = rows["a: WMSS (round 1)"], rows["a: SFT (same epochs)"]
    assert wmss["against"]["difference"] == pytest.approx(wmss["score"] - control["score"])
    assert rows["b: SFT (same epochs)"]["against"]["difference"] == 0  # the same answers in another folder
    assert wmss["seconds"] == pytest.approx(43.5)


def test_folders_of_the_same_name_get_different_labels(runs: list[Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(runs[0], tmp_path / "deep/a"))
    labels = [row["method"] for row in runs_compared([runs[0], other], None)["rows"]]
    assert len(set(labels)) == 8 and any(label.startswith("deep/a: ") for label in labels)


def test_the_same_point_of_two_sweeps_is_two_runs(runs: list[Path], tmp_path: Path) -> None:
    both = [Path(shutil.copytree(runs[0], tmp_path / sweep / "point/seed-42")) for sweep in ("x", "y")]
    rows = runs_compared(both, None)["rows"]
    assert len(rows) == 8 and {row["method"].split("/")[0] for row in rows} == {"x", "y"}


def test_what_is_not_finished_is_named(runs: list[Path], tmp_path: Path) -> None:
    start(tmp_path / "begun")
    (runs[1] / "eval/round-1/arithmetic/manifest.json").unlink()
    plan = read_json(runs[0] / "plan.json")
    write_json(runs[0] / "plan.json", plan | {"eval/sft/gsm8k": "not yet"})
    found = runs_compared([*runs, tmp_path / "begun"], None)
    assert found["missing"] == [
        "a: M1 (after phase-1 SFT): not all of its benchmarks are finished",
        "begun: no model has been evaluated",
    ]
    assert len(found["rows"]) == 6
    page = write_compare([*runs, tmp_path / "begun"], tmp_path / "c.html").read_text(encoding="utf-8")
    assert "begun: no model has been evaluated" in page


def test_a_run_without_a_plan_is_shown_as_it_stands(runs: list[Path]) -> None:
    (runs[0] / "plan.json").unlink()
    assert len(runs_compared(runs, None)["rows"]) == 8


def test_runs_that_were_evaluated_on_other_items_raise_an_error(runs: list[Path]) -> None:
    for path in runs[1].glob("eval/*/*/scores.json"):
        write_json(path, read_json(path) | {"golds": "other"})
    with pytest.raises(UserError, match="share no benchmark"):
        runs_compared(runs, None)


def test_an_unknown_reference_and_a_folder_that_is_no_run_raise_an_error(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--against: unknown label"):
        runs_compared(runs, "nobody")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="expected run directories"):
        write_compare([tmp_path / "empty"])


def test_the_page_has_a_leaderboard_and_three_figures(runs: list[Path], tmp_path: Path) -> None:
    put(runs[0] / "eval/base/arithmetic/samples.jsonl", (runs[0] / "eval/sft/arithmetic/samples.jsonl").read_text())
    result = CliRunner().invoke(app, ["report", "compare", *map(str, runs), "--output", str(tmp_path / "out/c.html")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "out/c.html").read_text(encoding="utf-8")
    assert list(specs(page)) == ["scores", "gains", "cost-gain"]
    assert "Highest score: " in page and "not corrected" in page
    assert {path.suffix for path in (tmp_path / "out/c-figures").iterdir()} == {".svg", ".png"}


def test_labels_are_never_markup(runs: list[Path], tmp_path: Path) -> None:
    evil = Path(shutil.copytree(runs[0], tmp_path / EVIL.replace("/", "")))
    page = write_compare([runs[1], evil], tmp_path / "c.html").read_text(encoding="utf-8")
    assert page.lower().count("<script") == 3


def test_a_difference_is_significant_only_if_both_tests_are() -> None:
    assert is_significant({"p_items": 0.01, "p_seeds": None}) and is_significant({"p_items": 0.01, "p_seeds": 0.04})
    assert not is_significant({"p_items": 0.01, "p_seeds": 0.2}) and not is_significant(
        {"p_items": 0.2, "p_seeds": 0.01}
    )


def scored(name: str, score: float, p: float, **more: object) -> dict[str, object]:
    against = {"difference": score - 0.5, "interval": (0.0, 0.2), "p_items": p, "p_seeds": None}
    return {"name": name, "model": name, "score": score, "interval": (score, score), "against": against, **more}


def test_the_headline_names_the_better_the_worse_and_the_rest() -> None:
    words = headline([scored("up", 0.6, 0.001), scored("down", 0.3, 0.001), scored("same", 0.5, 0.9)], "sft")
    assert words[0] == "Highest score: up, 60.0 [60.0, 60.0] percent."
    assert "Significantly better than sft: up (+10.0 points)." in words
    assert "Significantly worse than sft: down (-20.0 points)." in words
    assert "No significant difference from sft: same." in words
    assert headline([], "sft") == ["Nothing has been evaluated yet, so there is nothing to compare."]


def test_wmss_comes_first_nobody_is_crowned_in_a_tie_and_what_training_lost_is_said() -> None:
    base = {"difference": -0.1, "p_items": 0.2, "p_seeds": None}
    ours = scored("WMSS", 0.4, 0.001) | {"model": "round-1", "against_base": base}
    words = headline([scored("a", 0.60001, 0.2), scored("b", 0.6, 0.2), ours], "sft")
    assert words[0] == "WMSS is significantly worse than sft: -10.0 points, 95% interval +0.0 to +20.0."
    assert words[1] == "Highest score: 60.0 percent, by a and b."
    assert words[2] == "Below the untrained base model: WMSS (-10.0 points, not significant)."
    assert outcome([ours]) == "worse" and outcome([scored("a", 0.6, 0.001)]) == "open"


def test_the_page_names_model_data_and_benchmarks(runs: list[Path], tmp_path: Path) -> None:
    put(runs[0] / "recipe.yaml", "model: owner/name\ndata: {path: rows.jsonl}\n")
    page = write_compare(runs, tmp_path / "c.html").read_text(encoding="utf-8")
    assert "owner/name on rows.jsonl. Benchmarks: arithmetic." in page


def test_answers_that_are_all_wrong_have_an_interval(runs: list[Path]) -> None:
    for model in ("base", "baseline-sft"):
        path = runs[0] / f"eval/{model}/arithmetic/samples.jsonl"
        put(path, [row | {"correct": False} for row in read_jsonl(path)])
    rows = {row["method"]: row for row in runs_compared(runs[:1], None)["rows"]}
    base = rows["a: M0 (base model)"]
    assert base["score"] == 0 and base["interval"] == pytest.approx(wilson_interval(0, 80))
    low, high = base["against"]["interval"]
    assert base["against"]["difference"] == 0 and low < 0 < high
