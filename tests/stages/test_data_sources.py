"""Training rows of other kinds of sources, through the data stage of a run."""

import pytest

from conftest import Recorder, small_recipe
from helpers import write_rows
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
