"""Errors of WDJTTrainer, and how early they come."""

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    T5Config,
)

from helpers import embedded_tokenizer, tiny_model, token_rows
from joint_cases import CHAT, EMBEDDED_MODEL, experts, make
from weakdriven import WDJTTrainer
from weakdriven.errors import UserError


def other_tokenizer(folder):
    tokenizer = embedded_tokenizer()
    tokenizer.add_tokens(["<another>"])
    tokenizer.save_pretrained(folder)
    return folder


def test_models_with_different_tokenizers_are_an_error(tmp_path):
    weak = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL)
    weak.save_pretrained(tmp_path / "weak")
    other_tokenizer(tmp_path / "weak")
    with pytest.raises(UserError, match=r"Cannot mix logits: the tokenizers .* differ in 1 entries"):
        make(tmp_path, model=EMBEDDED_MODEL, weak_model=str(tmp_path / "weak"), data=CHAT)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "weak")
    with pytest.raises(UserError, match="differ in 1 entries"):
        make(tmp_path, model=EMBEDDED_MODEL, weak_model=loaded, data=CHAT)


def test_the_same_model_twice_is_an_error(tmp_path):
    model = tiny_model(seed=1)
    with pytest.raises(UserError, match="share layers"):
        make(tmp_path, model=model, weak_model=model)


def test_rows_without_a_supervised_token_are_an_error(tmp_path):
    masked = token_rows(4).map(lambda row: {"labels": [-100] * len(row["labels"])})
    with pytest.raises(UserError, match=r"No token of the 4 training examples is supervised: every label is -100"):
        make(tmp_path, data=masked, max_length=None)
    with pytest.raises(UserError, match=r"No token of the [04] training examples is supervised"):
        make(tmp_path, data=masked, max_length=16)


LONG = Dataset.from_list([{"input_ids": [3] * 70, "labels": [3] * 70}, *token_rows(7)])


@pytest.mark.parametrize(
    "rows, options",
    [
        ({"train_dataset": LONG}, {"max_length": None}),
        ({"train_dataset": LONG}, {"max_length": 65}),
        ({"train_dataset": LONG}, {"max_length": 32, "dataset_kwargs": {"skip_prepare_dataset": True}}),
        ({"train_dataset": LONG}, {"max_length": 128, "packing": True}),
        ({"eval_dataset": {"one": token_rows(4), "two": LONG}}, {"max_length": None}),
        ({}, {"max_length": None, "weak_positions": 8}),
    ],
)
def test_rows_longer_than_the_models_positions_are_an_error(rows, options, tmp_path):
    positions = options.pop("weak_positions", 64)
    weak = tiny_model(seed=2, max_position_embeddings=positions)
    with pytest.raises(
        UserError, match=rf"An example has .* have {positions} positions .*set max_length={positions} in"
    ):
        make(tmp_path, weak_model=weak, trainer=rows, **options)


@pytest.mark.parametrize("rows, options", [(LONG, {"max_length": 64}), (None, {"max_length": 128, "packing": True})])
def test_rows_that_are_cut_or_packed_to_fit_the_positions_train(rows, options, tmp_path):
    make(tmp_path, data=rows, **options)


def seq2seq():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 64}
    return AutoModelForSeq2SeqLM.from_config(T5Config(**sizes, decoder_start_token_id=0))


def headless():
    return AutoModel.from_config(tiny_model().config)


@pytest.mark.parametrize(
    "build, message, place",
    [
        (seq2seq, "T5ForConditionalGeneration is an encoder-decoder model", "weak_model"),
        (headless, "The output head of Qwen3Model", "model"),
        (lambda: torch.nn.Linear(2, 2), "is Linear; expected a path, a PreTrainedModel or PeftModel", "model"),
        (lambda: torch.nn.Linear(2, 2), "is Linear; expected a path, a PreTrainedModel or PeftModel", "weak_model"),
    ],
    ids=["encoder-decoder", "headless", "no-model", "no-weak-model"],
)
def test_models_that_cannot_be_mixed_are_an_error(build, message, place, tmp_path):
    with pytest.raises(UserError, match=message):
        make(tmp_path, **{place: build()})


@pytest.mark.parametrize("place", ["model", "weak_model"])
def test_logits_of_another_kind_of_head_are_an_error(place, monkeypatch, tmp_path):
    odd = tiny_model("llama", seed=3)
    monkeypatch.setattr(odd.lm_head, "forward", lambda hidden: hidden.exp() @ odd.lm_head.weight.T)
    with pytest.raises(UserError, match=r"(strong|weak) model: LlamaForCausalLM computes its logits in a way"):
        make(tmp_path, **{place: odd})


def test_a_missing_path_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"The weak model .*nowhere cannot be loaded"):
        make(tmp_path, weak_model=str(tmp_path / "nowhere"))


def frozen():
    return tiny_model(seed=3).requires_grad_(False)


@pytest.mark.parametrize(
    "place, build, options, message",
    [
        ("model", frozen, {}, "No weight of the"),
        ("weak_model", frozen, {}, "No weight of the"),
        ("weak_model", lambda: experts(1), {}, "mixture of experts"),
        ("model", lambda: tiny_model(vocab_size=72), {}, "vocabulary rows"),
        ("model", lambda: tiny_model(seed=3), {"fsdp": True}, "fsdp is set, but no launcher"),
    ],
    ids=["frozen", "frozen weak", "experts", "heads", "fsdp"],
)
def test_errors_in_the_models_come_before_the_data_is_read(place, build, options, message, tmp_path):
    class Unread(Dataset):
        def map(self, *args, **kwargs):
            raise AssertionError("the dataset was prepared")

    data = Unread(CHAT.data)
    with pytest.raises(UserError, match=message):
        make(tmp_path, **{place: build()}, data=data, **options)


def test_an_error_of_different_tokenizers_comes_before_the_data_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(WDJTTrainer, "_prepare_dataset", lambda *args: pytest.fail("the dataset was prepared"))
    tokenizer = embedded_tokenizer()
    tokenizer.add_tokens(["<another>"])
    with pytest.raises(UserError, match="differ in 1 entries"):
        make(tmp_path, model=EMBEDDED_MODEL, weak_model=EMBEDDED_MODEL, trainer={"processing_class": tokenizer})


def test_loading_options_for_loaded_models_give_a_warning(caplog, tmp_path):
    make(tmp_path, trainer={"quantization_config": object()})
    assert "quantization_config are ignored: both models are already loaded" in caplog.text
