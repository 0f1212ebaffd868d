"""Attention of one new token: the numbers of sdpa, and sdpa itself wherever something else is asked for."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import Lfm2Config, Lfm2ForCausalLM

from helpers import tiny_model
from weakdriven.eval.generate import attention
from weakdriven.eval.generate.attention import NAME, grouped, grouped_attention, grouped_sdpa, takes_attention
from weakdriven.wmss.mixture import MixtureForCausalLM


class Module(torch.nn.Module):
    is_causal = True

    def __init__(self, groups: int):
        super().__init__()
        self.num_key_value_groups = groups


def tensors(*, rows=5, heads=6, kept=2, length=33, width=8, queries=1):
    torch.manual_seed(0)
    query = torch.randn(rows, heads, queries, width)
    key, value = torch.randn(2, rows, kept, length, width)
    seen = torch.arange(length) >= torch.arange(rows)[:, None] * 3  # left padding of different lengths
    return query, key, value, seen[:, None, None]


@pytest.mark.parametrize("kind", ["bool", "additive"])
@pytest.mark.parametrize("heads, kept", [(6, 2), (6, 1), (14, 2), (4, 4)])
def test_the_numbers_are_those_of_sdpa(heads, kept, kind):
    query, key, value, seen = tensors(heads=heads, kept=kept)
    repeated = [one.repeat_interleave(heads // kept, 1) for one in (key, value)]
    want = scaled_dot_product_attention(query, *repeated, attn_mask=seen, scale=0.3)
    mask = seen if kind == "bool" else torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
    torch.testing.assert_close(grouped_attention(query, key, value, mask, 0.3), want)


def test_slots_that_are_not_seen_may_hold_anything_finite():
    query, key, value, seen = tensors()
    before = grouped_attention(query, key, value, seen, 0.3)
    hidden = ~seen[:, 0, 0, None, :, None]
    after = grouped_attention(query, key.masked_fill(hidden, 1e4), value.masked_fill(hidden, -1e4), seen, 0.3)
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    "change",
    [{"queries": 2}, {"heads": 2}, {"mask": None}, {"softcap": 1.0}, {"position_bias": torch.zeros(5, 6, 1, 33)}],
    ids=lambda change: next(iter(change)),
)
def test_what_it_does_not_know_goes_to_sdpa(change, monkeypatch):
    monkeypatch.setattr(attention, "sdpa_attention_forward", lambda *args, **others: ("sdpa", None))
    sizes = {name: value for name, value in change.items() if name in ("queries", "heads")}
    query, key, value, mask = tensors(**sizes)
    others = {name: value for name, value in change.items() if name in ("softcap", "position_bias")}
    mask = change.get("mask", mask)
    assert grouped_sdpa(Module(3), query, key, value, mask, scaling=0.3, **others)[0] == "sdpa"
    query, key, value, mask = tensors()
    assert grouped_sdpa(Module(3), query, key, value, mask, scaling=0.3, sliding_window=8)[0].shape == (5, 1, 6, 8)


def test_half_precision_on_a_cpu_goes_to_sdpa():
    query, key, value, seen = tensors()
    got, _ = grouped_sdpa(Module(3), query.bfloat16(), key.bfloat16(), value.bfloat16(), seen, scaling=0.3)
    want = grouped_attention(query, key, value, seen, 0.3).transpose(1, 2)
    torch.testing.assert_close(got.float(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3", "qwen2"])
def test_a_model_has_its_own_attention_again_afterwards(family):
    model = tiny_model(family)
    with pytest.raises(KeyError), grouped(model):
        assert model.config._attn_implementation == NAME == model.model.layers[0].self_attn.config._attn_implementation
        raise KeyError
    assert model.config._attn_implementation == "sdpa"


def test_models_with_another_attention_or_with_models_inside_are_left_alone():
    eager = tiny_model("qwen3", attn_implementation="eager")
    mixture = MixtureForCausalLM.from_pair(tiny_model("qwen3"), tiny_model("qwen3"))
    for model in (eager, mixture):
        assert not takes_attention(model)
        before = model.config._attn_implementation
        with grouped(model):
            assert model.config._attn_implementation == before


def test_a_hybrid_model_gives_the_same_logits_with_it():
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3}
    model = Lfm2ForCausalLM(
        Lfm2Config(**sizes, num_attention_heads=2, num_key_value_heads=1, full_attn_idxs=[1])
    ).eval()
    ids, mask = torch.randint(3, 60, (3, 7)), torch.ones(3, 8, dtype=torch.long)
    mask[1, :2] = 0

    @torch.inference_mode()
    def last():
        past = model(ids, attention_mask=mask[:, :7]).past_key_values
        return model(ids[:, :1], attention_mask=mask, past_key_values=past).logits

    want = last()
    with grouped(model):
        torch.testing.assert_close(last(), want)
