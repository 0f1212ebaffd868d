"""Decoding in slots: the texts of the model's own cache, whatever ends when, and which models it is for."""

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, MistralConfig, Qwen3Config, Qwen3ForCausalLM

from helpers import VOCABULARY, embedded_tokenizer, tiny_model
from weakdriven.eval.generate import Completion, Request, Sampling, generate
from weakdriven.eval.generate import cache as cache_module
from weakdriven.eval.generate import decode as decode_module
from weakdriven.eval.generate.attention import NAME, grouped
from weakdriven.eval.generate.cache import SlotCache, is_ordinary
from weakdriven.eval.generate.decode import InSlots, OwnCache, read_prompts
from weakdriven.eval.generate.local import LocalEngine
from weakdriven.wmss.mixture import MixtureForCausalLM

TOKENIZER = embedded_tokenizer()
REQUESTS = [Request([3 + (7 * row + 5 * place) % 60 for place in range(1 + 3 * row)], seed=row) for row in range(7)]
WARM = {"temperature": 1.0, "top_p": 0.9}
KNOWN = ("position_ids", "past_key_values", "logits_to_keep")


def mistral():
    """All layers have a window, and the configuration has no layer types."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    config = MistralConfig(**sizes, **heads, sliding_window=6, max_position_embeddings=64, initializer_range=0.3)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def untied(family, **changes):
    """With other weights at the head than at the embedding, so that greedy texts do not repeat one token."""
    return tiny_model(family, tied=False, **changes)


MODELS = {
    "qwen3": lambda: untied("qwen3"),
    "llama": lambda: untied("llama"),
    "llama, layer types null": lambda: untied("llama", layer_types=None),
    "qwen2": lambda: untied("qwen2", width=48, num_attention_heads=6, num_key_value_heads=2),
    "every head its keys": lambda: untied("llama", num_key_value_heads=2),
    "gemma3 past its window": lambda: untied(
        "gemma3", sliding_window=5, layer_types=["sliding_attention", "full_attention"]
    ),
    "gemma3, only windows": lambda: untied("gemma3", sliding_window=5, layer_types=["sliding_attention"] * 2),
    "mistral past its window": mistral,
    "granite": lambda: untied("granite"),
    "cohere": lambda: untied("cohere"),
    "phi": lambda: untied("phi"),
}


def complete(model, *, batch_size=7, max_new_tokens=20, stop=(5, 9, 11), **sampling) -> list[Completion]:
    answers: dict[int, Completion] = {}
    engine = LocalEngine(model, TOKENIZER, batch_size, "static")
    generate(engine, REQUESTS, Sampling(max_new_tokens, stop, **sampling), answers.update)
    return [answers[row] for row in range(len(REQUESTS))]


@pytest.fixture
def used(monkeypatch):
    """Which way of decoding each batch took."""
    kinds: list[str] = []
    for kind in (InSlots, OwnCache):

        def made(*args, kind=kind):
            kinds.append(kind.__name__)
            return kind(*args)

        monkeypatch.setattr(decode_module, kind.__name__, made)
    return kinds


@pytest.mark.parametrize(
    "name, sampling, chunk",
    [*((name, {}, 4) for name in MODELS), *((name, WARM, 128) for name in ("qwen3", "gemma3 past its window"))],
)
def test_the_texts_are_those_with_the_models_own_cache(name, sampling, chunk, used, monkeypatch):
    monkeypatch.setattr(cache_module, "CHUNK", chunk)
    model = MODELS[name]()
    found = [complete(model, batch_size=size, **sampling) for size in (7, 3)]
    assert set(used) == {"InSlots"}
    monkeypatch.setattr(decode_module, "can_use_slots", lambda *_: False)
    used.clear()
    want = complete(model, **sampling)
    assert set(used) == {"OwnCache"}
    assert found == [want] * 2
    assert len({one.text for one in want}) > 2


@pytest.mark.parametrize("name", MODELS)
def test_the_logits_are_those_with_the_models_own_cache(name, monkeypatch):
    monkeypatch.setattr(cache_module, "CHUNK", 4)
    model = MODELS[name]()
    ids = torch.tensor([[0] * (19 - len(request.prompt)) + request.prompt for request in REQUESTS])
    mask = (ids != 0).long()

    @torch.inference_mode()
    def logits():
        with grouped(model):
            first, decoder = read_prompts(model, KNOWN, ids, mask)
            found, rows = [first], torch.arange(len(ids))
            for step in range(20):
                if step in (3, 9):
                    keep = torch.tensor([4, 0, 2] if step == 9 else [0, 1, 3, 5, 6])
                    decoder.keep(keep)
                    rows = rows[keep]
                decoder.make_room()
                found.append(decoder.step(((7 * rows + 11 * step) % 61 + 3)[:, None]))
                decoder.count()
        return found

    got = logits()
    monkeypatch.setattr(decode_module, "can_use_slots", lambda *_: False)
    torch.testing.assert_close(got, logits(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["qwen2", "gemma3 past its window"])
def test_rows_may_leave_one_by_one_or_all_at_once(name, share, monkeypatch):
    model = MODELS[name]()
    want = complete(model, batch_size=1, stop=(5, 9, 11, 20, 30))
    assert len({one.tokens for one in want}) > 3
    monkeypatch.setattr("weakdriven.eval.generate.local.DROP_SHARE", share)
    monkeypatch.setattr(cache_module, "CHUNK", 4)
    assert complete(model, stop=(5, 9, 11, 20, 30)) == want


@pytest.mark.parametrize("window", [None, 6])
def test_slots_hold_what_the_models_own_cache_holds_through_growth_and_dropped_rows(window, monkeypatch):
    monkeypatch.setattr(cache_module, "CHUNK", 4)
    torch.manual_seed(0)
    types = ["full_attention" if window is None else "sliding_attention"]
    config = Qwen3Config(num_hidden_layers=1, layer_types=types, sliding_window=window, use_sliding_window=True)
    mask = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]])

    def fresh(count):
        return torch.randn(len(mask), 2, count, 3), torch.randn(len(mask), 2, count, 3)

    own, other = DynamicCache(config=config), DynamicCache(config=config)
    first = fresh(3)
    own.update(*first, 0)
    other.update(*first, 0)
    slots = SlotCache(other, mask, torch.float32)
    assert other.layers[0].keys is None
    sizes = []
    for step in range(12):
        if step in (2, 7):
            keep = torch.tensor([0, 2, 3] if step == 2 else [2, 0])
            own.batch_select_indices(keep)
            slots.batch_select_indices(keep)
            mask = mask[keep]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        slots.make_room()
        left = slots.room_left()
        assert left > 0
        slots.open()
        new = fresh(1)
        want, _ = own.update(*new, 0)
        got, _ = slots.update(*new, 0)
        slots.length += 1
        slots.length_1 += 1
        seen = slots.kinds[window].mask_B11S[:, 0, 0] == 0
        visible = mask[:, -want.shape[2] :] if window is None else mask[:, -window:][:, -want.shape[2] :]
        want = want if window is None else want[:, :, -window:]
        for row in range(len(mask)):
            kept = got[row][:, seen[row]]
            expected = want[row][:, visible[row].bool()]
            assert sorted(kept.flatten().tolist()) == sorted(expected.flatten().tolist())
        sizes.append(got.shape[2])
    assert slots.get_seq_length() == 15
    assert sizes == sorted(sizes) and sizes[0] == 4 and sizes[-1] == (16 if window is None else 6)


def test_models_that_keep_more_than_keys_and_values_use_their_own_cache(used):
    mixture = MixtureForCausalLM.from_pair(tiny_model("qwen3"), tiny_model("qwen3", seed=1))
    eager = tiny_model("qwen3", attn_implementation="eager")
    for model in (mixture, eager):
        complete(model)
    assert set(used) == {"OwnCache"}
    assert complete(eager) == complete(tiny_model("qwen3"))


def test_a_gemma2_caps_its_scores_as_before():
    model = tiny_model("gemma2", sliding_window=5, attn_implementation="eager")
    assert complete(model) == complete(model, batch_size=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(type(model), "_can_compile_fullgraph", False),
        lambda model: setattr(model, "create_masks_for_generate", lambda **_: None),
        lambda model: setattr(model, "hf_device_map", {"a": 0, "b": 1}),
        lambda model: setattr(model.config, "is_causal", False),
    ],
)
def test_a_model_that_may_need_more_uses_its_own_cache(change):
    class Changed(Qwen3ForCausalLM):
        pass

    model = tiny_model("qwen3")
    model.__class__ = Changed
    ids = torch.tensor([[3, 4, 5]])
    with grouped(model), torch.inference_mode():
        assert model.config._attn_implementation == NAME
        assert isinstance(read_prompts(model, KNOWN, ids, torch.ones_like(ids))[1], InSlots)
        change(model)
        assert isinstance(read_prompts(model, KNOWN, ids, torch.ones_like(ids))[1], OwnCache)


def test_only_plain_caches_are_ordinary():
    assert is_ordinary(DynamicCache(config=tiny_model("qwen3").config))
    assert not is_ordinary(None)
    mixture = MixtureForCausalLM.from_pair(tiny_model("qwen3"), tiny_model("qwen3", seed=1))
    assert not is_ordinary(mixture(torch.tensor([[3, 4]])).past_key_values)
