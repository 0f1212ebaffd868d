"""Two adapters over one base: what they share, their gradients, saving and merging."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from helpers import padded_batch, tiny_model, token_rows, weights
from weakdriven.data.tokenize import IGNORE
from weakdriven.errors import UserError
from weakdriven.models.adapters import add_adapter, merged, refuse_adapter, share_frozen, twin
from weakdriven.wmss.pair import WEAK_FOLDER, WeakStrongPair, load_pair_weights, save_pair

BATCH = padded_batch(token_rows(5))
TARGETS = ["q_proj", "v_proj", "down_proj"]


def lora(**changes):
    return LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "lora_dropout": 0.0, **changes})


def adapted(base, *, seed, **changes):
    """An adapter that is not at its start, where half of it is zero."""
    model = add_adapter(base, lora(**changes), seed=seed)
    draw = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data += 0.1 * torch.randn(weight.shape, generator=draw)
    return model


def shared_pair(family="qwen3", *, tied=True, **options):
    base = tiny_model(family, seed=1, tied=tied)
    strong, weak = adapted(base, seed=3, **options), adapted(tiny_model(family, seed=1, tied=tied), seed=4, **options)
    share_frozen(strong, weak)
    return WeakStrongPair(strong=strong, weak=weak, strong_weight=0.42)


def held_bytes(*models):
    """Bytes of all parameters, each storage counted once."""
    storages = {w.untyped_storage().data_ptr(): w.untyped_storage().nbytes() for m in models for w in m.parameters()}
    return sum(storages.values())


def trainable_bytes(model):
    return sum(w.numel() * w.element_size() for w in model.parameters() if w.requires_grad)


@pytest.mark.parametrize("family, tied", [("qwen3", True), ("gemma3", False)])
def test_a_pair_holds_one_base_and_two_adapters(family, tied):
    pair = shared_pair(family, tied=tied)
    base = held_bytes(tiny_model(family, tied=tied))
    adapters = trainable_bytes(pair.strong) + trainable_bytes(pair.weak)
    assert trainable_bytes(pair.weak) > 0
    assert held_bytes(pair.strong, pair.weak) == base + adapters


@pytest.mark.parametrize("family, checkpointing", [("qwen3", True), ("gemma3", False), ("qwen2", False)])
def test_gradients_of_both_adapters_equal_autograd_on_dense_logits_of_separate_models(family, checkpointing):
    pair = shared_pair(family)
    apart = [copy.deepcopy(model) for model in (pair.strong, pair.weak)]
    assert held_bytes(*apart) > held_bytes(pair.strong, pair.weak)
    if checkpointing:
        pair.gradient_checkpointing_enable()
        pair.train()
    pair(**BATCH).loss.backward()
    inputs = {name: BATCH[name] for name in ("input_ids", "attention_mask")}
    logits = [model(**inputs).logits for model in apart]
    mixed = 0.42 * logits[0] + 0.58 * logits[1]
    F.cross_entropy(mixed[:, :-1].flatten(0, 1), BATCH["labels"][:, 1:].flatten(), ignore_index=IGNORE).backward()
    for mine, theirs in zip((pair.strong, pair.weak), apart, strict=True):
        want = {name: weight.grad for name, weight in theirs.named_parameters() if weight.requires_grad}
        got = {name: weight.grad for name, weight in mine.named_parameters() if weight.grad is not None}
        assert got.keys() == want.keys() and len(got) == 2 * 2 * len(TARGETS)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-5)


def test_only_equal_frozen_tensors_are_shared():
    strong = adapted(tiny_model(seed=1), seed=3)
    other = tiny_model(seed=1)
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight[0, 0] += 1
    weak = adapted(other, seed=4)
    kept, own = weights(weak), other.model.layers[0].mlp.up_proj.weight
    shared = share_frozen(strong, weak)
    assert own.untyped_storage().data_ptr() == weak.base_model.model.model.layers[0].mlp.up_proj.weight.data_ptr()
    assert held_bytes(strong, weak) == held_bytes(strong) + trainable_bytes(weak) + own.numel() * own.element_size()
    assert shared == held_bytes(tiny_model()) - own.numel() * own.element_size()
    assert all(torch.equal(kept[name], after) for name, after in weights(weak).items())


def test_trainable_models_and_models_of_other_precision_share_nothing():
    strong, weak = tiny_model(seed=1), tiny_model(seed=1)
    assert share_frozen(strong, weak) == 0
    assert held_bytes(strong, weak) == 2 * held_bytes(strong)
    narrow, wide = adapted(tiny_model(seed=1).to(torch.bfloat16), seed=3), adapted(tiny_model(seed=1), seed=4)
    assert share_frozen(narrow, wide) == 0


def test_a_twin_has_its_own_modules_and_the_same_weights():
    base = tiny_model(seed=1)
    second = twin(base)
    assert not {id(m) for m in base.modules()} & {id(m) for m in second.modules()}
    assert held_bytes(base, second) == held_bytes(base)
    strong, weak = adapted(base, seed=3), adapted(second, seed=4)
    assert held_bytes(strong, weak) == held_bytes(tiny_model()) + trainable_bytes(strong) + trainable_bytes(weak)
    assert not torch.equal(strong(BATCH["input_ids"]).logits, weak(BATCH["input_ids"]).logits)


def test_base_weights_that_an_adapter_trains_are_not_shared():
    base = tiny_model("qwen2", seed=1)
    second = twin(base)
    strong, weak = adapted(base, seed=3, bias="all"), adapted(second, seed=4, bias="all")
    share_frozen(strong, weak)
    trained = [{id(w) for w in model.parameters() if w.requires_grad} for model in (strong, weak)]
    assert not trained[0] & trained[1]
    biases = [name for name, w in weak.named_parameters() if "lora" not in name and w.requires_grad]
    assert len(biases) == 6 and all(name.endswith("bias") for name in biases)


def test_two_fresh_adapters_start_differently():
    strong = add_adapter(tiny_model(seed=1), lora(), seed=0)
    weak = add_adapter(tiny_model(seed=1), lora(), seed=1)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    assert not torch.equal(strong.state_dict()[name], weak.state_dict()[name])


def test_adding_an_adapter_leaves_the_random_numbers_as_they_were():
    model = tiny_model(seed=1)
    before = torch.get_rng_state()
    add_adapter(model, lora(), seed=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_merged_model_is_ordinary_and_has_the_logits_of_the_adapted_one(tied, tmp_path):
    pair = shared_pair(tied=tied)
    before = weights(pair)
    want = pair.strong(BATCH["input_ids"]).logits
    merged(pair.strong).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not (tmp_path / "adapter_config.json").exists() and not isinstance(loaded, PeftModel)
    torch.testing.assert_close(loaded(BATCH["input_ids"]).logits, want, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(before[name], after) for name, after in weights(pair).items())


@pytest.mark.parametrize("modules", [None, ["lm_head"], ["lm_head", "embed_tokens"]], ids=["plain", "head", "both"])
def test_what_was_saved_loads_into_the_same_adapters(modules, tmp_path):
    pair = shared_pair(tied=False, modules_to_save=modules)
    save_pair(pair, tmp_path)
    files = {path.name for path in tmp_path.rglob("*.safetensors")}
    assert files == {"adapter_model.safetensors"} and (tmp_path / WEAK_FOLDER / "adapter_config.json").is_file()
    want = weights(pair)
    for weight in pair.parameters():
        if weight.requires_grad:
            weight.data += 1
    load_pair_weights(pair, tmp_path)
    assert all(torch.equal(want[name], after) for name, after in weights(pair).items())


@pytest.mark.parametrize("modules", [["lm_head"], ["lm_head", "embed_tokens"]], ids=["head", "both"])
def test_heads_that_are_trained_whole_are_not_shared(modules):
    pair = shared_pair(tied=False, modules_to_save=modules)
    pair(**BATCH).loss.backward()
    for model in (pair.strong, pair.weak):
        heads = [w for name, w in model.named_parameters() if "lm_head.modules_to_save" in name]
        assert len(heads) == 1 and heads[0].grad.abs().sum() > 0
    strong, weak = (trainable_bytes(model) for model in (pair.strong, pair.weak))
    assert held_bytes(pair.strong, pair.weak) == held_bytes(tiny_model(tied=False)) + strong + weak


def test_a_checkpoint_of_another_adapter_is_an_error(tmp_path):
    save_pair(shared_pair(target_modules=["q_proj"]), tmp_path)
    with pytest.raises(UserError, match=r"does not fit: 8 weights are missing and 0 are unknown .*down_proj"):
        load_pair_weights(shared_pair(), tmp_path)


def test_a_frozen_base_is_not_written_again(tmp_path):
    strong, weak = adapted(tiny_model(seed=1), seed=3), tiny_model(seed=1)
    pair = WeakStrongPair(strong=strong, weak=weak, weak_trainable=False)
    save_pair(pair, tmp_path)
    assert not (tmp_path / WEAK_FOLDER).exists()
    load_pair_weights(pair, tmp_path)


@pytest.mark.parametrize(
    "config, message",
    [
        (PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2), "PROMPT_TUNING, which the mixed loss"),
        (lora(target_modules=["q_proj", "lm_head"]), "LORA on lm_head, which the mixed loss"),
        (lora(alora_invocation_tokens=[3]), "LORA, which the mixed loss"),
    ],
)
def test_adapters_that_the_loss_would_not_see_are_an_error(config, message):
    with pytest.raises(UserError, match=message):
        refuse_adapter(config, "strong")
