"""What every tokenizer has to give, on the demo's and, where they are present, on real ones.

`WEAKDRIVEN_MODELS` names a folder that holds some of the model folders in REAL; only their tokenizers are read.
"""

import os
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from helpers import embedded_tokenizer, gemma_tokenizer
from weakdriven.config.evaluation import EvalSettings
from weakdriven.data.example import DOMAINS, Example
from weakdriven.data.prompts import SYSTEM_PROMPTS, Renderer, give_chat_template, with_request
from weakdriven.data.rows.layouts import as_example
from weakdriven.data.tokenize import IGNORE, load_tokens, split_turns, tokenize, write_tokens
from weakdriven.errors import UserError
from weakdriven.eval import test_sets
from weakdriven.eval.benchmarks import as_item
from weakdriven.eval.run import prepare_task
from weakdriven.models.load import load_tokenizer

FOLDER = os.environ.get("WEAKDRIVEN_MODELS")
REAL = {"smollm2-135m": None, "qwen2.5-coder-0.5b": None, "gemma-3-270m": "gemma"}
"""Folder and the shipped chat template it needs; the base of Gemma-3 has none of its own."""


def real(name):
    there = FOLDER is not None and (Path(FOLDER) / name).is_dir()
    skip = pytest.mark.skipif(not there, reason=f"WEAKDRIVEN_MODELS does not name a folder with {name}")
    return pytest.param(name, marks=[pytest.mark.slow, skip])


every_tokenizer = pytest.mark.parametrize("name", ["demo", "demo as gemma", *map(real, REAL)])
every_prompt = pytest.mark.parametrize("domain, style", [*SYSTEM_PROMPTS, *((one, "plain") for one in DOMAINS)])
QUESTION = "Ann has 3 pens and buys 4 more. How many pens?"
ASK = [{"role": "user", "content": QUESTION}]
COMPLETIONS = [
    "<think>\n3 + 4 = 7\n</think>\n\n<answer>\\boxed{7}</answer>",
    " a leading space, and a trailing one ",
    "\n\n  def f(x):\n\treturn x  # two  spaces\n",
    "one\r\ntwo\r\n",
    "naïve – 日本語 ｘ² ∑ 🙂👩‍👩‍👧 العربية",
    "7 . It ' s 7 , isn't it ?",
    "1234567.89",
]


@cache
def tokenizer_of(name):
    if name.startswith("demo"):
        return gemma_tokenizer() if name == "demo as gemma" else embedded_tokenizer()
    tokenizer = load_tokenizer(Path(str(FOLDER)) / name)
    give_chat_template(tokenizer, REAL[name], name)
    return tokenizer


def renderer_of(name, domain="math", style="plain"):
    return Renderer(tokenizer_of(name), domain, style)


def is_gemma(name):
    return "gemma" in name


def ids_of(text, renderer):
    return renderer.tokenizer(text, add_special_tokens=False)["input_ids"]


def learned(row, renderer):
    """The supervised texts of a row, each run of labels decoded."""
    runs = groupby(row["labels"], key=lambda label: label != IGNORE)
    return [renderer.tokenizer.decode(list(run)) for supervised, run in runs if supervised]


@every_tokenizer
@every_prompt
def test_the_system_text_stands_once_in_a_prompt_and_in_the_users_turn_of_gemma(name, domain, style):
    renderer = renderer_of(name, domain, style)
    text, system = renderer.prompt(ASK), SYSTEM_PROMPTS.get((domain, style), "")
    assert text.count(QUESTION) == 1
    if system:
        assert text.count(system) == 1 and text.index(system) < text.index(QUESTION)
    if is_gemma(name):
        assert "system" not in text and text.count("<start_of_turn>user\n") == 1
        lead = f"{system}\n\n" if system else ""
        assert f"<start_of_turn>user\n{lead}{QUESTION}<end_of_turn>" in text
    renderer.check()
    assert renderer.warning == ""


@every_tokenizer
@every_prompt
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_exactly_the_completion_and_the_end_of_its_turn_are_learned(name, domain, style, completion):
    renderer = renderer_of(name, domain, style)
    row = tokenize(Example("a", ASK, completion), renderer)
    prompt, reply = ids_of(renderer.prompt(ASK), renderer), ids_of(completion + renderer.end_of_turn, renderer)
    assert row["input_ids"] == prompt + reply
    assert row["labels"] == [IGNORE] * len(prompt) + reply
    assert learned(row, renderer) == [completion + renderer.end_of_turn]
    assert renderer.tokenizer.decode(prompt) == renderer.prompt(ASK)


@every_tokenizer
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_the_end_of_a_turn_is_one_special_token_that_stops_generation(name, completion):
    renderer = renderer_of(name)
    row = tokenize(Example("a", ASK, completion), renderer)
    end = ids_of(renderer.end_of_turn, renderer)
    assert renderer.end_of_turn == ("<end_of_turn>" if is_gemma(name) else "<|im_end|>")
    assert end == [renderer.tokenizer.convert_tokens_to_ids(renderer.end_of_turn)]
    assert renderer.tokenizer.added_tokens_decoder[end[0]].special
    assert row["labels"][-1] == end[0] and end[0] in renderer.stop_ids
    assert [label for label in row["labels"] if label in renderer.stop_ids] == end


