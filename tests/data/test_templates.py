"""The chat templates for tokenizers that have none: what they write, and which tokens are learned."""

import logging

import pytest

from helpers import embedded_tokenizer, write_rows
from weakdriven.data.example import Example
from weakdriven.data.prompts import SHIPPED_TEMPLATES, Renderer, give_chat_template, report_plain_template
from weakdriven.data.rows.sources import load_examples
from weakdriven.data.tokenize import IGNORE, tokenize

SYSTEM, ASK = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}
REPLY, AGAIN = {"role": "assistant", "content": "2"}, {"role": "user", "content": "2+2?"}
LLAMA = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>".format
GEMMA = "<start_of_turn>{}\n{}<end_of_turn>\n".format
CHATML = "<|im_start|>{}\n{}<|im_end|>\n".format
TEXTS = {
    "chatml": (
        [CHATML("system", "Be brief."), CHATML("user", "1+1?"), CHATML("assistant", "2"), CHATML("user", "2+2?")],
        "<|im_start|>assistant\n",
        "<|im_end|>",
    ),
    "llama3": (
        ["<s>" + LLAMA("system", "Be brief."), LLAMA("user", "1+1?"), LLAMA("assistant", "2"), LLAMA("user", "2+2?")],
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
    ),
    "gemma": (
        ["<s>", GEMMA("user", "Be brief.\n\n1+1?"), GEMMA("model", "2"), GEMMA("user", "2+2?")],
        "<start_of_turn>model\n",
        "<end_of_turn>",
    ),
    "plain": (
        ["<s>Be brief.\n\n", "User:\n1+1?\n\n", "Assistant:\n2<|endoftext|>\n\n", "User:\n2+2?\n\n"],
        "Assistant:\n",
        "<|endoftext|>",
    ),
}
"""System prompt, first question, its answer and second question; what asks for a reply; what ends one."""
every_template = pytest.mark.parametrize("name", SHIPPED_TEMPLATES)


def bare_start(name):
    return "" if name == "chatml" else "<s>"


def renderer_with(name, **options):
    """The template on a tokenizer that has none, and has the template's marks."""
    tokenizer = embedded_tokenizer()
    tokenizer.chat_template = None
    tokenizer.add_special_tokens({"additional_special_tokens": [*SHIPPED_TEMPLATES[name], "<s>"]})
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "<|endoftext|>"
    give_chat_template(tokenizer, name, "some/model")
    return Renderer(tokenizer, "math", "plain", **options)


@every_template
def test_one_turn_and_two_turns_become_this_text(name):
    renderer, ((system, first, reply, second), ask, _) = renderer_with(name), TEXTS[name]
    assert renderer.prompt([SYSTEM, ASK]) == system + first + ask
    assert renderer.prompt([SYSTEM, ASK, REPLY, AGAIN]) == system + first + reply + second + ask
    assert renderer.prompt([ASK]) == bare_start(name) + first.replace("Be brief.\n\n", "") + ask
    assert renderer_with(name, system_prompt="Be brief.").prompt([ASK]) == system + first + ask


@every_template
def test_the_prompt_comes_before_the_completion_and_the_end_of_the_turn_is_learned(name):
    renderer, (_, _, end) = renderer_with(name), TEXTS[name]
    row = tokenize(Example("a", [SYSTEM, ASK], "2"), renderer)
    prompt = renderer.tokenizer(renderer.prompt([SYSTEM, ASK]), add_special_tokens=False)["input_ids"]
    assert row["input_ids"][: len(prompt)] == prompt and row["labels"][: len(prompt)] == [IGNORE] * len(prompt)
    learned = row["input_ids"][len(prompt) :]
    assert row["labels"][len(prompt) :] == learned and renderer.tokenizer.decode(learned) == "2" + end
    assert learned[-1] == renderer.tokenizer.convert_tokens_to_ids(end) and learned[-1] in renderer.stop_ids
    assert not renderer.warning
    renderer.check()


@every_template
def test_every_reply_of_a_conversation_is_learned(name):
    renderer, (_, _, end) = renderer_with(name), TEXTS[name]
    row = tokenize(Example("a", [ASK, REPLY, AGAIN], "4", all_turns=True), renderer)
    learned = [label for label in row["labels"] if label != IGNORE]
    assert renderer.tokenizer.decode(learned) == f"2{end}4{end}" and row["unlearned"] == 0


def test_a_tokenizer_without_template_gets_the_plain_one_with_one_sentence(caplog):
    report_plain_template.cache_clear()
    for _ in range(2):
        tokenizer = embedded_tokenizer()
        tokenizer.chat_template = None
        with caplog.at_level(logging.WARNING):
            give_chat_template(tokenizer, None, "some/model")
        assert Renderer(tokenizer, "math", "plain").prompt([ASK]) == "User:\n1+1?\n\nAssistant:\n"
    (record,) = caplog.records
    assert all(words in record.getMessage() for words in ("some/model", "plain", "chat_template", "chatml"))


def test_the_text_of_a_row_holds_nothing_but_the_row_and_the_template(tmp_path):
    rows = {
        "messages": {"messages": [ASK, REPLY]},
        "prompt": {"prompt": "1+1?", "completion": "2"},
        "question": {"question": "1+1?", "solution": "2"},
        "alpaca": {"instruction": "1+1?", "output": "2"},
        "sharegpt": {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]},
    }
    renderer = renderer_with("plain")
    for name, row in rows.items():
        (example,) = load_examples(write_rows(tmp_path / f"{name}.jsonl", [row]), domain="math")
        text = renderer.tokenizer.decode(tokenize(example, renderer)["input_ids"])
        assert text == "<s>User:\n1+1?\n\nAssistant:\n2<|endoftext|>", name
