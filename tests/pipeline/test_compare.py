"""`weakdriven compare`: a folder of runs, one for each seed, and one table of scores and costs."""

import csv
import shutil

import pytest

from command_line import WHOLE, assert_user_error, weakdriven
from small_runs import Recorder, small_recipe
from weakdriven.commands.compare import print_comparison
from weakdriven.errors import UserError
from weakdriven.methods import wmss
from weakdriven.methods.other_loss import OtherLoss
from weakdriven.pipeline.compare import compare_methods, needs
from weakdriven.pipeline.run import RunOptions
from weakdriven.report.compare.table import write_comparison
from weakdriven.runs.executor import DryRun
from weakdriven.runs.files import read_json, read_jsonl
from weakdriven.runs.take_over import Siblings
from weakdriven.stages.checks import check_recipe

METHODS = ["sft", "sft_restart", "wmss"]


def compare(root, *overrides, methods=METHODS, seeds=2, siblings=(), recorder=None, replace=False):
    recorder, options = recorder or Recorder(), RunOptions(Siblings(siblings), replace=replace)
    compare_methods("demo", [*WHOLE, *overrides], root, recorder, methods=methods, seeds=seeds, options=options)
    return recorder, read_json(root / "comparison.json")


@pytest.fixture(scope="session")
def compared(once, whole_run):
    """Three methods under two seeds, of which the first takes what it can from the finished run."""
    root, result = once("compared", lambda root: compare(root, siblings=[whole_run[0]]))
    return root, *result


def rows_of(found):
    return {row["method"]: row for row in found["rows"]}


def manifests_of(run):
    return {path.parent.relative_to(run).as_posix(): read_json(path) for path in run.glob("**/manifest.json")}


def test_every_method_has_a_score_under_every_seed_and_a_test_against_the_restart(compared):
    rows = rows_of(compared[2])
    assert list(rows) == ["base", "m1", "sft_restart", "sft", "wmss"] and not compared[2]["failed"]
    assert "against" not in rows["sft_restart"]
    for name, row in rows.items():
        low, high = row["interval"]
        assert row["seeds"] == ["42", "43"]
        assert low <= row["score"] <= high and row["score"] == pytest.approx(sum(row["by_seed"]) / 2)
        if name != "sft_restart":
            against = row["against"]
            assert against["seeds"] == ["42", "43"] and 0 < against["p_items"] <= 1
            assert against["difference"] == pytest.approx(row["score"] - rows["sft_restart"]["score"])


def test_stages_that_seeds_share_are_computed_once(compared):
    root, recorder, _ = compared
    assert recorder.ran["eval/base/arithmetic"] == recorder.ran["entropy/base"] == "taken over from seed-42"
    assert recorder.ran["data"] == "taken over from seed-42" and recorder.ran["sft"] == "not run yet"
    first, second = (read_json(root / seed / "sft/manifest.json") for seed in ("seed-42", "seed-43"))
    assert first["key"] != second["key"]
    assert (root / "seed-43/data/tokens.arrow").samefile(root / "seed-42/data/tokens.arrow")


def costs_are_sums(root, found, expected):
    """A method costs what the stages that lead to it cost, on average over the seeds."""
    runs = [manifests_of(root / folder) for folder in found["seeds"].values()] if "seeds" in found else []
    runs = runs or [manifests_of(path) for path in sorted(root.glob("seed-*"))]
    for name, stages in expected.items():
        assert sorted(found["methods"][name]["stages"]) == sorted(stages)
        seconds = [sum(each[stage]["wall_seconds"] for stage in stages) for each in runs]
        after = [sum(each[stage]["wall_seconds"] for stage in stages if stage != "sft") for each in runs]
        assert rows_of(found)[name]["seconds"] == pytest.approx(sum(seconds) / len(runs))
        assert rows_of(found)[name]["seconds_after_m1"] == pytest.approx(sum(after) / len(runs))


def test_a_method_costs_the_sum_of_its_stages(compared):
    root, _, found = compared
    stages = ["entropy/base", "sft", "entropy/sft", "round-1/active", "round-1/strong"]
    costs_are_sums(root, found, {"wmss": stages, "sft_restart": ["sft", "baselines/sft_restart"]})
    rows = rows_of(found)
    assert rows["sft"]["generated_tokens"] == 0
    assert rows["sft"]["trained_tokens"] == pytest.approx(rows["m1"]["trained_tokens"] * 2), "two epochs, not one"
    last = list(read_jsonl(root / "seed-42/round-1/strong/metrics.jsonl"))[-1]
    joint = read_json(root / "seed-42/round-1/strong/manifest.json")["counters"]["trained_tokens"]
    assert joint == 2 * last["num_tokens"], "each of the two models learns from each token"


