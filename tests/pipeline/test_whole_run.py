"""One whole small run, from the command line to its report; `test_kill.py` kills the same run and resumes it."""

import shutil

import torch
from safetensors.torch import load_file

from command_line import WHOLE, weakdriven
from weakdriven.config.file import load_recipe
from weakdriven.models.load import locate_model
from weakdriven.report import accuracy_rows, load_run
from weakdriven.report.run.verdict import verdict
from weakdriven.runs.files import read_json, read_jsonl
from weakdriven.wmss.score_files import read_scores

TRAINED = ["sft", "round-1/strong", "baselines/sft"]
MODELS = {"base": "M0", "sft": "M1", "baseline-sft": "SFT", "round-1": "WMSS"}
STAGES = ["data", "entropy/base", "entropy/sft", "round-1/active", *TRAINED]
STAGES += [f"eval/{model}/arithmetic" for model in MODELS]


def test_a_run_prints_its_stages_the_scores_and_the_report(whole_run):
    root, printed = whole_run
    assert printed.code == 0 and "Error" not in printed.err
    for number in range(1, len(STAGES) + 1):
        assert f"[{number}/{len(STAGES)}] " in printed.out
    assert [row["model"] for row in accuracy_rows(root)] == list(MODELS)
    assert all(f"{row['correct']}/8" in printed.out for row in accuracy_rows(root))
    last = printed.out.partition(f"Report: {root / 'report.html'}\n")[2]
    assert verdict(load_run(root))[0] in last and f"Trained model: {root / 'round-1/strong'}\n" in last
    asked = [f"chat {root}", f"eval --model {root / 'round-1/strong'}", f"report {root}"]
    assert all(f"weakdriven {words}" in last for words in asked)


def test_every_planned_stage_of_a_run_is_finished_and_in_the_report(whole_run):
    root, _ = whole_run
    assert set(read_json(root / "plan.json")) == set(STAGES)
    for name, key in read_json(root / "plan.json").items():
        assert read_json(root / name / "manifest.json")["key"] == key
    page = (root / "report.html").read_text()
    assert all(name in page for name in MODELS.values())
    assert (root / "round-1/strong/README.md").is_file(), "the model card of the result"


def test_the_recipe_of_a_run_is_recorded_whole(whole_run):
    root, _ = whole_run
    assert load_recipe(str(root / "recipe.yaml")).model_dump() == load_recipe("demo", WHOLE).model_dump()
    assert not list((root / ".work").glob("*/*")), "nothing unfinished is left"


def test_each_stage_of_a_run_uses_the_results_of_the_ones_before_it(whole_run):
    root, _ = whole_run
    counters = {name: read_json(root / name / "manifest.json")["counters"] for name in STAGES}
    assert counters["data"]["examples"] == len(read_scores(root / "entropy/sft/scores.parquet")["id"]) == 32
    active = counters["round-1/active"]["active"]
    assert 0 < active < 32 and counters["round-1/strong"]["steps"] == active // 4
    weights = [load_file(folder / "model.safetensors") for folder in (locate_model("embedded:base"), root / "sft")]
    weights.append(load_file(root / "round-1/strong/model.safetensors"))
    assert not any(torch.equal(weights[i][name], weights[i + 1][name]) for name in weights[0] for i in (0, 1))
    losses = [row["loss"] for row in read_jsonl(root / "sft/metrics.jsonl")]
    assert losses[-1] < losses[0], "SFT learns"


def test_a_finished_run_is_not_computed_again(whole_run, tmp_path):
    root = shutil.copytree(whole_run[0], tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("manifest.json")}
    again = weakdriven("run", "demo", *WHOLE, "--output", root)
    assert again.code == 0 and again.out.count("already done") == len(STAGES)
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("manifest.json")}
    quiet = weakdriven("run", "demo", *WHOLE, "--output", root, "--quiet")
    assert quiet.out and again.out.endswith(quiet.out), "a quiet run prints the table only"
