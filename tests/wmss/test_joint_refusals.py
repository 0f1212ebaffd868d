"""Errors of WDJTTrainer, and how early they come."""

import math

import pytest
import torch
from accelerate import Accelerator, ParallelismConfig
from datasets import Dataset
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    MixtralConfig,
    T5Config,
)

from helpers import embedded_tokenizer, tiny_model, token_rows
from joint_cases import CHAT, EMBEDDED_MODEL, logs, make, trained
from weakdriven import WDJTConfig, WDJTTrainer
from weakdriven.errors import UserError
from weakdriven.wmss.checks import refuse_sharding


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
    with pytest.raises(UserError, match=r"No token of the 4 training rows is supervised: every label is -100"):
        make(tmp_path, data=masked, max_length=None)
    with pytest.raises(UserError, match=r"No token of the [04] training rows is supervised"):
        make(tmp_path, data=masked, max_length=16)


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


@pytest.mark.parametrize("name", ["compute_loss_func", "compute_metrics", "preprocess_logits_for_metrics"])
def test_options_that_need_logits_are_an_error(name, tmp_path):
    with pytest.raises(UserError, match=f"{name} is set"):
        make(tmp_path, trainer={name: lambda *args, **kwargs: 0})


def test_several_gpus_in_one_process_are_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(WDJTConfig, "n_gpu", property(lambda self: 2))
    with pytest.raises(UserError, match=r"2 GPUs are visible .*accelerate launch.*CUDA_VISIBLE_DEVICES=0"):
        make(tmp_path)
    monkeypatch.undo()
    weak = tiny_model(seed=2)
    weak.hf_device_map = {"model": 0, "lm_head": 1}
    with pytest.raises(UserError, match="The weak model is on 2 GPUs"):
        make(tmp_path, weak_model=weak)


@pytest.mark.parametrize("kind", ["cp", "sp", "tp"])
def test_context_sequence_and_tensor_parallelism_are_an_error(kind, monkeypatch, tmp_path):
    trainer = make(tmp_path)
    split = ParallelismConfig(**{f"{kind}_size": 2})
    monkeypatch.setattr(Accelerator, "parallelism_config", property(lambda self: split))
    with pytest.raises(UserError, match=f"parallelism_config has {kind}_size=2, which splits rows or weights"):
        refuse_sharding(trainer)


def frozen():
    return tiny_model(seed=3).requires_grad_(False)


@pytest.mark.parametrize(
    "place, build, options, message",
    [
        ("model", frozen, {}, "No weight of the"),
        ("weak_model", frozen, {}, "No weight of the"),
        ("weak_model", lambda: experts(1), {}, "mixture of experts"),
        ("model", lambda: tiny_model(vocab_size=72), {}, "vocabulary rows"),
        ("model", lambda: tiny_model(seed=3), {"fsdp": True}, "fsdp is set for a single process"),
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


def test_activation_offloading_without_a_gpu_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(UserError, match="activation_offloading moves activations off the GPU"):
        make(tmp_path, activation_offloading=True)


def experts(seed):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2, "num_experts_per_tok": 1}
    return AutoModelForCausalLM.from_config(MixtralConfig(**sizes, **heads), dtype=torch.float32)


def test_a_load_balancing_loss_is_an_error_unless_it_is_turned_off(tmp_path):
    with pytest.raises(UserError, match=r"mixture of experts .* weight 0.001, .* router_aux_loss_coef=0.0"):
        make(tmp_path, model=experts(1), weak_model=experts(2))
    trainer = trained(tmp_path, model=experts(1), weak_model=experts(2), router_aux_loss_coef=0.0, max_steps=1)
    assert math.isfinite(logs(trainer)[0]["loss"])
