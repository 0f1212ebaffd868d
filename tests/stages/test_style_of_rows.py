"""Rows are trained on as they are, or in a style that they have to be written in."""

import json

import pytest

from command_line import weakdriven
from helpers import embedded_tokenizer, write_rows
from small_runs import demo_rows_once, run_small
from weakdriven.data.structure import follows_style
from weakdriven.errors import UserError
from weakdriven.models.load import EMBEDDED, load_model, load_tokenizer, locate_model
from weakdriven.runs.files import read_jsonl

ROWS = demo_rows_once("train")[:8]
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


def test_a_base_model_without_a_chat_template_is_trained_and_saved_with_the_plain_one(tmp_path):
    tokenizer = embedded_tokenizer()
    tokenizer.chat_template = None
    load_model(locate_model(EMBEDDED), precision="fp32").save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    run_small(tmp_path / "run", *SFT, path_of(tmp_path, ROWS), f"model={tmp_path / 'base'}")
    saved = load_tokenizer(tmp_path / "run/baselines/sft")
    text = saved.apply_chat_template([{"role": "user", "content": "1+1?"}], tokenize=False, add_generation_prompt=True)
    (sample,) = read_jsonl(tmp_path / "run/eval/baseline-sft/arithmetic/samples.jsonl")
    assert text == "User:\n1+1?\n\nAssistant:\n"
    assert sample["prompt"].startswith("User:\n") and sample["prompt"].endswith("\n\nAssistant:\n")


@pytest.mark.parametrize(
    "rows, settings",
    [
        (ROWS, {}),
        (ROWS, {"style": "tagged"}),
        ([*ROWS, ROWS[0] | {"id": "empty", "solution": " "}], {}),
        ([*ROWS, ROWS[0] | {"id": "empty", "solution": " "}], {"empty_completions": "drop"}),
        ([*ROWS, ROWS[0] | {"id": "long", "question": "why " * 300}], {}),
        ([*ROWS, ROWS[0] | {"id": "long", "question": "why " * 300}], {"long_prompts": "drop"}),
        ([*ROWS, ROWS[0] | {"id": "long", "solution": "2 " * 900}], {}),
        ([*ROWS, ROWS[0] | {"id": "long", "solution": "2 " * 900}], {"max_length": 4096}),
        ([*ROWS, ROWS[0]], {}),
        ([*ROWS, {"prompt": "1+1?", "completion": "2"}], {}),
    ],
    ids=["good", "style", "empty", "empty dropped", "long", "long dropped", "cut", "positions", "twice", "layout"],
)
def test_data_show_exits_with_2_exactly_where_a_run_stops(tmp_path, rows, settings):
    settings = {"max_length": 256} | settings
    path = path_of(tmp_path, rows)
    options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    shown = weakdriven("data", "show", path.partition("=")[2], "--model", EMBEDDED, *options)
    stops = False
    try:
        overrides = ["eval.benchmarks=[]", *(f"data.{name}={value}" for name, value in settings.items())]
        run_small(tmp_path / "run", *SFT, path, *overrides)
    except UserError:
        stops = True
    said = "Training would stop" in shown.out or shown.err.startswith("Error: ")
    assert shown.code == (2 if stops else 0) and said == stops


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
