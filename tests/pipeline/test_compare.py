"""All methods of the paper on the embedded model, cut down: one folder of runs, one table, shared stages once."""

import csv
import json
import shutil
import sys

import pytest

from conftest import Recorder, small_recipe
from weakdriven.commands.app import main
from weakdriven.errors import UserError
from weakdriven.methods import wmss
from weakdriven.methods.token_loss import OtherLoss
from weakdriven.pipeline.compare import compare_methods, needs
from weakdriven.report.compare.table import write_comparison
from weakdriven.runs.executor import DryRun
from weakdriven.runs.files import read_json, read_jsonl
from weakdriven.stages.checks import check_recipe

ALL = ["sft", "sft_restart", "neftune", "undial", "spin", "ssb", "dpo", "wmss"]
# eight problems learned by heart, so that M1 writes right and wrong completions of them
SMALL = ["data.limit=8", "eval.limit=24", "eval.max_new_tokens=48", "sft.epochs=25", "sft.batch_size=8"]
SMALL += ["sft.micro_batch_size=8", "sft.learning_rate=3e-3", "joint.batch_size=4", "joint.micro_batch_size=4"]
SMALL += [f"{name}.{one}" for name in ("spin", "dpo", "ssb") for one in ("batch_size=2", "micro_batch_size=2")]
SMALL += [
    f"{name}.rollouts.{one}" for name in ("spin", "dpo", "ssb") for one in ("max_new_tokens=64", "temperature=1.0")
]


def compare(root, *overrides, methods=ALL, seeds=2):
    recorder = Recorder()
    compare_methods("demo", [*SMALL, *overrides], root, recorder, methods=methods, seeds=seeds)
    return recorder, read_json(root / "comparison.json")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "compared"
    return root, *compare(root)


def rows_of(found):
    return {row["method"]: row for row in found["rows"]}


def test_every_method_has_a_score_under_every_seed(compared):
    _, _, found = compared
    rows = rows_of(found)
    assert list(rows) == ["base", "m1", "sft_restart", *(name for name in ALL if name != "sft_restart")]
    assert not found["failed"] and all(row["seeds"] == ["42", "43"] for row in rows.values())
    for row in rows.values():
        low, high = row["interval"]
        assert low <= row["score"] <= high and row["score"] == pytest.approx(sum(row["by_seed"]) / 2)


def test_all_methods_are_tested_against_the_restart(compared):
    rows = rows_of(compared[2])
    assert "against" not in rows["sft_restart"]
    for name, row in rows.items():
        if name != "sft_restart":
            against = row["against"]
            assert against["seeds"] == ["42", "43"] and 0 < against["p_items"] <= 1
            assert against["difference"] == pytest.approx(row["score"] - rows["sft_restart"]["score"])


def test_stages_that_seeds_share_are_taken_over(compared):
    root, recorder, _ = compared
    assert recorder.ran["eval/base/arithmetic"] == recorder.ran["entropy/base"] == "taken over from seed-42"
    assert recorder.ran["data"] == "taken over from seed-42" and recorder.ran["sft"] == "not run yet"
    first, second = (read_json(root / seed / "sft/manifest.json") for seed in ("seed-42", "seed-43"))
    assert first["key"] != second["key"]
    assert (root / "seed-43/data/tokens.arrow").samefile(root / "seed-42/data/tokens.arrow")


def test_a_method_costs_the_sum_of_what_leads_to_it(compared):
    root, _, found = compared
    rows = rows_of(found)
    manifests = {
        seed: {
            path.parent.relative_to(root / seed).as_posix(): read_json(path)
            for path in (root / seed).glob("**/manifest.json")
        }
        for seed in ("seed-42", "seed-43")
    }
    for name, stages in {
        "spin": ["sft", "rollouts/sft/spin", "pairs/spin", "baselines/spin"],
        "wmss": ["entropy/base", "sft", "entropy/sft", "round-1/active", "round-1/strong"],
        "neftune": ["baselines/neftune"],
    }.items():
        assert sorted(found["methods"][name]["stages"]) == sorted(stages)
        seconds = [sum(each[stage]["wall_seconds"] for stage in stages) for each in manifests.values()]
        after = [sum(each[stage]["wall_seconds"] for stage in stages if stage != "sft") for each in manifests.values()]
        assert rows[name]["seconds"] == pytest.approx(sum(seconds) / 2)
        assert rows[name]["seconds_after_m1"] == pytest.approx(sum(after) / 2)
    assert (
        rows["sft"]["generated_tokens"] == 0 and rows["dpo"]["generated_tokens"] > rows["spin"]["generated_tokens"] > 0
    )
    lengths = [
        sum(json.loads(line)["tokens"] for line in (root / seed / "rollouts/sft/spin/rollouts.jsonl").open())
        for seed in manifests
    ]
    assert rows["spin"]["generated_tokens"] == sum(lengths) / 2
    assert rows["sft"]["trained_tokens"] == pytest.approx(rows["m1"]["trained_tokens"] * 26 / 25)
    last = list(read_jsonl(root / "seed-42/round-1/strong/metrics.jsonl"))[-1]
    joint = manifests["seed-42"]["round-1/strong"]["counters"]["trained_tokens"]
    assert joint == 2 * last["num_tokens"], "each of the two models learns from each token"


