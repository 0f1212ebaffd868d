"""Greedy generation with the embedded model: batches, endings, and whose settings count."""

import pytest

from helpers import demo_examples, embedded_tokenizer
from weakdriven.generate import Completion, generate
from weakdriven.models.load import load_model, locate_model

PROMPTS = [" ".join([example.prompt[0]["content"]] * (1 + i % 3)) for i, example in enumerate(demo_examples(12))]
TOKENIZER = embedded_tokenizer()
END_OF_TEXT, END_OF_TURN = TOKENIZER.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])


@pytest.fixture
def model():
    return load_model(locate_model("embedded:base"), precision="fp32")


def complete(model, prompts=PROMPTS, *, batch_size=12, max_new_tokens=64, stop=END_OF_TEXT) -> list[Completion]:
    """Completions in the order of the prompts, each of which must have been answered once."""
    answers: dict[int, Completion] = {}

    def keep(rows, completions):
        assert not answers.keys() & set(rows) and len(rows) == len(completions) <= batch_size
        answers.update(zip(rows, completions, strict=True))

    options = {"max_new_tokens": max_new_tokens, "stop_ids": [stop], "batch_size": batch_size}
    generate(model, TOKENIZER, prompts, **options, on_batch=keep)
    return [answers[i] for i in range(len(prompts))]


def test_every_prompt_is_answered_once_and_the_same_in_any_batch(model):
    assert len({len(TOKENIZER(prompt)["input_ids"]) for prompt in PROMPTS}) > 6
    together = complete(model, batch_size=5)
    assert together == complete(model, batch_size=1) == complete(model, batch_size=12)
    assert len({completion.text for completion in together}) > 6
    assert complete(model, []) == []


def test_a_completion_says_whether_the_model_or_the_budget_ended_it_and_counts_its_tokens(model):
    full, cut = complete(model, max_new_tokens=128), complete(model, max_new_tokens=42)
    assert {completion.finish for completion in full} == {"stop"}
    assert {42} < {completion.tokens for completion in full}, "some end just within the smaller budget, some do not"
    for whole, part in zip(full, cut, strict=True):
        assert whole.tokens == len(TOKENIZER(whole.text)["input_ids"]) + 1  # the end counts
        assert part == whole if whole.tokens <= 42 else (part.tokens, part.finish) == (42, "length")
        assert whole.text.startswith(part.text)


def test_text_holds_no_special_tokens_even_where_the_model_goes_on_after_one(model):
    texts = [completion.text for completion in complete(model, max_new_tokens=128, stop=END_OF_TURN)]
    inputs = TOKENIZER(PROMPTS[0], return_tensors="pt", return_token_type_ids=False)
    raw = model.generate(**inputs, max_new_tokens=128, eos_token_id=END_OF_TURN, do_sample=False)
    assert END_OF_TEXT in raw[0].tolist(), "otherwise this test shows nothing"
    assert not any("<|" in text for text in texts)


@pytest.mark.parametrize(
    "setting",
    [
        {"repetition_penalty": 5.0},
        {"num_beams": 4},
        {"no_repeat_ngram_size": 2},
        {"do_sample": True, "temperature": 5.0},
        {"min_new_tokens": 64},
        {"suppress_tokens": list(range(20, 200))},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_in_the_generation_config_do_not_change_the_greedy_text(model, setting):
    plain = complete(model)
    for name, value in setting.items():
        setattr(model.generation_config, name, value)
    assert complete(model) == plain
