"""Benchmark questions in the training rows of a run: an error before training, left out, or allowed."""

import json

import pytest

from helpers import write_rows
from recipe_cases import stage_keys
from small_runs import Recorder, demo_rows_once, run_small, small_recipe
from weakdriven.errors import UserError
from weakdriven.pipeline.run import select_recipe
from weakdriven.runs.files import read_jsonl

TRAIN, TEST = demo_rows_once("train")[:8], demo_rows_once("test")
LEAKED = TEST[400] | {"id": "leak", "question": TEST[400]["question"].upper()}
"""An item beyond eval.limit: it is held out all the same."""
SFT = ["method=sft", "baselines=[]", "eval.limit=1", "eval.max_new_tokens=2"]


@pytest.fixture
def leaky(tmp_path):
    return "data.path=" + write_rows(tmp_path / "leaky.jsonl", [*TRAIN[:3], LEAKED, *TRAIN[3:]])


def counters(root):
    return json.loads((root / "data/manifest.json").read_text())["counters"]


def ids(root):
    return [row["id"] for row in read_jsonl(root / "data/examples.jsonl")]


def data_key(*overrides):
    return stage_keys(*overrides)["data"]


def test_a_benchmarks_question_in_the_training_rows_is_an_error_that_leaves_nothing(leaky, tmp_path):
    with pytest.raises(UserError, match=r"1 of 9 training rows .*'leak' \(arithmetic-test-400"):
        run_small(tmp_path / "run", *SFT, leaky)
    assert not (tmp_path / "run").exists()


def test_held_out_rows_can_be_dropped_or_allowed_and_are_compared_again_once_they_are_not(leaky, tmp_path):
    root, fast = tmp_path / "run", "sft.epochs=1"
    run_small(tmp_path / "drop", *SFT, leaky, fast, "data.held_out=drop")
    found = counters(tmp_path / "drop")
    assert (found["examples"], found["dropped_held_out"], found["rows_read"]) == (8, 1, 9)
    assert ids(tmp_path / "drop") == [row["id"] for row in TRAIN]
    run_small(root, *SFT, leaky, fast, "data.held_out=allow")
    assert "leak" in ids(root) and "held_out" not in counters(root)
    before = (root / "recipe.yaml").read_text()
    with pytest.raises(UserError, match=r"1 of 9 training rows"):
        run_small(root, *SFT, leaky)
    assert (root / "recipe.yaml").read_text() == before, "the existing run was touched"


def test_rows_are_compared_when_a_benchmark_is_added_and_not_tokenised_again(tmp_path):
    root, clean = tmp_path / "run", "data.path=" + write_rows(tmp_path / "rows.jsonl", TRAIN)
    run_small(root, *SFT, clean, "eval.benchmarks=[]")
    assert "held_out" not in counters(root)
    again = run_small(root, *SFT, clean)
    assert again.skipped[:2] == ["data", "baselines/sft"] and next(iter(again.ran)).startswith("eval/")
    assert counters(root)["held_out"]
    manifest = (root / "data/manifest.json").read_bytes()
    run_small(root, *SFT, clean)
    assert (root / "data/manifest.json").read_bytes() == manifest


def test_only_where_rows_are_left_out_do_the_questions_decide_the_tokens():
    key = data_key()
    assert key == data_key("eval.benchmarks=[]") == data_key("data.held_out=allow")
    assert key == data_key("data.held_out=drop", "eval.benchmarks=[]")
    assert key != data_key("data.held_out=drop") == data_key("data.held_out=drop", "eval.limit=3")


def test_a_selection_without_the_benchmarks_files_warns(tmp_path, caplog):
    there = ["data.limit=16", "baselines=[]", "eval.benchmarks=[gsm8k]", f"eval.data_dir={tmp_path}"]
    assert select_recipe(small_recipe(*there), tmp_path / "run", Recorder())
    told = [record.message for record in caplog.records if "not compared with the benchmarks" in record.message]
    assert len(told) == 1 and "have no gsm8k.jsonl" in told[0]
    with pytest.raises(UserError, match=r"have no gsm8k.jsonl"):
        select_recipe(small_recipe(*there, "data.held_out=drop"), tmp_path / "other", Recorder())