def test_what_was_computed_to_know_a_budget_is_no_cost_of_who_trains_for_so_long(tmp_path):
    recipe = small_recipe("baselines=[sft_compute,sft_active]")
    stages = check_recipe(recipe, DryRun(tmp_path / "run"))
    assert needs(stages, "sft_compute")["stages"] == ["baselines/sft_compute"]
    active = ["sft", "entropy/base", "entropy/sft", "round-1/active", "baselines/sft_active"]
    assert sorted(needs(stages, "sft_active")["stages"]) == sorted(active)


def test_a_shared_stage_that_fails_fails_every_method_that_needs_it_and_no_older_one_is_used(
    compared, tmp_path, monkeypatch
):
    root = tmp_path / "failing"
    shutil.copytree(compared[0], root)
    trained = wmss.supervised_stage

    def out_of_memory(context, name, *args, **kwargs):
        if name == "sft":
            kwargs["variant"] = OtherLoss({"changed": True}, loss=refuses)  # another key, and an error while it trains
        return trained(context, name, *args, **kwargs)

    monkeypatch.setattr(wmss, "supervised_stage", out_of_memory)
    _, found = compare(root, methods=["sft", "neftune", "undial", "spin"], seeds=1)
    assert set(found["failed"]) == {"sft_restart", "undial", "spin"}
    assert {why["42"] for why in found["failed"].values()} == {"no memory left"}
    rows = rows_of(found)
    assert [name for name, row in rows.items() if row["seeds"]] == ["base", "sft", "neftune"]


def refuses(tokens):
    raise UserError("no memory left")


@pytest.mark.parametrize(
    "overrides",
    [
        ["lora.rank=4", "lora.output=merged"],
        ["selection.enabled=false"],
        ["joint.rounds=2"],
    ],
)
def test_other_recipes_are_compared_too(tmp_path, overrides):
    quick = ["data.limit=8", "eval.limit=4", "eval.max_new_tokens=8", "sft.epochs=1"]
    _, found = compare(tmp_path / "runs", *quick, *overrides, methods=["sft", "wmss"], seeds=1)
    assert not found["failed"] and rows_of(found)["wmss"]["seeds"] == ["42"]
    run = tmp_path / "runs/seed-42"
    plan = read_json(run / "plan.json")
    assert all((run / name / "manifest.json").is_file() for name in plan), "nothing that is planned is left out"


def test_a_given_m1_is_shown_and_costs_nothing(compared, tmp_path):
    given = f"sft.model={compared[0] / 'seed-42/sft'}"
    _, found = compare(tmp_path / "runs", given, methods=["undial"], seeds=1)
    rows = rows_of(found)
    assert rows["m1"]["seeds"] == ["42"] and rows["m1"]["seconds"] is None
    assert rows["undial"]["seconds"] == rows["undial"]["seconds_after_m1"]


def test_the_table_is_there_for_people_and_for_programs(compared):
    root, _, found = compared
    lines = list(csv.DictReader((root / "comparison.csv").open()))
    assert [line["method"] for line in lines] == [row["method"] for row in found["rows"]]
    assert [float(line["score"]) for line in lines] == [row["score"] for row in found["rows"]]
    text = (root / "comparison.md").read_text()
    assert "| wmss | 2 |" in text and "tokens generated" in text and "Without a result" not in text
    assert all((root / seed / "report.html").is_file() for seed in ("seed-42", "seed-43"))
    assert found["hardware"] and found["versions"]["torch"]


