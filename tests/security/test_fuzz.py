"""A few of the fuzzer's inputs at every test run, the same each time, and what its campaigns found."""

import json
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import fuzz

from report_runs import finish, own_part
from run_files import put
from weakdriven.config.sweep import axes_of
from weakdriven.data.rows.sources import load_examples
from weakdriven.errors import UserError
from weakdriven.report import write_report
from weakdriven.runs.directory import DIAGNOSIS_VERSION


@pytest.mark.parametrize("inputs", [20, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_odd_inputs_end_well_or_in_a_sentence(target, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fuzz, "LIMIT", 120)  # a worker of the grader may take long to start on a busy machine
    tally = fuzz.fuzz(target, inputs, shrink=False)
    assert not tally.defects, "\n".join(tally.defects.values())
    assert tally.inputs >= 0.9 * inputs


def test_the_fuzzer_sees_a_crash_and_a_hang(monkeypatch):
    def crash(value):
        if len(value) > 2:
            raise KeyError(value)

    def hang(value):
        while value:
            pass

    for name, target, error in (("crash", crash, "KeyError"), ("hang", hang, "TooSlow")):
        monkeypatch.setitem(fuzz.TARGETS, name, (target, fuzz.st.text()))
        (where,) = fuzz.fuzz(name, 50, shrink=False).defects
        assert where.startswith(error)
        monkeypatch.setattr(fuzz, "LIMIT", 0.2)


@pytest.mark.parametrize("value", [[], [{"role": "user", "content": "a"}] * 2])
def test_an_instruction_of_no_or_several_messages_raises_an_error(tmp_path, value):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"instruction": value, "output": "x"}), encoding="utf-8")
    with pytest.raises(UserError, match="row 1, instruction: expected a text"):
        load_examples(str(path))


@pytest.mark.parametrize("scores", [{"pass_at_k": {"x": 0.5}}, {"accuracy": {"<b>": 1}}, {"interval": [1]}])
def test_scores_that_someone_changed_are_reported_in_one_line(tmp_path, scores):
    finish(tmp_path)
    path = tmp_path / "eval/base/arithmetic/scores.json"
    put(path, json.loads(path.read_text()) | scores)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("has contents that weakdriven does not write") == 1 and "<b>" not in own_part(page)


def test_a_diagnosis_in_another_shape_is_reported_and_the_rest_is_shown(tmp_path):
    finish(tmp_path)
    put(tmp_path / "diagnostics/logits.json", {"facts": {"version": DIAGNOSIS_VERSION, "models": {}}, "models": {}})
    put(tmp_path / "diagnostics/gradients.json", {"pairs": {}})
    put(tmp_path / "diagnostics/drift.json", {"models": {}})
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "diagnostics cannot be shown (KeyError" in page and "weakdriven diagnose" in page


@pytest.mark.parametrize("value", ["!!binary =", "!!set {x}", "{? [a]: b}"])
def test_a_value_that_json_cannot_express_is_no_value_of_a_sweep(value):
    with pytest.raises(UserError, match="not a list of values"):
        axes_of([f"method={value}"])
