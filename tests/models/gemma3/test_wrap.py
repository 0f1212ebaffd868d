"""`weakdriven export vllm`: a trained text model joined with its base's vision tower; and its errors."""

import json
import sys

import pytest
import safetensors.torch
import torch
from transformers import AutoConfig, AutoTokenizer, Gemma3ForCausalLM, Gemma3ForConditionalGeneration

from helpers import tiny_model
from multimodal_cases import (
    IDS,
    all_weights,
    change_config,
    change_weights,
    copied,
    published,
    tokenizer,
    write_multimodal,
)
from weakdriven.commands.app import main
from weakdriven.errors import UserError
from weakdriven.models.gemma3.wrap import wrap_text_model
from weakdriven.models.load import load_model


def train(base, folder, *, precision="fp32", seed=1):
    """What a run leaves: the language model with other weights, its tokenizer with a chat template."""
    model = load_model(base, precision=precision).eval()
    torch.manual_seed(seed)
    for weight in model.parameters():
        weight.data.add_(0.1 * torch.randn_like(weight))
    model.generation_config.eos_token_id = [2, 449]
    model.save_pretrained(folder)
    found = tokenizer()
    found.chat_template = "{{ 'trained' }}"
    found.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = tmp_path_factory.mktemp("wrap")
    write_multimodal(root / "base")
    train(root / "base", root / "trained")
    return root / "trained", root / "base"


@pytest.fixture
def trained(pair, tmp_path):
    return copied(pair[0], tmp_path / "trained")


@pytest.fixture
def base(pair, tmp_path):
    return copied(pair[1], tmp_path / "base")


def wrap(trained, base, out, **options):
    return wrap_text_model(str(trained), str(base), str(out), **options)


def same(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


@pytest.mark.parametrize(
    "layout, tied, precision", [("published", True, "bf16"), ("newer", False, "fp32"), ("saved by 5.22", True, "fp32")]
)
def test_a_round_trip_keeps_every_bit(layout, tied, precision, tmp_path):
    write_multimodal(tmp_path / "base", layout=layout, tied=tied, shards=2, dtype=torch.bfloat16)
    model = train(tmp_path / "base", tmp_path / "trained", precision=precision)
    wrap(tmp_path / "trained", tmp_path / "base", tmp_path / "out", shard_bytes=4000)

    vision = {name: weight for name, weight in all_weights(tmp_path / "base").items() if "language_model" not in name}
    vision = {name.removeprefix("model."): weight for name, weight in vision.items() if "lm_head" not in name}
    if layout == "saved by 5.22":
        vision = {published(name): weight for name, weight in vision.items()}
    text = {f"language_model.{name}": weight for name, weight in all_weights(tmp_path / "trained").items()}
    assert same(all_weights(tmp_path / "out"), vision | text)

    dtype = model.dtype
    whole, info = Gemma3ForConditionalGeneration.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()) and whole.dtype == dtype
    with torch.no_grad():
        assert torch.equal(whole.eval()(input_ids=IDS).logits, model(input_ids=IDS).logits)

    back = load_model(tmp_path / "out", precision=precision)
    back.save_pretrained(tmp_path / "back")
    assert same(all_weights(tmp_path / "back"), all_weights(tmp_path / "trained"))
    ours, theirs = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("back", "trained"))
    assert ours == theirs


def test_image_features_are_those_of_the_base(pair, tmp_path):
    wrap(*pair, tmp_path / "out")
    pixels = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        one, two = (
            Gemma3ForConditionalGeneration.from_pretrained(folder).eval().get_image_features(pixels).pooler_output
            for folder in (pair[1], tmp_path / "out")
        )
    assert torch.equal(one, two)


def test_the_files_of_both_are_copied(pair, tmp_path):
    trained, base = pair
    text, vision = wrap(trained, base, tmp_path / "out", shard_bytes=20_000)
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2 and set(index["weight_map"].values()) == set(files)
    assert files[-1] == f"model-{len(files):05d}-of-{len(files):05d}.safetensors"
    assert len(index["weight_map"]) == text + vision
    sizes = [weight.numel() * weight.element_size() for weight in all_weights(tmp_path / "out").values()]
    assert index["metadata"]["total_size"] == sum(sizes)
    for name, source in (("preprocessor_config.json", base), ("tokenizer.json", trained)):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == "{{ 'trained' }}"
    assert json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"] == [2, 449]
    assert not list(tmp_path.glob(".*"))


def test_the_configuration_is_the_bases_with_the_trained_text(pair, tmp_path):
    trained, base = pair
    wrap(trained, base, tmp_path / "out")
    config, before = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "out", base))
    assert config["architectures"] == ["Gemma3ForConditionalGeneration"] and config["model_type"] == "gemma3"
    assert config["vision_config"] == {k: v for k, v in before["vision_config"].items() if k != "dtype"}
    assert config["image_token_index"] == before["image_token_index"] == 502
    assert config["text_config"]["rope_scaling"] == {"factor": 8.0, "rope_type": "linear"}, "older servers read this"
    assert "architectures" not in config["text_config"]
    text, ours = (AutoConfig.from_pretrained(folder) for folder in (trained, tmp_path / "out"))
    assert ours.text_config.rope_parameters == text.rope_parameters