@every_tokenizer
@every_prompt
def test_the_text_begins_once(name, domain, style):
    """Gemma's template writes the begin of text itself, and the tokenizer would add another."""
    renderer = renderer_of(name, domain, style)
    bos, text = renderer.tokenizer.bos_token, renderer.prompt(ASK)
    row = tokenize(Example("a", ASK, "7"), renderer)
    if is_gemma(name):
        assert text.startswith(bos) and text.count(bos) == 1
        assert row["input_ids"].index(renderer.tokenizer.bos_token_id) == 0
    if bos is not None:  # ChatML's tokenizers may name the mark of a turn here
        assert row["input_ids"].count(renderer.tokenizer.bos_token_id) == text.count(bos)


TURNS = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "It is 2.🙂"},
    {"role": "user", "content": "And 2+2?\r\nBe brief."},
    {"role": "assistant", "content": "4\r\n(four)"},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": " Bye!\n"},
]


@every_tokenizer
@every_prompt
@pytest.mark.parametrize("own", [[], [{"role": "system", "content": "Only mine."}]], ids=["ours", "own"])
def test_every_reply_of_a_conversation_is_learned_and_no_question(name, domain, style, own):
    renderer, example = renderer_of(name, domain, style), as_example({"messages": [*own, *TURNS]}, 1, "f")
    row = tokenize(example, renderer)
    assert split_turns(example, renderer)[1] == 0
    assert learned(row, renderer) == [turn["content"] + renderer.end_of_turn for turn in TURNS[1::2]]
    whole, system = renderer.tokenizer.decode(row["input_ids"]), SYSTEM_PROMPTS.get((domain, style))
    assert whole.count("Only mine.") == len(own)
    if system:
        assert whole.count(system) == 1 - len(own)
    assert sum(label in renderer.stop_ids for label in row["labels"]) == 3


@every_tokenizer
def test_spaces_around_past_replies_are_learned_unless_the_template_trims_them(name):
    spaced = [turn | {"content": f" {turn['content'].strip()}\n"} for turn in TURNS]
    renderer = renderer_of(name)
    said = [turn["content"] for turn in spaced[1::2]]
    if is_gemma(name):  # its template trims what is past; the last reply never goes through it
        said[:2] = [text.strip() for text in said[:2]]
    row = tokenize(as_example({"messages": spaced}, 1, "f"), renderer)
    assert learned(row, renderer) == [text + renderer.end_of_turn for text in said]


@every_tokenizer
def test_a_long_row_is_cut_on_the_right_at_the_limit_and_counted(name, tmp_path):
    renderer = renderer_of(name, "math", "tagged")
    examples = [Example("short", ASK, "7"), Example("long", ASK, "7 and " * 50)]
    whole = [tokenize(example, renderer) for example in examples]
    limit = len(whole[0]["input_ids"]) + 10
    path = tmp_path / "t.arrow"
    counters = write_tokens(examples, renderer, path, max_length=limit, long_prompts="error")
    short, long = load_tokens(path).to_list()
    assert (counters["examples"], counters["truncated"], counters["dropped_long_prompts"]) == (2, 1, 0)
    assert short | {"unlearned": 0} == whole[0] and (short["truncated"], long["truncated"]) == (False, True)
    assert [long[key] for key in ("input_ids", "labels")] == [whole[1][key][:limit] for key in ("input_ids", "labels")]
    prompt = len(ids_of(renderer.prompt(ASK), renderer))
    with pytest.raises(UserError, match=r"2 rows have prompts of data.max_length=\d+ tokens or more \(first: id 'sh"):
        write_tokens(examples, renderer, path, max_length=prompt, long_prompts="error")


ROWS = {
    "math": ("arithmetic", {"id": "m", "question": f" {QUESTION}\n", "answer": "7"}),
    "code": (
        "humaneval_plus",
        {
            "id": "c",
            "prompt": 'def f(x):\n    """Twice x – é🙂."""\n',
            "entry_point": "f",
            "test": "def check(f): assert f(1) == 2",
            "test_style": "check",
        },
    ),
    "logic": (
        "logiqa2",
        {
            "id": "l",
            "context": "All cats sleep.\r\nTom is a cat.",
            "question": "What follows?",
            "options": ["Tom sleeps.", "Tom – 🙂", " c ", "d"],
            "answer": "A",
        },
    ),
}


@every_tokenizer
@every_prompt
def test_a_row_is_trained_with_the_prompt_that_evaluation_asks(name, domain, style, monkeypatch):
    """The renderer is that of a math recipe; the benchmark and the row bring the domain.

    In style plain the benchmark also asks for the form of its answer, and the row does not."""
    benchmark, row = ROWS[domain]
    item = as_item(benchmark, row, "f")
    monkeypatch.setattr(test_sets, "load_items", lambda benchmark, data_dir: [item])
    renderer = renderer_of(name, "math", style)
    task = prepare_task(benchmark, renderer, EvalSettings(), seed=0)
    example = as_example(row | {"solution": "7", "domain": domain}, 1, "f")
    if style == "plain" and benchmark != "arithmetic":
        assert SYSTEM_PROMPTS[domain, "tag-free"] not in renderer.prompt(example.prompt, domain)
        asked = {"role": "user", "content": with_request(example.prompt[0]["content"], domain, style)}
        assert SYSTEM_PROMPTS[domain, "tag-free"] in asked["content"]
        example = replace(example, prompt=[asked])
    (before, supervised), (reply, _) = split_turns(example, renderer)[0]
    assert (before.encode(), supervised, reply) == (task.prompts[0].encode(), False, "7" + renderer.end_of_turn)
    assert tokenize(example, renderer)["input_ids"] == task.prompt_ids[0] + ids_of(reply, renderer)
    assert task.sampling.stop_ids == tuple(renderer.stop_ids)
