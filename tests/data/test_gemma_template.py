"""The chat template for Gemma checkpoints that ship none."""

import pytest

from helpers import embedded_tokenizer, gemma_tokenizer
from weakdriven.data.example import Example
from weakdriven.data.prompts import SYSTEM_PROMPTS, Renderer, give_chat_template
from weakdriven.data.tokenize import tokenize
from weakdriven.errors import UserError

MARKS = ["<start_of_turn>", "<end_of_turn>"]


def talk(*turns):
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]


def render(*turns, ask=False):
    return gemma_tokenizer().apply_chat_template(talk(*turns), tokenize=False, add_generation_prompt=ask)


USER, MODEL, END = "<start_of_turn>user\n", "<start_of_turn>model\n", "<end_of_turn>\n"
BOS = "<|endoftext|>"


@pytest.mark.parametrize(
    "turns, text",
    [
        (["u:Hi"], f"{BOS}{USER}Hi{END}"),
        (["u: Hi\n"], f"{BOS}{USER}Hi{END}"),
        (["s:Be brief.", "u:Hi"], f"{BOS}{USER}Be brief.\n\nHi{END}"),
        (["s: Be brief.\n", "u:Hi"], f"{BOS}{USER}Be brief.\n\nHi{END}"),
        (["s:", "u:Hi"], f"{BOS}{USER}Hi{END}"),
        (["s: \n", "u:Hi"], f"{BOS}{USER}Hi{END}"),
        (["u:1+1?", "a:2"], f"{BOS}{USER}1+1?{END}{MODEL}2{END}"),
        (
            ["s:Be brief.", "u:1+1?", "a:2", "u:2+2?", "a:4", "u:3+3?"],
            f"{BOS}{USER}Be brief.\n\n1+1?{END}{MODEL}2{END}{USER}2+2?{END}{MODEL}4{END}{USER}3+3?{END}",
        ),
    ],
)
@pytest.mark.parametrize("ask", [False, True])
def test_turns_become_this_text(turns, text, ask):
    assert render(*turns, ask=ask) == text + (MODEL if ask else "")


@pytest.mark.parametrize(
    "turns, message",
    [
        (["s:Be brief."], "The chat template rejects a conversation of system: a system message alone"),
        (["u:a", "u:b"], "a conversation of user, user: .* have to alternate .* turn 2 is of user"),
        (["u:a", "a:b", "a:c"], "turn 3 is of assistant"),
        (["a:b", "u:a"], "the user first; turn 1 is of assistant"),
        (["s:x", "u:a", "s:y"], "turn 2 is of system"),
        (["s:x", "s:y", "u:a"], "turn 1 is of system"),
        (["u:a", "t:b"], "turn 2 is of tool"),
    ],
)
def test_conversations_that_gemma_has_no_form_for_are_errors(turns, message):
    with pytest.raises(UserError, match=message):
        Renderer(gemma_tokenizer(), "math", "plain").prompt(talk(*turns))


@pytest.mark.parametrize("domain", ["math", "code", "logic"])
def test_the_tag_free_prompt_stands_in_the_first_user_turn(domain):
    system = SYSTEM_PROMPTS[domain, "tag-free"]
    text = Renderer(gemma_tokenizer(), domain, "tag-free").prompt(talk("u:1+1?"))
    assert text == f"{BOS}{USER}{system}\n\n1+1?{END}{MODEL}"
    assert "system" not in text and "<think>" not in text


def test_generation_stops_at_the_end_of_turn_and_the_end_of_text():
    renderer = Renderer(gemma_tokenizer(), "math", "tag-free")
    stop = renderer.tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert renderer.end_of_turn == "<end_of_turn>"
    assert renderer.stop_ids == sorted({stop, renderer.tokenizer.eos_token_id})
    renderer.check()


def test_training_ends_with_the_end_of_turn_as_one_token():
    renderer = Renderer(gemma_tokenizer(), "math", "tag-free")
    row = tokenize(Example("a", talk("u:1+1?"), "2"), renderer, 512)
    stop = renderer.tokenizer.convert_tokens_to_ids("<end_of_turn>")
    supervised = [label for label in row["labels"] if label >= 0]
    assert supervised[-1] == row["input_ids"][-1] == stop and supervised.count(stop) == 1
    assert renderer.tokenizer.decode(row["input_ids"]) == f"{renderer.prompt(talk('u:1+1?'))}2<end_of_turn>"
    assert row["input_ids"].count(renderer.tokenizer.bos_token_id) == 1


def test_a_tokenizer_without_the_marks_is_an_error():
    tokenizer = embedded_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS[:1]})
    with pytest.raises(
        UserError, match=r"chat_template: gemma writes <end_of_turn>, which the tokenizer of some/model"
    ):
        give_chat_template(tokenizer, "gemma", "some/model")


def test_marks_that_are_ordinary_words_are_an_error():
    tokenizer = embedded_tokenizer()
    tokenizer.add_tokens(MARKS)
    with pytest.raises(UserError, match=r"<start_of_turn> and <end_of_turn>, which .* does not have as special tokens"):
        give_chat_template(tokenizer, "gemma", "some/model")
