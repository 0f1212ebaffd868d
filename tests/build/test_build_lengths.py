"""`weakdriven data build max_tokens=...`: rows are as long as a run would train on them."""

import json
import sys

import pytest

from helpers import build_settings, embedded_tokenizer, write_rows
from weakdriven.build import rows as verifying
from weakdriven.build.build import build
from weakdriven.commands.app import main
from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.sources import load_examples
from weakdriven.data.tokenize import tokenize, write_tokens
from weakdriven.errors import UserError

QUESTIONS = ["What is 1+3?", "How many legs has a dog?", "What is the square root of sixteen?"]


def row(question, words, **fields):
    said = f"<think>{'hm ' * words}</think> <answer>\\boxed{{4}}</answer>"
    return {"id": question, "question": question, "solution": said, "answer": "4", **fields}


@pytest.fixture
def path(tmp_path):
    rows = [row(question, words) for question, words in zip(QUESTIONS, (1, 30, 60), strict=True)]
    return write_rows(tmp_path / "raw.jsonl", rows)


def lengths(path, style):
    renderer = Renderer(embedded_tokenizer(), "math", style)
    return [len(tokenize(example, renderer)["input_ids"]) for example in load_examples(path, domain="math")]


def settings(path, **changes):
    return build_settings("math", path, **{"tokenizer": "embedded:base", **changes})


def test_rows_with_more_tokens_are_dropped_and_the_others_are_not_cut_in_training(path, tmp_path):
    limit = lengths(path, "tagged")[1]
    funnel = build(settings(path, max_tokens=limit), tmp_path / "out")
    dropped = funnel["dropped"]
    assert (funnel["kept"], {reason: one["rows"] for reason, one in dropped.items()}) == (2, {"too long": 1})
    assert dropped["too long"]["first"] == [{"id": QUESTIONS[2], "detail": f"{lengths(path, 'tagged')[2]} tokens"}]
    assert funnel["settings"]["max_tokens"] == limit
    kept, renderer = tmp_path / "out" / "train.jsonl", Renderer(embedded_tokenizer(), "math", "tagged")
    told = write_tokens(
        load_examples(str(kept)), renderer, tmp_path / "t.arrow", max_length=limit, long_prompts="error"
    )
    assert (told["examples"], told["truncated"]) == (2, 0)
    assert build(settings(path, max_tokens=limit - 1), tmp_path / "less")["kept"] == 1


def test_tokens_are_counted_with_the_system_prompt_and_without_the_tags_that_a_style_removes(path, tmp_path):
    limit = lengths(path, "tagged")[1]
    build(settings(path, max_tokens=limit, style="tag-free"), tmp_path / "free")
    free = [example.id for example in load_examples(str(tmp_path / "free" / "train.jsonl"))]
    renderer = Renderer(embedded_tokenizer(), "math", "tag-free")
    all_free = tmp_path / "all"
    build(settings(path, max_tokens=9999, style="tag-free"), all_free)
    rows = load_examples(str(all_free / "train.jsonl"))
    assert len(rows) == 3
    assert free == [one.id for one in rows if len(tokenize(one, renderer)["input_ids"]) <= limit]


def test_a_conversation_that_the_template_refuses_is_a_malformed_row(path, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.content == '"
        + QUESTIONS[0]
        + "' %}{{ raise_exception('not this') }}{% endif %}"
        "{{ m.content }}<|im_end|>{% endfor %}"
    )
    funnel = build(settings(path, max_tokens=9999, chat_template=str(template)), tmp_path / "out")
    assert funnel["kept"] == 2 and "not this" in funnel["dropped"]["malformed row"]["first"][0]["detail"]


def test_another_limit_or_template_verifies_again_and_the_same_does_not(path, tmp_path, monkeypatch):
    blocks, verify_block = [], verifying.verify_block
    monkeypatch.setattr(verifying, "verify_block", lambda *given: (blocks.append(1), verify_block(*given))[1])
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    counts = []
    asked = [{}, {"max_tokens": 9999}, {"max_tokens": 9999}, {"max_tokens": 999}]
    for changes in [*asked, {"max_tokens": 999, "chat_template": str(template)}]:
        build(settings(path, **({"tokenizer": None} if not changes else {}), **changes), tmp_path / "out")
        counts.append(len(blocks))
    assert counts == [1, 2, 2, 3, 4]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"max_tokens": 9, "tokenizer": None}, "max_tokens and tokenizer need each other"),
        ({}, "max_tokens and tokenizer need each other"),
        ({"tokenizer": None, "chat_template": "gemma"}, "chat_template needs both"),
        ({"max_tokens": 9, "tokenizer": "./nowhere"}, r"no model folder ./nowhere"),
        ({"max_tokens": 9, "chat_template": "gemma"}, r"chat_template: gemma writes <start_of_turn>"),
    ],
)
def test_what_cannot_count_tokens_is_an_error_before_any_work(path, tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        build(settings(path, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_logic_has_no_completions_to_count(path):
    with pytest.raises(UserError, match="logic has none without a teacher"):
        build_settings("logic", path, max_tokens=9, tokenizer="embedded:base")


def test_the_command_takes_both_settings(path, tmp_path, monkeypatch, capsys):
    words = ["--output", str(tmp_path / "out"), "--benchmarks", "none", "--quiet"]
    words += [f"max_tokens={lengths(path, 'tagged')[0]}", "tokenizer=embedded:base"]
    monkeypatch.setattr(sys, "argv", ["weakdriven", "data", "build", "math", path, *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (0, None) and "- too long" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "funnel.json").read_text())["kept"] == 1
