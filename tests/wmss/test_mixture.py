"""The mixture as one model: its logits, its generation with two caches, its folder."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, MambaConfig

from helpers import VOCABULARY, tiny_model, weights
from weakdriven import MixtureConfig, MixtureForCausalLM
from weakdriven.errors import UserError
from weakdriven.wmss.mixture import MixtureCache

PAIRS = [("qwen3", "llama"), ("qwen2", "qwen2"), ("gemma2", "gemma3"), ("phi", "cohere")]
WEIGHT = 0.3


def pair(strong: str = "qwen3", weak: str = "qwen3", **changes: Any) -> tuple[Any, Any]:
    """A narrow weak model and a wider strong one, each with a short window where its family has one."""
    window = {family: {"sliding_window": 4} for family in ("gemma2", "gemma3")}
    one = tiny_model(strong, seed=1, width=24, **window.get(strong, {}), **changes)
    two = tiny_model(weak, seed=2, width=16, **window.get(weak, {}), **changes)
    return one.eval(), two.eval()


def mixture(strong: str = "qwen3", weak: str = "qwen3", *, weight: float = WEIGHT, **changes: Any) -> Any:
    return MixtureForCausalLM.from_pair(*pair(strong, weak, **changes), strong_weight=weight)


def prompts(rows: int = 2, length: int = 7) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def dense(strong: Any, weak: Any, weight: float = WEIGHT, **inputs: Any) -> torch.Tensor:
    return weight * strong(**inputs).logits.float() + (1 - weight) * weak(**inputs).logits.float()


@pytest.mark.parametrize("strong, weak", PAIRS)
@torch.no_grad()
def test_logits_are_the_mixture_of_both(strong, weak):
    models = pair(strong, weak)
    mixed = MixtureForCausalLM.from_pair(*models, strong_weight=WEIGHT)(input_ids=prompts())
    torch.testing.assert_close(mixed.logits, dense(*models, input_ids=prompts()))
    assert mixed.logits.dtype == torch.float32 and mixed.logits.shape == (2, 7, VOCABULARY)


@torch.no_grad()
def test_a_weight_above_1_extrapolates_away_from_the_weak_model():
    strong, weak = pair()
    mixed = MixtureForCausalLM.from_pair(strong, weak, strong_weight=1.3)
    logits = [model(prompts()).logits for model in (strong, weak)]
    torch.testing.assert_close(mixed(prompts()).logits, logits[0] + 0.3 * (logits[0] - logits[1]))
    plain = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    assert torch.equal(mixed.generate(prompts(), **plain), mixed.generate(prompts(), **plain, use_cache=False))


@torch.no_grad()
def test_mask_and_positions_reach_both():
    models, mask = pair(), torch.ones(2, 7, dtype=torch.long)
    mask[:, 1] = 0
    inputs = {"input_ids": prompts(), "attention_mask": mask, "position_ids": torch.arange(7)[None].expand(2, -1) * 3}
    got = MixtureForCausalLM.from_pair(*models, strong_weight=WEIGHT)(**inputs).logits
    torch.testing.assert_close(got, dense(*models, **inputs))
    assert not torch.allclose(got, dense(*models, input_ids=prompts(), attention_mask=mask))


@torch.no_grad()
def test_bf16_logits_are_mixed_in_float32():
    strong, weak = (model.to(torch.bfloat16) for model in pair())
    mixed = MixtureForCausalLM.from_pair(strong, weak, strong_weight=WEIGHT)(input_ids=prompts()).logits
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, dense(strong, weak, input_ids=prompts()), rtol=0, atol=0)


@torch.no_grad()
def test_capped_logits_come_out_capped():
    logits = mixture("gemma2", "gemma2", final_logit_softcapping=1.0)(input_ids=prompts()).logits
    assert logits.abs().max() <= 1


@torch.no_grad()
def test_heads_padded_differently_are_mixed_over_their_common_rows():
    strong, weak = tiny_model(seed=1, vocab_size=VOCABULARY + 8).eval(), tiny_model(seed=2).eval()
    mixed = MixtureForCausalLM.from_pair(strong, weak, strong_weight=WEIGHT, vocabulary=60)
    want = WEIGHT * strong(prompts()).logits[..., :VOCABULARY] + (1 - WEIGHT) * weak(prompts()).logits
    torch.testing.assert_close(mixed(prompts()).logits, want)
    assert mixed.config.vocab_size == VOCABULARY
    plain = {"max_new_tokens": 4, "num_beams": 2, "eos_token_id": None}
    assert torch.equal(mixed.generate(prompts(), **plain), mixed.generate(prompts(), **plain, use_cache=False))


@pytest.mark.parametrize("weight, name", [(1.0, "strong"), (0.0, "weak")])
@torch.no_grad()
def test_all_weight_on_one_model_is_that_model_and_the_other_does_not_run(weight, name):
    strong, weak = pair()
    alone, other = (strong, weak) if name == "strong" else (weak, strong)
    other.forward = None
    mixed = MixtureForCausalLM.from_pair(strong, weak, strong_weight=weight)
    torch.testing.assert_close(mixed(prompts()).logits, alone(prompts()).logits, rtol=0, atol=0)
    plain = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    assert torch.equal(mixed.generate(prompts(), **plain), alone.generate(prompts(), **plain))


def test_the_loss_is_cross_entropy_of_the_mixed_logits():
    strong, weak = pair()
    labels = prompts().clone()
    labels[:, :3] = -100
    loss = MixtureForCausalLM.from_pair(strong, weak, strong_weight=WEIGHT)(prompts(), labels=labels).loss
    logits = dense(strong, weak, input_ids=prompts())
    want = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(loss.detach(), want)


def step_by_step(strong: Any, weak: Any, row: torch.Tensor, steps: int) -> torch.Tensor:
    """Argmax of the dense mixture over the whole text, again for each token."""
    ids = row[None]
    for _ in range(steps):
        ids = torch.cat([ids, dense(strong, weak, input_ids=ids)[:, -1:].argmax(-1)], 1)
    return ids[0, len(row) :]


@pytest.mark.parametrize("strong, weak", PAIRS)
def test_greedy_generation_with_caches_is_argmax_step_by_step(strong, weak):
    models = pair(strong, weak)
    mixed = MixtureForCausalLM.from_pair(*models, strong_weight=WEIGHT)
    plain = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    got = mixed.generate(prompts(1), **plain)[0, 7:]
    assert got.tolist() == step_by_step(*models, prompts(1)[0], 12).tolist()


@pytest.mark.parametrize("strong, weak", PAIRS)
def test_a_left_padded_batch_generates_what_each_prompt_does_alone(strong, weak):
    models = pair(strong, weak)
    mixed = MixtureForCausalLM.from_pair(*models, strong_weight=WEIGHT)
    ids, mask = prompts(2), torch.ones(2, 7, dtype=torch.long)
    ids[1, :4], mask[1, :4] = 0, 0
    got = mixed.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=None)[:, 7:]
    for row, text in enumerate((ids[0], ids[1, 4:])):
        assert got[row].tolist() == step_by_step(*models, text, 12).tolist()


@pytest.mark.parametrize("strong, weak", [("gemma3", "llama")])
def test_beam_search_reorders_both_caches(strong, weak):
    mixed = mixture(strong, weak)
    plain = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False, "eos_token_id": None}
    assert torch.equal(mixed.generate(prompts(), **plain), mixed.generate(prompts(), **plain, use_cache=False))


def test_rejected_drafts_are_cropped_from_both_caches():
    mixed = mixture()
    text = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])
    plain = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": -1}  # no token; None needs a newer transformers
    assert torch.equal(mixed.generate(text, **plain, prompt_lookup_num_tokens=3), mixed.generate(text, **plain))


@torch.no_grad()
def test_a_loop_with_the_returned_cache_gives_the_logits_of_the_whole_text():
    mixed = mixture()
    first = mixed(prompts()[:, :4])
    assert isinstance(first.past_key_values, MixtureCache) and first.past_key_values.get_seq_length() == 4
    rest = mixed(prompts()[:, 4:], past_key_values=first.past_key_values, logits_to_keep=1)
    torch.testing.assert_close(rest.logits, mixed(prompts(), use_cache=False).logits[:, -1:])


@pytest.mark.parametrize("strong, weak, tied", [("qwen3", "llama", True), ("phi", "gemma3", False)])
def test_a_saved_mixture_loads_through_auto_classes(tmp_path, strong, weak, tied):
    mixed = mixture(strong, weak, tied=tied)
    mixed.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(loaded, MixtureForCausalLM) and not any(info.values())
    assert isinstance(AutoConfig.from_pretrained(tmp_path), MixtureConfig)
    assert loaded.config.strong_weight == WEIGHT
    got, want = weights(loaded), weights(mixed)
    assert got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)
    for model in (loaded.strong, loaded.weak):
        shared = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert shared == tied
    assert torch.equal(loaded(prompts()).logits, mixed(prompts()).logits)


def test_a_folder_keeps_and_loads_the_given_precision_and_attention(tmp_path):
    mixed = mixture()
    mixed.to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert loaded.strong.config._attn_implementation == loaded.weak.config._attn_implementation == "eager"


def test_mixing_leaves_the_two_models_as_they_were():
    strong, weak = pair("gemma3", "llama")
    before = weights(strong), weights(weak), strong.config.to_dict(), strong.config._attn_implementation
    MixtureForCausalLM.from_pair(strong, weak)
    for model, old in ((strong, before[0]), (weak, before[1])):
        assert all(torch.equal(value, old[name]) for name, value in model.state_dict().items())
    assert (strong.config.to_dict(), strong.config._attn_implementation) == before[2:]


def test_the_kind_of_cache_in_the_strong_models_generation_config_is_dropped():
    strong, weak = pair()
    strong.generation_config.cache_implementation = "static"
    strong.generation_config.eos_token_id = [2, 9]
    mixed = MixtureForCausalLM.from_pair(strong, weak)
    assert mixed.generation_config is not None
    assert (mixed.generation_config.cache_implementation, mixed.generation_config.eos_token_id) == (None, [2, 9])
    assert strong.generation_config.cache_implementation == "static"


def test_wrong_weights_vocabularies_arguments_and_caches_are_an_error():
    for weight in (-0.1, float("nan")):
        with pytest.raises(UserError, match=r"strong_weight is .*; it must be a number of at least 0"):
            mixture(weight=weight)
    with pytest.raises(UserError, match="weak has 64 vocabulary rows, strong has 80"):
        MixtureForCausalLM.from_pair(tiny_model(vocab_size=80), tiny_model())
    mixed = mixture()
    for name in ("inputs_embeds", "output_attentions", "output_hidden_states"):
        with pytest.raises(UserError, match=f"does not support {name}"):
            mixed(prompts(), **{name: torch.ones(1) if name == "inputs_embeds" else True})
    with pytest.raises(UserError, match="got a DynamicCache as past_key_values"):
        mixed(prompts(), past_key_values=DynamicCache())
    with pytest.raises(UserError, match=r"cache_implementation is 'static'"):
        mixed.generate(prompts(), max_new_tokens=2, cache_implementation="static")


def test_a_model_without_an_ordinary_cache_generates_without_one():
    sizes = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 1, "initializer_range": 0.3}
    mamba = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=VOCABULARY, **sizes), dtype=torch.float32).eval()
    models = mamba, tiny_model().eval()
    mixed = MixtureForCausalLM.from_pair(*models, strong_weight=WEIGHT)
    with pytest.raises(UserError, match="does not support a dynamic cache; pass use_cache=False"):
        mixed.generate(prompts(1), max_new_tokens=4)
    got = mixed.generate(prompts(1), max_new_tokens=4, use_cache=False, do_sample=False, eos_token_id=None)
    assert got[0, 7:].tolist() == step_by_step(*models, prompts(1)[0], 4).tolist()
