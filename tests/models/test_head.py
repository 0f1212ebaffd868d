"""What a model's head reads and computes, in every family and under adapters, or an error."""

import peft
import pytest
import torch
from torch import nn

from helpers import FAMILIES, tiny_model
from weakdriven.errors import UserError
from weakdriven.models.head import causal_lm, head, hidden_states, refuse_other_logits

IDS = torch.arange(3, 20)[None]
INPUTS = {"input_ids": IDS, "use_cache": False}


def adapted(**options):
    config = {"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False} | options
    torch.manual_seed(0)
    return peft.get_peft_model(tiny_model(tied=False), peft.LoraConfig(**config))


@pytest.mark.parametrize(
    "family, changes, scale, cap, bias",
    [
        *((family, {}, 1.0, None, False) for family in FAMILIES),
        ("gemma2", {"final_logit_softcapping": 7.0}, 1.0, 7.0, False),
        ("granite", {"logits_scaling": 8.0}, 0.125, None, False),
        ("cohere", {}, 0.0625, None, False),
        ("phi", {"tied": False}, 1.0, None, True),
    ],
)
def test_scale_cap_and_bias_are_those_of_the_family(family, changes, scale, cap, bias):
    model = tiny_model(family, **changes)
    found = head(model)
    assert (found.scale, found.cap, found.bias_V is not None) == (scale, cap, bias)
    assert found.weight_VD is model.get_output_embeddings().weight
    with torch.no_grad():
        logits = found.logits(hidden_states(model, INPUTS))
        torch.testing.assert_close(logits, model(**INPUTS).logits, rtol=1e-5, atol=1e-5)


def test_under_an_adapter_the_head_is_that_of_the_base_and_the_hidden_states_are_the_adapted_ones():
    model = adapted()
    assert causal_lm(model) is model.get_base_model()
    assert head(model).weight_VD is model.get_base_model().lm_head.weight
    with torch.no_grad():
        logits = head(model).logits(hidden_states(model, INPUTS))
        torch.testing.assert_close(logits, model(**INPUTS).logits, rtol=1e-5, atol=1e-5)
        with model.disable_adapter():
            assert not torch.allclose(logits, model(**INPUTS).logits, atol=1e-2)


def test_a_head_that_is_trained_whole_next_to_an_adapter_is_the_trained_copy():
    model = adapted(modules_to_save=["lm_head"])
    weight = head(model).weight_VD
    assert weight.requires_grad
    with torch.no_grad():
        weight.add_(1)
        logits = head(model).logits(hidden_states(model, INPUTS))
        torch.testing.assert_close(logits, model(**INPUTS).logits, rtol=1e-5, atol=1e-4)


def test_an_adapter_on_the_head_is_an_error():
    with pytest.raises(UserError, match=r"output head of Qwen3ForCausalLM is peft\..*Linear, .*leave lm_head out"):
        head(adapted(target_modules=["q_proj", "lm_head"]))


def test_a_head_that_is_more_than_a_linear_layer_is_an_error():
    model = tiny_model(tied=False)
    model.lm_head = nn.Sequential(model.lm_head, nn.Tanh())
    with pytest.raises(UserError, match=r"output head of Qwen3ForCausalLM is torch.*Sequential, but the mixed loss"):
        head(model)


@pytest.mark.parametrize("autocast, dtype", [(False, torch.float32), (True, torch.bfloat16)])
def test_hidden_states_come_in_the_precision_of_the_heads_product(autocast, dtype):
    model = tiny_model()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert hidden_states(model, INPUTS).dtype == dtype
    assert hidden_states(model.to(torch.bfloat16), INPUTS).dtype == torch.bfloat16


def test_hidden_states_of_a_wider_body_are_brought_to_the_dtype_of_the_head():
    model = tiny_model(tied=False)
    model.lm_head.to(torch.bfloat16)
    hidden = hidden_states(model, INPUTS)
    assert hidden.dtype == torch.bfloat16
    hidden.float().sum().backward()
    assert model.get_input_embeddings().weight.grad.dtype == torch.float32


@pytest.mark.parametrize("accepted, training", [(True, True), (False, True), (False, False)])
def test_the_probe_leaves_mode_and_attention_as_they_were(accepted, training, monkeypatch):
    model = tiny_model("gemma2").train(training)
    model.set_attn_implementation("flex_attention")
    if accepted:
        refuse_other_logits(model, "mine")
    else:

        def broken(*_, **__):
            raise ValueError("no forward")

        monkeypatch.setattr(type(model), "forward", broken)
        with pytest.raises(ValueError, match="no forward"):
            refuse_other_logits(model, "mine")
    assert model.training == training
    assert model.config._attn_implementation == "flex_attention"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_probe_accepts_a_model_under_an_adapter(dtype):
    refuse_other_logits(adapted().to(dtype), "mine")


def test_a_model_that_sees_later_tokens_is_an_error():
    refuse_other_logits(tiny_model("gemma3"), "here")
    with pytest.raises(UserError, match=r"here: Gemma3ForCausalLM sees later tokens"):
        refuse_other_logits(tiny_model("gemma3", use_bidirectional_attention=True), "here")
