"""Bytes that autograd saves, by formula and counted on tiny models."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

from weakdriven.planning.activations import Numbers, kept, layer_saved, working
from weakdriven.planning.model_config import shape_of
from weakdriven.planning.model_shape import Adapter

FAMILIES = {"qwen3": Qwen3Config, "qwen2": Qwen2Config, "llama": LlamaConfig, "gemma3": Gemma3TextConfig}
LENGTH = 56  # no width of a weight, so that copies of weights can be told apart
FP32, BF16, MIXED = Numbers(4, 4), Numbers(2, 2), Numbers(2, 4)


def config_of(family: str, layers: int):
    sizes = {"hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    heads = {} if family == "qwen2" else {"head_dim": 32}
    return FAMILIES[family](vocab_size=128, num_hidden_layers=layers, pad_token_id=0, **sizes, **heads)


def counted(family: str, numbers: Numbers, checkpointing: bool, layers: int) -> int:
    """Bytes of all storages that are saved for the backward pass and are neither weights nor copies of weights."""
    config = config_of(family, layers)
    dtype = torch.float32 if numbers.residual == 4 else torch.bfloat16
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    weights = {tuple(sorted(weight.shape)) for weight in model.parameters()}
    pointers = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor):
        pointer = tensor.untyped_storage().data_ptr()
        copy = tuple(sorted(tensor.shape)) in weights and LENGTH not in tensor.shape
        if pointer not in pointers and not copy:
            saved.setdefault(pointer, (tensor.untyped_storage().nbytes(), tensor))  # held, so that no address repeats
        return tensor

    mask = torch.ones(1, LENGTH, dtype=torch.long)
    if numbers.masked:
        mask[0, -3:] = 0
    ids = torch.randint(3, 128, (1, LENGTH))
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=numbers.mixed),
    ):
        model.model(input_ids=ids, attention_mask=mask, use_cache=False)
    return sum(size for size, _ in saved.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("numbers", [FP32, MIXED], ids=["fp32", "bf16-mixed"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_layer_saves_as_many_bytes_as_predicted(family, numbers, checkpointing):
    a_layer = (counted(family, numbers, checkpointing, 3) - counted(family, numbers, checkpointing, 1)) / 2
    predicted = LENGTH * kept(shape_of(config_of(family, 1)), numbers, checkpointing)
    assert predicted == pytest.approx(a_layer, rel=0.05)


def test_padded_rows_save_keys_and_values_for_every_query_head():
    numbers = replace(BF16, masked=True)
    a_layer = (counted("qwen3", numbers, False, 3) - counted("qwen3", numbers, False, 1)) / 2
    assert LENGTH * kept(shape_of(config_of("qwen3", 1)), numbers, False) == pytest.approx(a_layer, rel=0.05)


def test_qwen3_4b_by_hand():
    """Liger's layers in bf16, per token: the numbers of docs/background/plan-accuracy.md."""
    shape = shape_of(Qwen3Config(**QWEN3_4B))
    saved = layer_saved(shape, Numbers(fast=True))
    assert saved["mlp"] == 3 * 2 * 9728
    assert saved["attention"] == 2 * (2 * 4096 + 2 * 1024) + 4 * 32
    assert saved["inputs of products"] == 2 * 2 * 2560
    assert saved["norms"] == 2 * (2 * 2560 + 4) + (2 * 4096 + 4) + (2 * 1024 + 4)


def test_each_kind_of_checkpointing_keeps_less_than_the_next():
    shape = shape_of(Qwen3Config(**QWEN3_4B))
    for numbers in (Numbers(fast=True), Numbers(), Numbers(2, 4)):
        sizes = [kept(shape, numbers, mode) for mode in (True, "keep_attention", "keep_products", False)]
        assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
        assert working(shape, numbers, True) > working(shape, numbers, False)


def test_keeping_products_of_fp32_adapters_keeps_more_than_everything():
    """What each adapter gives is a product too, and nothing but keep_products has a use for it."""
    adapted = replace(shape_of(Qwen3Config(**QWEN3_4B)), adapter=Adapter(16, 33_030_144, 7, 26_624, 30_720))
    numbers = Numbers(fast=True, adapter=4)
    assert kept(adapted, numbers, "keep_products") > kept(adapted, numbers, False) > kept(adapted, numbers, True)


QWEN3_4B = {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
