"""Which models are found and loaded, and which are errors."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PaliGemmaConfig, Qwen3ForCausalLM, RecurrentGemmaConfig, T5Config

from helpers import embedded_tokenizer, tiny_model
from weakdriven.errors import UserError
from weakdriven.models.head import head, hidden_states
from weakdriven.models.load import (
    EMBEDDED,
    check_model,
    fingerprint,
    load_model,
    load_tokenizer,
    locate_model,
    refuse_different_tokenizers,
)

BASE = locate_model(EMBEDDED)


@pytest.fixture
def copy(tmp_path):
    """A copy of the embedded model that a test may damage."""
    return shutil.copytree(BASE, tmp_path / "copy")


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_a_model_is_found_as_embedded_or_as_a_folder():
    assert (BASE / "config.json").is_file()
    assert locate_model(str(BASE)) == BASE


@pytest.mark.parametrize("source", ["~/nowhere/x", "just-a-name", "a/b/c", "embedded:x"])
def test_a_source_that_is_neither_folder_nor_hub_id_is_an_error(source):
    with pytest.raises(UserError, match=r"There is no model folder .*owner/name.* or embedded:base") as error:
        locate_model(source)
    assert source in str(error.value)


def test_a_hub_id_that_cannot_be_fetched_is_an_error():
    with pytest.raises(UserError, match="nobody/nothing is neither a local folder nor an accessible model"):
        locate_model("nobody/nothing")


def test_a_folder_without_configuration_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"is a folder without config.json"):
        locate_model(str(tmp_path))


def test_the_embedded_model_passes_every_check_and_loads_in_each_precision():
    check_model(BASE)
    assert load_model(BASE, precision="fp32").dtype == load_model(BASE, precision="bf16-mixed").dtype == torch.float32
    assert load_model(BASE, precision="bf16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    "config, message",
    [
        (T5Config(), "is an encoder-decoder model"),
        (PaliGemmaConfig(), "is a multimodal checkpoint .paligemma"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_models_of_another_kind_are_an_error_by_their_configuration(config, message, tmp_path):
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match=message):
        check_model(tmp_path)


@pytest.mark.parametrize(
    "family, changes",
    [
        ("qwen2", {}),
        ("llama", {}),
        ("gemma2", {"initializer_range": 3.0}),  # logits of some tens, where the cap of 30 bends
        ("gemma3", {"final_logit_softcapping": 2.0}),
        ("granite", {"logits_scaling": 8.0}),
        ("cohere", {}),
        ("phi", {"tied": False}),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_models_whose_logits_are_a_head_capped_or_scaled_are_accepted(family, changes, precision, tmp_path):
    model = tiny_model(family, **changes)
    if model.get_output_embeddings().bias is not None:
        model.get_output_embeddings().bias.data.normal_()
    model.save_pretrained(tmp_path)
    check_model(tmp_path)
    loaded, ids = load_model(tmp_path, precision=precision), torch.arange(3, 40)[None]
    with torch.no_grad():
        ours = head(loaded).logits(hidden_states(loaded, {"input_ids": ids}))
        theirs = loaded(input_ids=ids).logits
    tolerance = 1e-5 if precision == "fp32" else 0.02 * theirs.abs().max().item()
    torch.testing.assert_close(ours, theirs.float(), rtol=0, atol=tolerance)


def test_a_cap_under_another_name_is_read_too(tmp_path):
    config = RecurrentGemmaConfig(
        num_hidden_layers=3,
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_attention_heads=2,
        head_dim=8,
        lru_width=16,
        attention_window_size=16,
        w_init_variance_scale=1.0,
        logits_soft_cap=2.0,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    check_model(tmp_path)
    assert head(load_model(tmp_path, precision="bf16")).cap == 2.0


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: 1.2 * logits,
        lambda logits: logits + torch.linspace(0, 1, logits.shape[-1]),
        lambda logits: logits.log_softmax(-1),
    ],
    ids=["scaled", "shifted", "normalised"],
)
def test_a_model_that_does_something_else_to_its_logits_is_an_error(change, copy, monkeypatch):
    own = Qwen3ForCausalLM.forward

    def forward(self, *args, **kwargs):
        output = own(self, *args, **kwargs)
        output.logits = change(output.logits)
        return output

    monkeypatch.setattr(Qwen3ForCausalLM, "forward", forward)
    with pytest.raises(UserError, match="Qwen3ForCausalLM computes its logits in a way that this version does not"):
        load_model(copy, precision="fp32")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda weights: weights["model.norm.weight"].fill_(torch.nan), "the model's logits are not finite"),
        (
            lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"),
            "lacks 1 weights .* model.layers.1.mlp.up_proj",
        ),
    ],
    ids=["nan", "missing"],
)
def test_a_checkpoint_with_damaged_weights_is_an_error(change, message, copy):
    change_weights(copy, change)
    with pytest.raises(UserError, match=message):
        load_model(copy, precision="fp32")


def test_a_folder_without_weights_or_with_a_torn_file_is_an_error(copy):
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"The model in .* cannot be loaded"):
        load_model(copy, precision="fp32")
    (copy / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"holds no .safetensors weights"):
        check_model(copy)


@pytest.mark.parametrize("text", ["{", "{}", '{"model_type": "never-heard-of"}'])
def test_a_configuration_that_cannot_be_read_is_an_error(copy, text):
    (copy / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"cannot be read"):
        check_model(copy)


def test_a_torn_tokenizer_is_an_error(copy):
    (copy / "tokenizer.json").write_text('{"model":')
    with pytest.raises(UserError, match=r"The tokenizer of .* cannot be loaded"):
        load_tokenizer(copy)


def test_a_tokenizer_without_padding_pads_with_its_end_token(copy):
    config = json.loads((copy / "tokenizer_config.json").read_text())
    del config["pad_token"]
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(copy)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 2


def test_a_tokenizer_with_one_more_token_is_an_error_with_the_difference(copy):
    tokenizer = embedded_tokenizer()
    tokenizer.add_tokens(["weakdriven"])
    tokenizer.save_pretrained(copy)
    with pytest.raises(UserError, match=r"Cannot mix logits: .*448 tokens.*449 tokens.* differ in 1 entries"):
        refuse_different_tokenizers(BASE, copy)


def test_tokenizers_that_number_their_tokens_differently_are_an_error(copy):
    tree = json.loads((copy / "tokenizer.json").read_text())
    vocabulary = tree["model"]["vocab"]
    vocabulary["!"], vocabulary['"'] = vocabulary['"'], vocabulary["!"]
    (copy / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match="differ in 4 entries"):
        refuse_different_tokenizers(BASE, copy)


def test_models_with_different_vocabulary_rows_are_an_error(copy):
    change_config(copy, vocab_size=512)
    with pytest.raises(UserError, match="weak has 448 vocabulary rows, strong has 512"):
        refuse_different_tokenizers(BASE, copy)


def test_a_copied_model_has_the_same_fingerprint_and_tokenizer(copy):
    assert fingerprint(copy) == fingerprint(BASE)
    refuse_different_tokenizers(BASE, copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: change_weights(folder, lambda weights: weights["model.norm.weight"].add_(1e-3)),
        lambda folder: change_config(folder, rms_norm_eps=1e-5),
        lambda folder: (folder / "chat_template.jinja").write_text("{{ messages }}"),
        lambda folder: (folder / "tokenizer_config.json").unlink(),
    ],
    ids=["weight", "configuration", "chat template", "tokenizer"],
)
def test_the_fingerprint_changes_with_what_decides_the_outputs(copy, change):
    change(copy)
    assert fingerprint(copy) != fingerprint(BASE)


def test_the_fingerprint_does_not_change_with_bookkeeping(copy):
    for name in ("manifest.json", "trainer_state.json", "metrics.jsonl"):
        (copy / name).write_text("{}")
    assert fingerprint(copy) == fingerprint(BASE)


def test_a_snapshot_in_the_cache_of_the_hub_is_known_by_its_commit(tmp_path):
    folder = shutil.copytree(BASE, tmp_path / "models--owner--name" / "snapshots" / "0123abcd")
    assert fingerprint(folder) == "0123abcd"


def test_another_folder_called_snapshots_is_known_by_its_content(tmp_path):
    folder = shutil.copytree(BASE, tmp_path / "snapshots" / "0123abcd")
    assert fingerprint(folder) == fingerprint(BASE)
    change_config(folder, rms_norm_eps=1e-5)
    assert fingerprint(folder) != fingerprint(BASE)


def test_the_probe_leaves_the_chosen_attention_as_it_was():
    model = load_model(locate_model("embedded:base"), precision="fp32", attention="flex_attention")
    assert model.config._attn_implementation == "flex_attention"