def test_the_stages_that_determine_a_budget_do_not_count_as_cost(tmp_path):
    stages = check_recipe(small_recipe("baselines=[sft_compute,sft_active]"), DryRun(tmp_path / "run"))
    assert needs(stages, "sft_compute")["stages"] == ["baselines/sft_compute"]
    active = ["sft", "entropy/base", "entropy/sft", "round-1/active", "baselines/sft_active"]
    assert sorted(needs(stages, "sft_active")["stages"]) == sorted(active)


def test_the_comparison_is_written_for_people_and_for_programs(compared):
    root, _, found = compared
    lines = list(csv.DictReader((root / "comparison.csv").open()))
    assert [line["method"] for line in lines] == [row["method"] for row in found["rows"]]
    assert [float(line["score"]) for line in lines] == [row["score"] for row in found["rows"]]
    text = (root / "comparison.md").read_text()
    assert "| WMSS (round 1) |" in text and "times reference" in text and "Without a result" not in text
    assert all((root / seed / "report.html").is_file() for seed in ("seed-42", "seed-43"))
    assert found["hardware"] and found["versions"]["torch"]


def test_a_second_call_computes_nothing(compared, tmp_path):
    root = shutil.copytree(compared[0], tmp_path / "again")
    recorder, found = compare(root)
    assert recorder.ran == {} and found["rows"] == compared[2]["rows"]
    recorder, found = compare(root, methods=["sft"], seeds=1)
    assert recorder.ran == {} and list(rows_of(found)) == ["base", "m1", "sft_restart", "sft"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_changed_setting_replaces_no_finished_stage_of_any_seed(compared, tmp_path, jobs):
    root = shutil.copytree(compared[0], tmp_path / "again")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    words = [*WHOLE, "--methods", ",".join(METHODS), "--seeds", "2", "--jobs", jobs, "--output", root]
    done = weakdriven("compare", "demo", "joint.strong_weight=0.7", *words)
    assert_user_error(done, "4 finished stages", *(f"{root}/seed-{seed}/round-1/strong (" for seed in (42, 43)))
    assert f"--output {root}-2 --take-from {root}" in done.err
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_rerun_that_is_stopped_keeps_the_finished_seeds_in_the_table(compared, tmp_path):
    root = shutil.copytree(compared[0], tmp_path / "again")

    class Stops(Recorder):
        def plan(self, planned):
            if self.planned:
                raise KeyboardInterrupt
            self.planned = planned

    for finished in (["42", "43"], ["42"]):
        with pytest.raises(KeyboardInterrupt):
            compare(root, recorder=Stops())
        found = read_json(root / "comparison.json")
        assert list(found["seeds"]) == finished == rows_of(found)["wmss"]["seeds"]
        shutil.rmtree(root / "seed-43/baselines/sft", ignore_errors=True)  # so the seed is not finished any more


def test_a_method_that_fails_is_named_and_the_others_keep_their_results(compared, tmp_path):
    root = shutil.copytree(compared[0], tmp_path / "failing")
    # greedy rollouts of a prompt are identical, so none has a right and a wrong one
    greedy = ["dpo.rollouts.samples=1", "dpo.rollouts.temperature=0", "dpo.rollouts.max_new_tokens=8"]
    recorder, found = compare(root, *greedy, methods=[*METHODS, "dpo"], seeds=1)
    rows = rows_of(found)
    assert list(found["failed"]) == ["dpo"] and "Nothing is left of" in found["failed"]["dpo"]["42"]
    assert rows["dpo"]["seeds"] == [] and "score" not in rows["dpo"] and rows["wmss"]["seeds"] == ["42"]
    assert list(recorder.ran) == ["rollouts/sft/dpo", "pairs/dpo"]
    assert "Without a result" in (root / "comparison.md").read_text()
    write_comparison(root)  # from files alone
    with pytest.raises(UserError, match=r"No result from: dpo, seed 42: .* To compute what is missing: weakdriven"):
        print_comparison(root)


def test_a_shared_stage_that_fails_fails_every_method_that_needs_it_and_no_older_result_is_used(
    compared, tmp_path, monkeypatch
):
    root = shutil.copytree(compared[0], tmp_path / "failing")
    trained = wmss.supervised_stage

    def out_of_memory(context, name, *args, **kwargs):
        if name == "sft":
            kwargs["variant"] = OtherLoss({"changed": True}, loss=no_memory)  # another key, and an error in training
        return trained(context, name, *args, **kwargs)

    monkeypatch.setattr(wmss, "supervised_stage", out_of_memory)
    _, found = compare(root, methods=["sft", "wmss"], seeds=1, replace=True)
    assert set(found["failed"]) == {"sft_restart", "wmss"}
    assert {why["42"] for why in found["failed"].values()} == {"no memory left"}
    assert [name for name, row in rows_of(found).items() if row["seeds"]] == ["base", "sft"]


def no_memory(tokens):
    raise UserError("no memory left")


@pytest.mark.parametrize(
    "overrides",
    [
        ["selection.enabled=false"],
        pytest.param(["joint.rounds=2"], marks=pytest.mark.slow),
        pytest.param(["lora.rank=4", "lora.output=merged"], marks=pytest.mark.slow),
    ],
)
def test_other_recipes_are_compared_too(compared, whole_run, tmp_path, overrides):
    siblings = [whole_run[0], compared[0] / "seed-42"]
    _, found = compare(tmp_path / "runs", *overrides, methods=["sft", "wmss"], seeds=1, siblings=siblings)
    assert not found["failed"] and rows_of(found)["wmss"]["seeds"] == ["42"]
    run = tmp_path / "runs/seed-42"
    assert set(read_json(run / "plan.json")) == set(manifests_of(run)), "every planned stage is finished"


def test_a_given_m1_is_shown_and_costs_nothing(whole_run, tmp_path):
    given = f"sft.model={whole_run[0] / 'sft'}"
    _, found = compare(tmp_path / "runs", given, methods=["sft_restart"], seeds=1, siblings=[whole_run[0]])
    rows = rows_of(found)
    assert rows["m1"]["seeds"] == ["42"] and rows["m1"]["seconds"] is None
    assert rows["sft_restart"]["seconds"] == rows["sft_restart"]["seconds_after_m1"]


ALL = ["sft", "sft_restart", "neftune", "undial", "spin", "ssb", "dpo", "wmss"]
# eight problems learned by heart, so that M1 writes right and wrong completions of them
BY_HEART = ["data.limit=8", "sft.epochs=25", "sft.learning_rate=3e-3", "eval.max_new_tokens=48"]
BY_HEART += [f"{name}.{one}" for name in ("spin", "dpo", "ssb") for one in ("batch_size=2", "micro_batch_size=2")]
BY_HEART += [
    f"{name}.rollouts.{one}" for name in ("spin", "dpo", "ssb") for one in ("max_new_tokens=64", "temperature=1.0")
]


@pytest.mark.slow
def test_all_methods_of_the_paper_are_compared(tmp_path):
    root = tmp_path / "all"
    _, found = compare(root, *BY_HEART, methods=ALL, seeds=1)
    rows = rows_of(found)
    assert list(rows) == ["base", "m1", "sft_restart", *(name for name in ALL if name != "sft_restart")]
    assert not found["failed"] and all(row["seeds"] == ["42"] for row in rows.values())
    costs_are_sums(
        root,
        found,
        {"spin": ["sft", "rollouts/sft/spin", "pairs/spin", "baselines/spin"], "neftune": ["baselines/neftune"]},
    )
    assert rows["dpo"]["generated_tokens"] > rows["spin"]["generated_tokens"] > 0
    lengths = [row["tokens"] for row in read_jsonl(root / "seed-42/rollouts/sft/spin/rollouts.jsonl")]
    assert rows["spin"]["generated_tokens"] == sum(lengths)


def test_a_bad_row_is_one_sentence_and_exit_code_2(tmp_path):
    rows = tmp_path / "bad.jsonl"
    rows.write_text('{"id": "a", "question": "1 + 1?", "solution": "2"}\n{"id": "b", "question": "1 + 2?"}\n')
    done = weakdriven("compare", "demo", f"data.path={rows}", "--output", tmp_path / "runs")
    assert_user_error(done, "bad.jsonl, row 2: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "overrides, methods, words",
    [
        ([], ["sfft"], "Did you mean sft"),
        (["eval.benchmarks=[]"], ["sft"], "eval.benchmarks is empty"),
        (["undial.strength=-1"], ["undial"], "undial.strength"),
    ],
)
def test_a_mistake_is_reported_before_anything_runs(tmp_path, overrides, methods, words):
    with pytest.raises(UserError, match=words):
        compare(tmp_path / "runs", *overrides, methods=methods, seeds=1)
    assert not (tmp_path / "runs").exists()


def test_a_comparison_does_not_use_the_directory_of_a_run(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match="is a run directory"):
        compare(tmp_path, seeds=1)