def test_no_more_than_a_shard_is_in_memory(pair, tmp_path, monkeypatch):
    held = []
    save = safetensors.torch.save_file
    note = lambda tensors, *more, **options: (held.append(tensors), save(tensors, *more, **options))[1]  # noqa: E731
    monkeypatch.setattr("safetensors.torch.save_file", note)
    wrap(*pair, tmp_path / "out", shard_bytes=5000)
    sizes = [[weight.numel() * weight.element_size() for weight in tensors.values()] for tensors in held]
    assert len(sizes) > 5 and all(sum(size) <= 5000 or len(size) == 1 for size in sizes)


def refused(trained, base, out, message, **options):
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(UserError, match=message):
        wrap(trained, base, out, **options)
    assert sorted(out.parent.rglob("*")) == before, "files were left behind"


def test_a_base_of_another_size_is_an_error(pair, tmp_path):
    write_multimodal(tmp_path / "wide", hidden_size=24)
    message = r"projection_weight: expected \(8, 16\), found \(8, 24\)"
    refused(pair[0], tmp_path / "wide", tmp_path / "out", message)


def test_tokens_with_another_id_are_an_error(trained, base, tmp_path):
    tree = json.loads((trained / "tokenizer.json").read_text())
    vocabulary = tree["model"]["vocab"]
    vocabulary["!"], vocabulary['"'] = vocabulary['"'], vocabulary["!"]
    (trained / "tokenizer.json").write_text(json.dumps(tree))
    refused(trained, base, tmp_path / "out", "2 tokens of the base have another id or none .first: '!'.")


def test_tokens_that_were_added_are_accepted(trained, base, tmp_path):
    found = AutoTokenizer.from_pretrained(trained)
    found.add_tokens([f"new{i}" for i in range(10)])
    found.save_pretrained(trained)
    wrap(trained, base, tmp_path / "out")


def test_settings_of_the_base_that_would_change_the_text_are_an_error(trained, base, tmp_path):
    config = json.loads((base / "config.json").read_text())
    text = config["text_config"] | {"rope_scaling": {"factor": 2.0, "rope_type": "linear"}}
    change_config(base, text_config=text)
    refused(trained, base, tmp_path / "out", "text_config would get rope_parameters = ")


def test_other_models_and_adapters_are_an_error(pair, tmp_path):
    trained, base = pair
    out = tmp_path / "out"
    refused(base, trained, out, "has model type gemma3; expected a text-only")
    refused(trained, trained, out, "is not a multimodal Gemma-3 .model type gemma3 with a vision_config")
    tiny_model("qwen3").save_pretrained(tmp_path / "qwen")
    refused(tmp_path / "qwen", base, out, "has model type qwen3; expected a text-only Gemma-3")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text("{}")
    refused(tmp_path / "adapter", base, out, "is an adapter; expected a whole model")
    refused(tmp_path / "nothing", base, out, "There is no model folder")


def test_folders_that_lack_something_are_an_error(trained, base, tmp_path):
    projector, out = "multi_modal_projector.mm_soft_emb_norm.weight", tmp_path / "out"
    (base / "preprocessor_config.json").unlink()
    refused(trained, base, out, "processor_config.json, which servers read")
    change_weights(base, lambda weights: weights.pop(projector))
    refused(trained, base, out, f"The first is {projector}")
    change_weights(
        base, lambda weights: [weights.pop(name) for name in list(weights) if not name.startswith("language_model")]
    )
    refused(trained, base, out, r"The first is multi_modal_projector\S+ expected .*, found none")
    (trained / "model.safetensors").unlink()
    refused(trained, base, out, "model.safetensors cannot be read")
    (trained / "tokenizer.json").unlink()
    refused(trained, base, out, "has no tokenizer.json")


def test_a_tied_model_is_wrapped_without_a_head_of_its_own(trained, base, tmp_path):
    change_weights(trained, lambda weights: weights.update({"lm_head.weight": torch.zeros(512, 16)}))
    wrap(trained, base, tmp_path / "out")
    assert not [name for name in all_weights(tmp_path / "out") if "lm_head" in name]


def test_a_folder_that_holds_files_is_an_error(pair, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").touch()
    refused(*pair, tmp_path / "out", "holds files; give a new or empty folder as --output")


def test_weights_that_differ_when_read_back_are_an_error(pair, tmp_path, monkeypatch):
    save = safetensors.torch.save_file

    def spoil(tensors, *args, **options):
        name = "language_model.model.norm.weight"
        save(tensors | {name: tensors[name] + 1}, *args, **options)

    monkeypatch.setattr("safetensors.torch.save_file", spoil)
    refused(*pair, tmp_path / "out", "language_model.model.norm.weight was not written as it was read")


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["weakdriven", "export", "vllm", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, capsys.readouterr()

    return call


def test_the_command_prints_what_it_saved(pair, tmp_path, command):
    code, said = command(*pair, "--output", tmp_path / "out")
    assert not code and str(pair[0]) in said.out and "unchanged" in said.out and str(tmp_path / "out") in said.out
    assert type(load_model(tmp_path / "out", precision="fp32")) is Gemma3ForCausalLM


def test_the_command_reports_an_error_in_one_line(pair, tmp_path, command):
    code, said = command(*reversed(pair), "--output", tmp_path / "out")
    assert code == 2 and said.err.startswith("Error: ") and "Traceback" not in said.err
