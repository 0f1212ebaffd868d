"""The language model inside a multimodal Gemma-3: loaded alone, and saved as a text model."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

from multimodal_cases import IDS, LAYOUTS, ROWS, change_config, change_weights, copied, write_multimodal
from weakdriven.config.recipe import LoraSettings
from weakdriven.errors import UserError
from weakdriven.models.gemma3.multimodal import stored_weights, text_config, text_name, vision_name
from weakdriven.models.liger import model_type
from weakdriven.models.load import (
    check_model,
    fingerprint,
    load_model,
    load_tokenizer,
    refuse_different_tokenizers,
)
from weakdriven.training.lora import check_lora


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma") / "base"
    write_multimodal(folder)
    return folder


@pytest.fixture
def copy(base, tmp_path):
    return copied(base, tmp_path / "copy")


@pytest.mark.parametrize(
    "layout, tied, shards",
    [("published", True, 3), ("newer", False, 1), ("newer", True, 1), ("saved by 5.22", False, 3)],
)
def test_the_language_model_is_loaded_bit_for_bit_from_every_layout(layout, tied, shards, tmp_path):
    whole = write_multimodal(tmp_path / "base", layout=layout, tied=tied, shards=shards)
    check_model(tmp_path / "base")
    model = load_model(tmp_path / "base", precision="fp32").eval()
    assert type(model) is Gemma3ForCausalLM and type(model.config) is Gemma3TextConfig
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied == model.config.tie_word_embeddings
    theirs = whole.model.language_model.state_dict()
    ours = model.model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(model.lm_head.weight, whole.lm_head.weight)
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, whole(input_ids=IDS).logits)


def test_transformers_still_cannot_load_the_text_model_alone(base, tmp_path):
    assert type(AutoModelForCausalLM.from_pretrained(base)).__name__ == "Gemma3ForConditionalGeneration"
    _, info = Gemma3ForCausalLM.from_pretrained(base, output_loading_info=True)
    assert "model.norm.weight" in info["missing_keys"]
    mapped = Gemma3ForCausalLM.from_pretrained(base, key_mapping={r"^language_model\.model": "model"})
    mapped.save_pretrained(tmp_path)
    assert "model.norm.weight" not in stored_weights(tmp_path)


def test_the_saved_model_is_an_ordinary_text_only_checkpoint(base, tmp_path):
    model = load_model(base, precision="bf16")
    model.save_pretrained(tmp_path)
    names = stored_weights(tmp_path)
    assert all(name.startswith("model.layers.") or name.count(".") == 2 for name in names)
    assert not any("vision" in name or "projector" in name or "language_model" in name for name in names)
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is Gemma3ForCausalLM and not any(info.values())
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in model.state_dict().items())
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["dtype"]) == ("gemma3_text", "bfloat16")
    assert again.config.rope_parameters["full_attention"]["factor"] == 8.0


def test_the_vision_tower_is_not_read(base, monkeypatch):
    read = []
    from weakdriven.models.gemma3 import multimodal

    class Watched:
        def __init__(self, file, **options):
            self.inner = safe_open(file, **options)

        def __enter__(self):
            self.inner.__enter__()
            return self

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def get_tensor(self, name):
            read.append(name)
            return self.inner.get_tensor(name)

    safe_open = multimodal.safe_open
    monkeypatch.setattr(multimodal, "safe_open", Watched)
    model = load_model(base, precision="fp32")
    assert read and all(name.startswith("language_model.") for name in read)
    assert not any("vision" in name for name, _ in model.named_modules())


@pytest.mark.parametrize("precision, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision_attention_and_origin_are_those_given(precision, dtype, base):
    model = load_model(base, precision=precision, attention="eager")
    assert {weight.dtype for weight in model.parameters()} == {dtype}
    assert model.config._attn_implementation == "eager"
    assert model.config._name_or_path == model.name_or_path == str(base)


def test_the_generation_settings_of_the_folder_are_kept(copy):
    (copy / "generation_config.json").write_text('{"eos_token_id": [1, 106], "top_k": 64, "do_sample": true}')
    generation = load_model(copy, precision="fp32").generation_config
    assert (generation.eos_token_id, generation.top_k) == ([1, 106], 64)


def test_the_outer_setting_ties_the_embeddings_as_in_the_multimodal_class(copy):
    config = json.loads((copy / "config.json").read_text())
    change_config(copy, text_config=config["text_config"] | {"tie_word_embeddings": False})
    model = load_model(copy, precision="fp32")
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_configuration_lora_and_tokenizers_are_those_of_the_text_model(base, tmp_path):
    assert text_config(base).vocab_size == ROWS
    assert model_type(base) == text_config(base).model_type == "gemma3_text"
    check_lora(LoraSettings(target_modules=["q_proj", "down_proj"]), base)
    with pytest.raises(UserError, match="out_proj is not a linear layer of Gemma3ForCausalLM"):
        check_lora(LoraSettings(target_modules=["out_proj"]), base)
    load_model(base, precision="fp32").save_pretrained(tmp_path)
    load_tokenizer(base).save_pretrained(tmp_path)
    refuse_different_tokenizers(base, tmp_path)


def test_a_vocabulary_left_to_the_default_is_known(copy):
    config = json.loads((copy / "config.json").read_text())
    del config["text_config"]["vocab_size"]
    change_config(copy, text_config=config["text_config"])
    assert text_config(copy).vocab_size == 262_208


def test_the_fingerprint_covers_the_text_weights(base, copy):
    assert fingerprint(copy) == fingerprint(base)
    change_weights(copy, lambda weights: weights["language_model.model.norm.weight"].add_(1e-3))
    assert fingerprint(copy) != fingerprint(base)


def test_a_missing_weight_is_named_before_anything_is_read(copy):
    change_weights(copy, lambda weights: weights.pop("language_model.model.layers.1.mlp.up_proj.weight"))
    for look in (check_model, lambda folder: load_model(folder, precision="fp32")):
        with pytest.raises(UserError, match=r"model.layers.1.mlp.up_proj.weight: expected \(32, 16\), found none"):
            look(copy)


def test_an_untied_model_without_its_head_is_an_error(copy):
    change_config(copy, tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"lm_head.weight: expected .512, 16., found none"):
        check_model(copy)


@pytest.mark.parametrize(
    "name, shape, message",
    [
        ("score.weight", (2, 16), r"score.weight: expected none, found \(2, 16\)"),
        ("language_model.model.norm.weight", (17,), r"norm.weight: expected \(16,\), found \(17,\)"),
        ("model.language_model.norm.weight", (16,), "the same weight"),
    ],
    ids=["left over", "other shape", "two names"],
)
def test_a_weight_that_does_not_fit_is_an_error(name, shape, message, copy):
    change_weights(copy, lambda weights: weights.update({name: torch.zeros(shape)}))
    with pytest.raises(UserError, match=message):
        check_model(copy)


def test_torn_and_missing_files_are_errors(copy, tmp_path):
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"model.safetensors cannot be read as safetensors"):
        check_model(copy)
    write_multimodal(tmp_path / "sharded", shards=3)
    (tmp_path / "sharded/model-00002-of-00003.safetensors").unlink()
    with pytest.raises(
        UserError, match=r"model-00002-of-00003.safetensors cannot be read as safetensors .No such file"
    ):
        check_model(tmp_path / "sharded")


def test_names_of_all_layouts_are_mapped_to_one():
    name = "language_model.model.layers.0.mlp.up_proj.weight"
    assert {text_name(rename(name)) for rename in LAYOUTS.values()} == {"model.layers.0.mlp.up_proj.weight"}
    assert {text_name(rename("language_model.lm_head.weight")) for rename in LAYOUTS.values()} == {"lm_head.weight"}
    tower, projector = "vision_tower.encoder.layers.0.mlp.fc1.bias", "multi_modal_projector.mm_soft_emb_norm.weight"
    for rename in LAYOUTS.values():
        assert vision_name(rename(tower)) == "vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias"
        assert vision_name(rename(projector)) == projector
        assert text_name(rename(tower)) is text_name(rename(projector)) is None


def test_a_loaded_model_and_its_file_are_independent(copy):
    model = load_model(copy, precision="fp32")
    before = model.model.norm.weight.detach().clone()
    with (copy / "model.safetensors").open("r+b") as file:  # in place, as some tools write
        file.write(bytes((copy / "model.safetensors").stat().st_size))
    assert before.abs().sum() > 0 and torch.equal(model.model.norm.weight, before)
