"""Conversations: every reply of the assistant is learned with its end, after the text that the template puts before."""

import hashlib
import json

import pytest

from helpers import demo_examples, embedded_tokenizer, gemma_tokenizer
from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.layouts import as_example
from weakdriven.data.tokenize import IGNORE, load_tokens, split_turns, tokenize, unlearned_warning, write_tokens
from weakdriven.errors import UserError

TURNS = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 2+2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "Bye!"},
]
REPLIES = ["2<|im_end|>", "It is 4.<|im_end|>", "Bye!<|im_end|>"]
FORGETS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content if loop.last or m.role != 'assistant' else m.content.split('</think>')[-1] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Like Qwen3's: the thinking of past replies is left out."""
NO_END = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ALTERNATES = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}<|im_end|>{% endfor %}"""


def renderer(template=None, style="plain"):
    tokenizer = gemma_tokenizer() if template == "gemma" else embedded_tokenizer()
    if template not in (None, "gemma"):
        tokenizer.chat_template = template
    return Renderer(tokenizer, "math", style)


def talk(turns, **fields):
    return as_example({"messages": turns, **fields}, 1, "f")


def learned(example, asked, max_length=None):
    """The supervised texts of a row, each run of labels decoded."""
    row, runs = tokenize(example, asked, max_length), []
    for place, label in enumerate(row["labels"]):
        if label == IGNORE:
            continue
        if place == 0 or row["labels"][place - 1] == IGNORE:
            runs.append([])
        runs[-1].append(label)
    assert all(label in (IGNORE, token) for label, token in zip(row["labels"], row["input_ids"], strict=True))
    return [asked.tokenizer.decode(run) for run in runs]


@pytest.mark.parametrize("style", ["plain", "tagged"])
def test_every_reply_is_learned_with_the_end_of_its_turn_and_nothing_else(style):
    asked = renderer(style=style)
    assert learned(talk(TURNS), asked) == REPLIES


@pytest.mark.parametrize("template", [None, "gemma"])
def test_the_text_before_a_reply_is_what_the_template_renders_before_it(template):
    asked, example = renderer(template, "tagged"), talk(TURNS)
    pieces, unlearned = split_turns(example, asked)
    assert unlearned == 0 and [supervised for _, supervised in pieces] == [False, True] * 3
    for number, place in enumerate((1, 3, 5)):
        before = "".join(text for text, _ in pieces[: 2 * number + 1])
        assert before == asked.prompt(TURNS[:place])
        assert pieces[2 * number + 1][0] == TURNS[place]["content"] + asked.end_of_turn


def test_sharegpt_conversations_are_learned_alike():
    names = {"user": "human", "assistant": "gpt"}
    turns = [{"from": names[turn["role"]], "value": turn["content"]} for turn in TURNS]
    shared = as_example({"conversations": turns}, 1, "f")
    assert shared == talk(TURNS)


def test_replies_in_a_field_called_prompt_are_read_unless_the_row_says_otherwise():
    row = {"prompt": TURNS[:-1], "completion": "Bye!"}
    assert learned(as_example(row, 1, "f"), renderer()) == REPLIES[-1:]
    assert learned(as_example(row | {"all_turns": True}, 1, "f"), renderer()) == REPLIES
    plain = tokenize(as_example(row, 1, "f"), renderer())["input_ids"]
    assert plain == tokenize(talk(TURNS), renderer())["input_ids"]


def test_a_template_that_trims_past_replies_lets_them_be_learned():
    spaced = [turn | {"content": f" {turn['content']}\n"} for turn in TURNS]
    ends = [turn["content"] + "<end_of_turn>" for turn in TURNS[1:4:2]]
    assert learned(talk(spaced), renderer("gemma")) == [*ends, " Bye!\n<end_of_turn>"]


def test_replies_that_the_template_rewrites_are_read_and_counted(tmp_path):
    thinking = [*TURNS]
    thinking[3] = {"role": "assistant", "content": "<think>hm</think>It is 4."}
    example, asked = talk(thinking), renderer(FORGETS)
    assert learned(example, asked) == [REPLIES[0], REPLIES[2]]
    text = asked.tokenizer.decode(tokenize(example, asked)["input_ids"])
    assert "hm" not in text and "It is 4." in text
    counters = write_tokens([example], asked, tmp_path / "t.arrow", max_length=512, long_prompts="error")
    assert counters["unlearned_replies"] == 1 and "1 replies before the last" in unlearned_warning(counters)


def test_a_greeting_before_any_question_is_read_and_not_learned():
    assert learned(talk([{"role": "assistant", "content": "Hello."}, *TURNS]), renderer()) == REPLIES
    system = {"role": "system", "content": "Be brief."}
    assert learned(talk([system, {"role": "assistant", "content": "Hello."}, *TURNS]), renderer()) == REPLIES


def test_a_template_without_an_end_of_turn_is_warned_of_and_only_the_last_reply_is_learned():
    asked = renderer(NO_END)
    assert learned(talk(TURNS), asked) == REPLIES[-1:]
    assert "writes no special token after a reply" in asked.warning and "<|im_end|>" in asked.warning


@pytest.mark.parametrize("template", [None, "gemma", FORGETS])
def test_a_template_that_ends_replies_is_not_warned_of(template):
    asked = renderer(template)
    assert asked.warning == ""
    assert tokenize(talk(TURNS), asked)["labels"][-1] in asked.stop_ids


def test_messages_that_a_template_refuses_are_an_error_naming_the_row():
    with pytest.raises(
        UserError, match="Row 'x': The chat template rejects a conversation of user, user: roles must alternate"
    ):
        tokenize(talk([TURNS[0], TURNS[0], TURNS[1]], id="x"), renderer(ALTERNATES))


def test_a_conversation_is_cut_on_the_right_and_counted(tmp_path):
    asked, example = renderer(), talk(TURNS, id="x")
    whole = tokenize(example, asked)
    first_end = whole["labels"].index(2) + 1
    for length in (len(whole["labels"]) - 1, first_end, first_end - 1):
        row = tokenize(example, asked, length)
        assert (row["input_ids"], row["labels"]) == (whole["input_ids"][:length], whole["labels"][:length])
        assert row["truncated"]
    assert learned(example, asked, first_end) == REPLIES[:1]
    path = tmp_path / "t.arrow"
    counters = write_tokens([example], asked, path, max_length=first_end, long_prompts="error")
    assert (counters["examples"], counters["truncated"], load_tokens(path)["id"][:]) == (1, 1, ["x"])
    with pytest.raises(UserError, match=r"first: id 'x'"):
        write_tokens([example], asked, path, max_length=8, long_prompts="error")


def test_a_row_with_a_domain_of_its_own_gets_the_system_prompt_of_that_domain():
    asked = renderer(style="tag-free")
    row = {"question": "1+1?", "solution": "2", "domain": "logic"}
    mine, other = (split_turns(as_example(row, 1, "f", domain=d), asked)[0][0][0] for d in ("", "math"))
    assert mine == other == Renderer(asked.tokenizer, "logic", "tag-free").prompt(TURNS[:1])


@pytest.mark.parametrize(
    "style, digest",
    [("plain", "5dc0cbe5dc3d3db3"), ("tagged", "3f66adb6739ce763"), ("tag-free", "28f53f15b20f5daf")],
)
def test_rows_of_one_turn_give_the_tokens_that_they_gave_before_there_were_several(style, digest):
    """Digests of the tokens of version 0.1.0."""
    asked = renderer(style=style)
    rows = [tokenize(example, asked, 96) for example in demo_examples(200)]
    assert {row.pop("unlearned") for row in rows} == {0}
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest().startswith(digest)
