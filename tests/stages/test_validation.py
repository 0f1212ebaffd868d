"""Validation rows and the loss of every model of a run on them, from the rows to the report."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from command_line import WHOLE
from helpers import write_rows
from recipe_cases import parse, stage_keys
from small_runs import Recorder, demo_rows_once, run_small, small_recipe
from weakdriven.config.file import load_recipe
from weakdriven.data.tokenize import IGNORE, load_tokens
from weakdriven.errors import UserError
from weakdriven.models.load import load_model
from weakdriven.pipeline.compare import compare_methods
from weakdriven.pipeline.run import RunOptions, run_recipe, select_recipe
from weakdriven.pipeline.sweep import sweep_recipe
from weakdriven.report.compare.page import write_compare
from weakdriven.report.read import load_run
from weakdriven.report.run.figures import loss_figures
from weakdriven.runs.files import read_json, read_jsonl
from weakdriven.runs.take_over import Siblings

ROWS = demo_rows_once("train")[:44]
SHARE = "data.validation_share=0.2"
SFT = ["method=sft", "baselines=[]", "eval.benchmarks=[]", "sft.epochs=1"]


@pytest.fixture(scope="session")
def validated(once, whole_run, tmp_path_factory):
    """WMSS and its control, taken over from the whole run, with 12 validation rows and no benchmark."""
    own = tmp_path_factory.mktemp("rows") / "validation.jsonl"

    def build(root):
        recipe = [*WHOLE, "eval.benchmarks=[]", f"data.validation={write_rows(own, ROWS[32:])}"]
        recorder = Recorder()
        run_recipe(load_recipe("demo", recipe), root, recorder, RunOptions(Siblings([whole_run[0]])))
        return recorder

    return once("validated", build)[0]


def ids(root, stage):
    return [row["id"] for row in read_jsonl(root / stage / "examples.jsonl")]


def found(root, model):
    return read_json(root / f"validation/{model}/manifest.json")["counters"]


def test_each_row_is_trained_on_or_validated_on(tmp_path):
    run_small(tmp_path, *SFT, SHARE, "data.limit=40", "sft.batch_size=8", "sft.micro_batch_size=8")
    training, validation = ids(tmp_path, "data"), ids(tmp_path, "validation-data")
    assert sorted([*training, *validation]) == sorted(row["id"] for row in demo_rows_once("train")[:40])
    assert 3 < len(validation) < 16 and not set(training) & set(validation)
    assert found(tmp_path, "base")["examples"] == len(validation)


@torch.no_grad()
def dense(folder, row):
    """Tokens, loss and hits of one row from all of its logits."""
    network = load_model(folder, precision="fp32")
    logits = network(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1].double()
    target = torch.tensor(row["labels"])[1:]
    kept = target != IGNORE
    loss = F.cross_entropy(logits[kept], target[kept], reduction="sum").item()
    return int(kept.sum()), loss, int((logits[kept].argmax(-1) == target[kept]).sum())


def test_the_loss_of_a_model_is_that_of_its_logits_over_all_completion_tokens(validated):
    rows = load_tokens(validated / "validation-data/tokens.arrow")
    table = pq.read_table(validated / "validation/sft/losses.parquet").to_pylist()
    assert [row["id"] for row in table] == list(rows["id"])
    exact = [dense(validated / "sft", row) for row in rows]
    for row, (tokens, loss, hits) in zip(table, exact, strict=True):
        assert (row["tokens"], row["hits"]) == (tokens, hits) and row["loss"] == pytest.approx(loss, rel=1e-4)
    tokens, loss, hits = map(sum, zip(*exact, strict=True))
    counters = found(validated, "sft")
    assert (counters["tokens"], counters["examples"]) == (tokens, len(rows))
    assert counters["loss"] == pytest.approx(loss / tokens, rel=1e-5)
    assert counters["perplexity"] == pytest.approx(np.exp(loss / tokens), rel=1e-4)
    assert counters["token_accuracy"] == pytest.approx(hits / tokens)
    low, high = counters["loss_interval"]
    assert low < counters["loss"] < high


def test_the_report_tests_every_model_against_the_control(validated):
    rows = {row["model"]: row for row in load_run(validated)["validation"]}
    assert list(rows) == ["base", "sft", "baseline-sft", "round-1"]
    assert "against" not in rows["baseline-sft"]
    for model in ("base", "sft", "round-1"):
        against, losses = rows[model]["against"], [rows[name]["loss"] for name in (model, "baseline-sft")]
        assert against["difference"] == pytest.approx(losses[0] - losses[1])
        assert against["interval"][0] <= against["difference"] <= against["interval"][1]
        assert 0 < against["p_items"] <= 1
    assert rows["base"]["loss"] > rows["baseline-sft"]["loss"] and rows["base"]["against"]["p_items"] < 0.05


def test_page_and_card_of_a_run_without_benchmarks_have_the_losses_and_a_verdict(validated):
    page, card = (validated / "report.html").read_text(), (validated / "round-1/strong/README.md").read_text()
    loss = f"{found(validated, 'round-1')['loss']:.4f}"
    for text in (page, card):
        assert loss in text and "validation loss" in text and "95% interval" in text


def test_validation_rows_from_a_file_change_no_training_and_can_be_added_to_a_finished_run(tmp_path):
    source = "data.path=" + write_rows(tmp_path / "rows.jsonl", ROWS[:32])
    own = "data.validation=" + write_rows(tmp_path / "validation.jsonl", ROWS[32:])
    run_small(tmp_path / "run", *SFT, source)
    later = run_small(tmp_path / "run", *SFT, source, own)
    assert later.skipped == ["data", "baselines/sft"]
    assert list(later.ran) == ["validation-data", "validation/base", "validation/baseline-sft"]
    assert ids(tmp_path / "run", "validation-data") == [row["id"] for row in ROWS[32:]]
    assert run_small(tmp_path / "run", *SFT, source, own).ran == {}


def test_only_rows_that_are_taken_out_change_the_key_of_the_training_data(tmp_path):
    own = "data.validation=" + write_rows(tmp_path / "validation.jsonl", ROWS[32:])
    keys, added, shared = stage_keys(), stage_keys(own), stage_keys(SHARE)
    assert keys.items() <= added.items() and set(added) > set(keys)
    assert all(shared[name] != keys[name] for name in ("data", "sft", "round-1/strong"))
    assert shared["data"] == stage_keys(SHARE, "seed=7")["data"] != stage_keys("data.validation_share=0.3")["data"]


def test_a_row_that_is_trained_on_cannot_be_validated_on(tmp_path):
    source = "data.path=" + write_rows(tmp_path / "rows.jsonl", ROWS[:32])
    leaky = "data.validation=" + write_rows(tmp_path / "leaky.jsonl", [*ROWS[30:34], {**ROWS[3], "id": "copy"}])
    with pytest.raises(UserError, match=r"3 rows of data.validation are training rows.*'copy'"):
        run_small(tmp_path / "run", *SFT, source, leaky)
    assert not (tmp_path / "run").exists()
    run_small(tmp_path / "run", *SFT, source)
    before = sorted((tmp_path / "run").rglob("*"))
    with pytest.raises(UserError, match="training rows"):
        run_small(tmp_path / "run", *SFT, source, leaky)
    assert sorted((tmp_path / "run").rglob("*")) == before


@pytest.mark.parametrize("share, word", [(1e-9, "no row"), (1 - 1e-9, "all 48 rows")])
def test_a_share_that_takes_no_row_or_all_of_them_is_an_error_before_training(share, word, tmp_path):
    with pytest.raises(UserError, match=word):
        run_small(tmp_path / "run", *SFT, f"data.validation_share={share}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "rows, words",
    [
        ([], "there are no rows"),
        ([{"input": "1+1?", "target": "2"}], "found the fields input, target"),
        ([*ROWS[:30], {"question": "1+1?"}], "row 31"),
        ([{"question": "1 + 1? " * 200, "solution": "2"}], "raise data.max_length"),
    ],
)
def test_validation_rows_that_cannot_be_read_are_an_error_that_leaves_nothing(tmp_path, rows, words):
    own = write_rows(tmp_path / "own.jsonl", rows)
    with pytest.raises(UserError, match=words):
        run_small(tmp_path / "run", *SFT, "data.max_length=128", f"data.validation={own}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_a_share_lies_between_0_and_1(share):
    with pytest.raises(UserError, match=r"validation_share between 0 and 1"):
        parse(f"data.validation_share={share}")


def test_rows_are_named_or_taken_out_and_not_both():
    with pytest.raises(UserError, match=r"validation_share"):
        parse("data.validation_share=0.1", "data.validation=rows.jsonl")


def test_a_selection_validates_only_during_training(tmp_path):
    assert select_recipe(small_recipe("data.limit=16", SHARE, "sft.eval_steps=1"), tmp_path / "run", Recorder())
    assert evaluations(tmp_path / "run", "sft") and not (tmp_path / "run/validation").exists()


def test_a_selection_needs_no_validation(tmp_path):
    assert select_recipe(small_recipe("data.limit=16", SHARE), tmp_path / "run", Recorder())
    assert not list((tmp_path / "run").glob("validation*"))
    assert json.loads((tmp_path / "run/data/manifest.json").read_text())["counters"]["examples"] < 16


EVALUATED = [SHARE, "sft.eval_steps=1", "joint.eval_steps=0.5"]
BEST = [SHARE, "sft.eval_steps=1", "sft.keep=best"]


def test_showing_the_loss_during_training_changes_no_key_and_keeping_the_best_model_does():
    shown, best = stage_keys(*EVALUATED), stage_keys(*BEST)
    assert shown == stage_keys(SHARE)
    assert shown.keys() == best.keys()
    untrained = {"data", "validation-data", "entropy/base", "validation/base", "eval/base/arithmetic"}
    assert {name for name in best if best[name] == shown[name]} == untrained
    for change in ("sft.eval_steps=2", "sft.patience=1"):
        assert stage_keys(*BEST, change)["sft"] != best["sft"]


def test_the_best_model_depends_on_the_validation_rows_and_the_last_one_does_not(tmp_path):
    rows = (f"data.validation={write_rows(tmp_path / f'{count}.jsonl', ROWS[-count:])}" for count in (3, 4))
    (few, few_best), (more, more_best) = ([stage_keys(one, *BEST[1:last])["sft"] for last in (2, 3)] for one in rows)
    assert few == more and few_best != more_best


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["sft.eval_steps=5"], "sft.eval_steps is set, but there are no validation rows; set data.validation"),
        (["joint.eval_steps=0.1"], "joint.eval_steps is set"),
        (["sft.keep=best"], "set sft.eval_steps .* and data.validation"),
        (["sft.keep=best", SHARE], r"set sft.eval_steps \(such as 0.1\)\.$"),
        ([*BEST[1:]], "sft.keep is best, which needs .*; set data.validation"),
        ([SHARE, "sft.eval_steps=1", "sft.patience=2"], "set keep: best"),
        ([*BEST, "sft.patience=2", "sft.snapshots=[0.5]"], "remove patience or snapshots"),
        ([*BEST, "sft.patience=2", "baselines=[sft_compute]"], "sft_compute is SFT at matched compute"),
        ([SHARE, "sft.eval_steps=1.5"], "expected a number of steps, such as 50, or a fraction"),
        ([SHARE, "sft.eval_steps=0"], "expected a number of steps"),
    ],
)
def test_a_recipe_that_cannot_be_evaluated_during_training_is_an_error(overrides, words):
    with pytest.raises(UserError, match=words):
        parse(*overrides)


@pytest.fixture(scope="session")
def evaluated(once):
    """WMSS on few rows with evaluations: the best M1, with a snapshot, and the last model of a round."""
    few = ["data.limit=40", "eval.benchmarks=[]", "baselines=[]", "sft.snapshots=[0.5]", "selection.enabled=false"]
    few += [f"{phase}.{size}=8" for phase in ("sft", "joint") for size in ("batch_size", "micro_batch_size")]
    return once(
        "evaluated-in-training",
        lambda root: run_small(root, *few, *EVALUATED, "sft.keep=best", "sft.learning_rate=0.01"),
    )


def evaluations(root, stage):
    rows = read_jsonl(root / stage / "metrics.jsonl")
    return {row["step"]: row["validation_loss"] for row in rows if "validation_loss" in row}


def test_losses_during_training_are_those_of_the_models_it_results_in(evaluated):
    root, _ = evaluated
    first, last = evaluations(root, "sft"), evaluations(root, "round-1/strong")
    best = read_json(root / "sft/manifest.json")["counters"]["best_step"]
    assert first[best] == min(first.values()) == pytest.approx(found(root, "sft")["loss"], rel=0.01)
    assert last[max(last)] == pytest.approx(found(root, "round-1")["loss"], rel=0.01)
    assert (root / "sft/snapshots/50/model.safetensors").is_file()


def test_the_figures_have_them_next_to_the_training_losses(evaluated):
    root, recorder = evaluated
    curves = {
        name: {row["x"]: row["y"] for row in figure.spec["data"]["values"] if row["name"] == name}
        for figure in loss_figures(load_run(root))
        for name in figure.spec["layer"][0]["encoding"]["color"]["scale"]["domain"]
    }
    expected = {"M1, after phase-1 SFT, validation": "sft", "strong alone, validation": "round-1/strong"}
    assert {name for name in curves if "validation" in name} == expected.keys()
    for name, stage in expected.items():
        assert curves[name] == pytest.approx(evaluations(root, stage))
    assert any("validation loss" in note for note in recorder.notes)


@pytest.mark.slow
def test_methods_are_compared_by_their_validation_loss_alone(tmp_path):
    few = ["data.limit=32", "eval.benchmarks=[]", SHARE, "sft.epochs=1"]
    compare_methods("demo", few, tmp_path, Recorder(), methods=["sft"], seeds=2)
    rows = {row["method"]: row for row in read_json(tmp_path / "comparison.json")["rows"]}
    assert list(rows) == ["base", "m1", "sft_restart", "sft"]
    for method, row in rows.items():
        assert row["seeds"] == ["42", "43"] and "score" not in row
        losses = [found(tmp_path / f"seed-{seed}", row["model"])["loss"] for seed in (42, 43)]
        assert row["validation"]["by_seed"] == pytest.approx(losses)
        assert row["validation"]["loss"] == pytest.approx(sum(losses) / 2)
        assert ("validation_against" in row) == (method != "sft_restart")
    difference = rows["sft"]["validation"]["loss"] - rows["sft_restart"]["validation"]["loss"]
    assert rows["sft"]["validation_against"]["difference"] == pytest.approx(difference)
    (line,) = [one for one in csv.DictReader((tmp_path / "comparison.csv").open()) if one["method"] == "sft"]
    assert float(line["validation_loss"]) == rows["sft"]["validation"]["loss"]
    page = write_compare([tmp_path]).read_text()
    assert "Lowest validation loss" in page and f"{rows['sft']['validation']['loss']:.4f}" in page
    runs = write_compare([tmp_path / "seed-42", tmp_path / "seed-43"], tmp_path / "runs.html").read_text()
    assert f"{rows['sft']['validation']['by_seed'][1]:.4f}" in runs


@pytest.mark.slow
def test_a_sweep_has_a_column_of_validation_losses(tmp_path):
    few = ["data.limit=32", "eval.benchmarks=[]", SHARE, "method=sft", "baselines=[]", "sft.epochs=1"]
    sweep_recipe("demo", few, tmp_path, Recorder(), grids=["sft.learning_rate=1e-4,1e-3"], seeds=1)
    summary = read_json(tmp_path / "sweep.json")["summary"]
    losses = {row["point"]: row["validation"]["loss"] for row in summary if row["role"] == "result"}
    assert len(set(losses.values())) == 2
    text = (tmp_path / "sweep.md").read_text()
    assert all(f"{loss:.4f}" in text for loss in losses.values()) and "validation loss" in text


def test_methods_are_compared_by_benchmarks_or_validation_rows(tmp_path):
    with pytest.raises(UserError, match=r"data.validation_share"):
        compare_methods("demo", ["eval.benchmarks=[]"], tmp_path, Recorder(), methods=["sft"], seeds=1)
