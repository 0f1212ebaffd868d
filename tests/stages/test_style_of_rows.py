"""Rows are trained on as they are, or in a style that they have to be written in."""

import json

import pytest

from conftest import run_small
from helpers import write_rows
from weakdriven.data.demo import demo_rows
from weakdriven.data.structure import follows_style
from weakdriven.errors import UserError
from weakdriven.runs.files import read_jsonl

ROWS = demo_rows("train")[:8]
SFT = ["method=sft", "baselines=[]", "sft.epochs=1", "eval.limit=1", "eval.max_new_tokens=2"]


def tagged(row):
    return row | {"solution": f"<think>so</think><answer>{row['solution']}</answer>"}


def path_of(tmp_path, rows):
    return "data.path=" + write_rows(tmp_path / "rows.jsonl", rows)


@pytest.mark.parametrize("count, share", [(0, "0 of 8 (0%)"), (3, "3 of 8 (38%)")])
def test_completions_in_another_style_are_an_error_that_leaves_nothing(tmp_path, count, share):
    path = path_of(tmp_path, [*map(tagged, ROWS[:count]), *ROWS[count:]])
    with pytest.raises(UserError, match=r"data\.style is tagged") as caught:
        run_small(tmp_path / "run", *SFT, path, "data.style=tagged")
    assert share in str(caught.value) and not (tmp_path / "run").exists()


def test_half_of_the_completions_in_the_style_are_enough_and_rows_with_a_prompt_of_their_own_do_not_count(tmp_path):
    system = {"role": "system", "content": "Mine."}
    own = [
        {"messages": [system, {"role": "user", "content": r["question"]}, {"role": "assistant", "content": "2"}]}
        for r in ROWS
    ]
    asked = [
        {"messages": [{"role": "user", "content": r["question"]}, {"role": "assistant", "content": r["solution"]}]}
        for r in (tagged(ROWS[0]), ROWS[1])
    ]
    run_small(tmp_path / "run", *SFT, path_of(tmp_path, [*own, *asked]), "data.style=tagged")
    assert json.loads((tmp_path / "run/data/manifest.json").read_text())["counters"]["examples"] == 10


def test_a_system_prompt_of_ones_own_is_trained_and_evaluated(tmp_path):
    run_small(tmp_path / "run", *SFT, path_of(tmp_path, ROWS), "data.system_prompt=Be kind.")
    (sample,) = read_jsonl(tmp_path / "run/eval/base/arithmetic/samples.jsonl")
    assert sample["prompt"].startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")
    plain = json.loads((tmp_path / "run/data/manifest.json").read_text())
    assert plain["settings"]["system_prompt"] == "Be kind."


@pytest.mark.parametrize(
    "completion, domain, style, follows",
    [
        ("<think>a</think> <answer>b</answer>", "math", "tagged", True),
        ("<think>a</think> b", "math", "tagged", False),
        ("b", "code", "tagged", False),
        (r"It is \boxed{2}.", "math", "tag-free", True),
        ("It is 2.", "math", "tag-free", False),
        (r"<think>a</think> \boxed{2}", "math", "tag-free", False),
        ("print(2)", "code", "tag-free", True),
        ("<answer>print(2)</answer>", "code", "tag-free", False),
        ("The answer is (B).", "logic", "tag-free", True),
        ("So **the answer is: B**", "logic", "tag-free", True),
        ("B because the answer is bold.", "logic", "tag-free", False),
        ("anything", "math", "plain", True),
    ],
)
def test_what_each_style_asks_of_a_completion(completion, domain, style, follows):
    assert follows_style(completion, domain, style) is follows
