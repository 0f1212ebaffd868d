"""Loads the language model inside multimodal Gemma-3 as an ordinary causal LM.

On disk, the same weights have several names: as published (`language_model.model.*`), as some versions of transformers
save them (`model.language_model.*`), and with or without `vision_model.` in the tower. They are mapped here, because
`AutoModelForCausalLM` would also load the tower, and `save_pretrained` undoes a `key_mapping`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, Gemma3Config, Gemma3ForCausalLM, Gemma3TextConfig, GenerationConfig

from weakdriven.errors import UserError
from weakdriven.runs.files import read_json

HEAD = "lm_head.weight"
ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Stored:
    """A tensor on disk, as described by its file's header."""

    file: Path
    name: str
    shape: tuple[int, ...]


def stored_weights(folder: Path) -> dict[str, Stored]:
    """List the tensors of a model folder by name, from the headers alone; a damaged folder raises an error."""
    sharded = (folder / INDEX).is_file() and not (folder / ONE_FILE).is_file()
    files = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values())) if sharded else [ONE_FILE]
    found: dict[str, Stored] = {}
    for file in (folder / name for name in files):
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - not a dict
                    found[name] = Stored(file, name, tuple(weights.get_slice(name).get_shape()))
        except Exception as error:
            raise UserError(f"{file} cannot be read as safetensors ({error}); copy or download it again.") from error
    return found


def read_weights(wanted: dict[str, Stored]) -> dict[str, torch.Tensor]:
    """Open tensors under their new names; each is a view of its file and takes no memory until it is used."""
    files = {file: safe_open(file, framework="pt") for file in {stored.file for stored in wanted.values()}}
    return {name: files[stored.file].get_tensor(stored.name) for name, stored in wanted.items()}


def is_multimodal(folder: Path) -> bool:
    """Return whether a folder's configuration is Gemma-3 with a vision tower."""
    config = read_json(folder / "config.json")
    return config.get("model_type") == "gemma3" and "vision_config" in config


def text_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Read the configuration of the model that is trained: a folder's own, or the language model's inside Gemma-3.

    The outer setting decides about tied embeddings, as in the multimodal class.
    """
    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if not isinstance(config, Gemma3Config):
        return config
    inner: Any = config.text_config
    inner.tie_word_embeddings = config.tie_word_embeddings
    inner.dtype = config.dtype if inner.dtype is None else inner.dtype
    return inner


def text_name(name: str) -> str | None:
    """Return a multimodal weight's name in the text model; None if it belongs to the vision side.

    >>> text_name("language_model.model.norm.weight"), text_name("model.language_model.norm.weight")
    ('model.norm.weight', 'model.norm.weight')
    >>> text_name("vision_tower.vision_model.post_layernorm.bias")
    """
    if vision_name(name) is not None:
        return None
    name = re.sub(r"^(model\.)?language_model\.(model\.)?", "model.", name)
    return re.sub(r"^model\.lm_head\.", "lm_head.", name)


def vision_name(name: str) -> str | None:
    """Return the published name, which servers expect, of a vision tower's or projector's weight; None for others.

    >>> vision_name("model.vision_tower.post_layernorm.bias")
    'vision_tower.vision_model.post_layernorm.bias'
    """
    name = re.sub(r"^model\.(?=multi_modal_projector\.)", "", name)
    name = re.sub(r"^(model\.)?vision_tower\.(vision_model\.)?", "vision_tower.vision_model.", name)
    return name if name.startswith(("vision_tower.", "multi_modal_projector.")) else None


def renamed(folder: Path, rename: Any) -> dict[str, Stored]:
    """Return the weights that a function renames, by their new names; two of one name raise an error."""
    found: dict[str, Stored] = {}
    for name, stored in stored_weights(folder).items():
        new = rename(name)
        if new in found:
            raise UserError(f"{folder} holds {found[new].name} and {name}, which are the same weight; remove one.")
        if new is not None:
            found[new] = stored
    return found


def expected_shapes(kind: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a model of this class, without allocating any."""
    with torch.device("meta"):
        model = kind(config)
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def refuse_other_weights(found: dict[str, Stored], expected: dict[str, tuple[int, ...]], source: Any) -> None:
    """Raise an error unless exactly the expected weights are there, in their shapes, judging by the headers."""
    shapes = {name: stored.shape for name, stored in found.items()}
    names = expected.keys() | shapes.keys()
    if differ := sorted(name for name in names if shapes.get(name) != expected.get(name)):
        raise UserError(
            f"{source} does not fit its config.json: {len(differ)} weights differ. The first is {differ[0]}: expected "
            f"{expected.get(differ[0], 'none')}, found {shapes.get(differ[0], 'none')}. Use a complete checkpoint of "
            "Gemma3ForConditionalGeneration or Gemma3ForCausalLM."
        )


def checked_text_weights(folder: Path, config: Gemma3TextConfig) -> dict[str, Stored]:
    """Return the language model's weights in a multimodal folder; an incomplete folder raises an error."""
    weights, expected = renamed(folder, text_name), expected_shapes(Gemma3ForCausalLM, config)
    if config.tie_word_embeddings and HEAD not in weights:
        del expected[HEAD]
    refuse_other_weights(weights, expected, folder)
    return weights


def load_text_model(folder: Path, **options: Any) -> tuple[Gemma3ForCausalLM, dict[str, Any]]:
    """Load the language model of a multimodal Gemma-3 folder, with the loading report of `from_pretrained`.

    The options are those of `from_pretrained`. The vision tower is not read.
    """
    config = text_config(folder)
    weights = read_weights(checked_text_weights(folder, config))
    # copies, because the tensors are views of a file, and the model may outlive it
    state = {name: weight.to(options.get("dtype"), copy=True) for name, weight in weights.items()}
    options |= {"config": config, "state_dict": state, "output_loading_info": True}
    model, info = Gemma3ForCausalLM.from_pretrained(None, **options)  # pyright: ignore
    model.name_or_path = model.config._name_or_path = str(folder)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model, info