def test_a_second_call_computes_nothing_and_a_further_seed_only_itself(compared, tmp_path):
    root = tmp_path / "again"
    shutil.copytree(compared[0], root)
    recorder, found = compare(root)
    assert recorder.ran == {} and rows_of(found)["spin"]["score"] == rows_of(compared[2])["spin"]["score"]
    before = {path: path.stat().st_mtime_ns for path in root.glob("seed-4[23]/**/manifest.json")}
    recorder, found = compare(root, methods=["sft"], seeds=3)
    assert rows_of(found)["sft"]["seeds"] == ["42", "43", "44"] and "spin" not in rows_of(found)
    assert {"sft", "baselines/sft", "baselines/sft_restart"} <= set(recorder.ran)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_table_that_cannot_be_written_does_not_end_the_seeds(compared, tmp_path, monkeypatch):
    root, calls = tmp_path / "again", []

    def broken(root):
        calls.append(root)
        raise OSError("no room")

    shutil.copytree(compared[0], root)
    monkeypatch.setattr("weakdriven.pipeline.compare.write_comparison", broken)
    with pytest.raises(OSError, match="no room"):
        compare(root)
    assert calls == [root] * 2, "after each seed"


def test_a_rerun_that_is_stopped_keeps_the_seeds_that_were_done(compared, tmp_path):
    root = tmp_path / "again"
    shutil.copytree(compared[0], root)

    class Stops(Recorder):
        def plan(self, planned):
            if self.planned:
                raise KeyboardInterrupt
            self.planned = planned

    with pytest.raises(KeyboardInterrupt):
        compare_methods("demo", SMALL, root, Stops(), methods=ALL, seeds=2)
    found = read_json(root / "comparison.json")
    assert list(found["seeds"]) == ["42", "43"] and rows_of(found)["dpo"]["seeds"] == ["42", "43"]
    shutil.rmtree(root / "seed-43/baselines/dpo")
    with pytest.raises(KeyboardInterrupt):
        compare_methods("demo", SMALL, root, Stops(), methods=ALL, seeds=2)
    assert list(read_json(root / "comparison.json")["seeds"]) == ["42"], (
        "what is not whole any more is not told as done"
    )


def test_a_bad_row_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys):
    rows = '{"id": "a", "question": "1 + 1?", "solution": "2"}\n{"id": "b", "question": "1 + 2?"}\n'
    (tmp_path / "bad.jsonl").write_text(rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["weakdriven", "compare", "demo", "data.path=bad.jsonl"])
    with pytest.raises(SystemExit) as stop:
        main()
    errors = capsys.readouterr().err
    assert (
        stop.value.code == 2
        and errors.startswith("Error: ")
        and "bad.jsonl, row 2: " in errors
        and errors.count("\n") == 1
    )


def test_a_method_that_cannot_be_trained_leaves_the_others_alone_and_is_named(compared, tmp_path):
    root = tmp_path / "failing"
    shutil.copytree(compared[0], root)
    # greedy rollouts of a prompt are alike, so none has a right and a wrong one
    changed = ["dpo.rollouts.samples=1", "dpo.rollouts.temperature=0"]
    recorder, found = compare(root, *changed, seeds=1)
    rows = rows_of(found)
    assert list(found["failed"]) == ["dpo"] and "Nothing is left of" in found["failed"]["dpo"]["42"]
    assert rows["dpo"]["seeds"] == [] and "score" not in rows["dpo"] and rows["wmss"]["seeds"] == ["42"]
    assert list(recorder.ran) == ["rollouts/sft/dpo", "pairs/dpo"]
    assert "Without a result" in (root / "comparison.md").read_text()
    write_comparison(root)  # from files alone


@pytest.mark.parametrize(
    "overrides, methods, answer",
    [
        ([], ["sfft"], "--methods: sfft is not a method. Did you mean sft?"),
        (["eval.benchmarks=[]"], ["sft"], "demo: eval.benchmarks names none"),
        (["undial.strength=-1"], ["undial"], "undial.strength: Input should be greater than or equal to 0"),
    ],
)
def test_what_cannot_be_compared_is_told_before_anything_runs(tmp_path, overrides, methods, answer):
    with pytest.raises(UserError, match=answer):
        compare_methods("demo", overrides, tmp_path / "runs", Recorder(), methods=methods, seeds=1)
    assert not (tmp_path / "runs").exists()


def test_the_folder_of_a_run_is_not_taken_for_a_comparison(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match="is the directory of one run; give another --output"):
        compare_methods("demo", [], tmp_path, Recorder(), methods=["sft"], seeds=1)
