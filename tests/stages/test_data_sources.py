"""Training rows of other kinds of sources, through the data stage of a run."""

import pytest

from helpers import write_rows
from recipe_cases import stage_keys
from small_runs import Recorder, small_recipe
from weakdriven.errors import UserError
from weakdriven.pipeline.run import carry_out
from weakdriven.runs.files import read_json
from weakdriven.stages.data import data_stage


def build(root, *overrides):
    """The counters of a run's data stage, which is all that is run."""
    shared = ("eval.benchmarks=[]", "method=sft", "baselines=[]")
    carry_out(small_recipe(*shared, *overrides), root, Recorder(), data_stage)
    return read_json(root / "data/manifest.json")["counters"]


def test_plain_text_is_trained_on_and_has_no_prompts_to_generate_completions_of(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"text": "One day, a cat."}, {"text": "One night, two cats."}])
    counters = build(tmp_path / "run", f"data.path={path}")
    assert (counters["layout"], counters["examples"]) == ("text", 2)
    assert counters["supervised_tokens"] == counters["tokens"] - 2
    with pytest.raises(UserError, match="plain text without prompts"):
        build(tmp_path / "spin", f"data.path={path}", "method=spin")


def two_sources(folder, *, weights=(3, 1)):
    rows = [{"id": str(i), "prompt": f"What is {i}?", "completion": str(i)} for i in range(60)]
    first = write_rows(folder / "sums.jsonl", rows)
    (folder / "chats.csv").write_text("ask,reply\n" + "".join(f"Hello {i},Hi {i}\n" for i in range(10)))
    fields = "{prompt: ask, completion: reply}"
    second = f"path: {folder}/chats.csv, weight: {weights[1]}, fields: {fields}"
    return f"data=[{{path: {first}, weight: {weights[0]}}}, {{{second}}}]"


def test_a_mixture_is_counted_by_source_and_is_the_same_for_every_seed(tmp_path):
    data = two_sources(tmp_path)
    counters = build(tmp_path / "one", data)
    assert counters["sources"]["sums"] | {"path": ""} == {
        **{"path": "", "layout": "prompt/completion"},
        **{"rows": 60, "used": 30, "examples": 30},
    }
    assert [counters["sources"]["chats"][name] for name in ("rows", "used", "examples")] == [10, 10, 10]
    assert (counters["rows_read"], counters["examples"]) == (40, 40)
    build(tmp_path / "two", data, "seed=7")
    examples = [(tmp_path / run / "data/examples.jsonl").read_bytes() for run in ("one", "two")]
    assert examples[0] == examples[1]


def test_rows_that_are_dropped_are_counted_by_source(tmp_path):
    good, blank = {"prompt": "1?", "completion": "1"}, {"prompt": "2?", "completion": " "}
    paths = write_rows(tmp_path / "a.jsonl", [good, blank, blank]), write_rows(tmp_path / "b.jsonl", [good, good])
    data = f"data.sources=[{{path: {paths[0]}}}, {{path: {paths[1]}}}]"
    with pytest.raises(UserError, match=r"a\.jsonl.*there is no completion"):
        build(tmp_path / "run", data)
    counters = build(tmp_path / "run", data, "data.empty_completions=drop")
    assert {name: (one["used"], one["examples"]) for name, one in counters["sources"].items()} == {
        "a": (3, 1),
        "b": (2, 2),
    }
    with pytest.raises(UserError, match=r"b\.jsonl: there are no rows to train on"):
        write_rows(tmp_path / "b.jsonl", [])
        build(tmp_path / "run", data)


def test_the_key_follows_what_decides_the_rows(tmp_path):
    data = two_sources(tmp_path)
    key = stage_keys(data)["data"]
    assert key == stage_keys(data, "seed=7")["data"] != stage_keys(two_sources(tmp_path, weights=(2, 1)))["data"]
    path = tmp_path / "sums.jsonl"
    alone = stage_keys("data.limit=null", f"data.path={path}")["data"]
    assert alone == stage_keys(f"data=[{{path: {path}}}]")["data"]
    assert alone != stage_keys(f"data=[{{path: {path}, fields: {{answer: id}}}}]")["data"]
    with (tmp_path / "chats.csv").open("a") as file:
        file.write("Hello,Hi\n")
    assert stage_keys(data)["data"] != key


def test_a_source_that_cannot_be_read_is_found_before_the_model_is_looked_at(tmp_path):
    empty = write_rows(tmp_path / "empty.jsonl", [])
    with pytest.raises(UserError, match=r"empty\.jsonl: there are no rows"):
        build(tmp_path / "run", f"data.path={empty}", "model=no/such-model")
    assert not (tmp_path / "run").exists()
