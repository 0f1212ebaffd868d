"""Gemma-3 with its vision tower: the language model inside, as an ordinary causal LM.

On disk the same weights have several names: as published (`language_model.model.*`), as some versions of transformers
save them (`model.language_model.*`), and with or without `vision_model.` in the tower. transformers 5.22 offers two
ways, and neither works here: `AutoModelForCausalLM` loads the tower too, and `save_pretrained` undoes a `key_mapping`,
so it writes names that no text model reads. So the names are mapped here.
"""

import re
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, Gemma3Config, Gemma3ForCausalLM, Gemma3TextConfig, GenerationConfig

from weakdriven.errors import UserError
from weakdriven.models.gemma3.shards import Stored, read_weights, stored_weights
from weakdriven.runs.files import read_json

HEAD = "lm_head.weight"
_HEAD = re.compile(r"(?:model\.)?(?:language_model\.)?lm_head\.")
_LANGUAGE = re.compile(r"(?:model\.)?language_model\.(?:model\.)?")
_VISION = re.compile(r"(?:model\.)?vision_tower\.(?:vision_model\.)?")
_PROJECTOR = re.compile(r"(?:model\.)?multi_modal_projector\.")


def is_multimodal(folder: Path) -> bool:
    """Whether a folder's configuration is Gemma-3 with a vision tower."""
    config = read_json(folder / "config.json")
    return config.get("model_type") == "gemma3" and "vision_config" in config


def text_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Configuration of the model that is trained: a folder's own, or that of the language model inside Gemma-3.

    The multimodal class ties its embeddings by the outer setting, so that setting counts.
    """
    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if not isinstance(config, Gemma3Config):
        return config
    inner: Any = config.text_config
    inner.tie_word_embeddings = config.tie_word_embeddings
    inner.dtype = config.dtype if inner.dtype is None else inner.dtype
    return inner


def text_name(name: str) -> str | None:
    """What a weight of the multimodal layout is called in the text model; None if it belongs to the vision side.

    >>> text_name("language_model.model.norm.weight"), text_name("model.language_model.norm.weight")
    ('model.norm.weight', 'model.norm.weight')
    >>> text_name("vision_tower.vision_model.post_layernorm.bias")
    """
    if vision_name(name) is not None:
        return None
    if _HEAD.match(name):
        return _HEAD.sub("lm_head.", name, count=1)
    return _LANGUAGE.sub("model.", name, count=1) if _LANGUAGE.match(name) else name


def vision_name(name: str) -> str | None:
    """Published name of a weight of the vision tower or the projector, which servers expect; None for other weights.

    >>> vision_name("model.vision_tower.post_layernorm.bias")
    'vision_tower.vision_model.post_layernorm.bias'
    """
    for pattern, published in ((_VISION, "vision_tower.vision_model."), (_PROJECTOR, "multi_modal_projector.")):
        if pattern.match(name):
            return pattern.sub(published, name, count=1)
    return None


def renamed(folder: Path, rename: Any) -> dict[str, Stored]:
    """The weights of a folder that a function gives a name, under that name; two with one name are an error."""
    found: dict[str, Stored] = {}
    for name, stored in stored_weights(folder).items():
        new = rename(name)
        if new in found:
            raise UserError(f"{folder} holds {found[new].name} and {name}, which are the same weight; remove one.")
        if new is not None:
            found[new] = stored
    return found


def expected_shapes(kind: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """Shape of every weight that a model of this class has; nothing is allocated."""
    with torch.device("meta"):
        model = kind(config)
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def refuse_other_weights(found: dict[str, Stored], expected: dict[str, tuple[int, ...]], source: Any) -> None:
    """Every expected weight, in its shape, and no other; decided by the headers, before anything is read.

    Args:
        source: Where the weights were found, for the message.
    """
    shapes = {name: stored.shape for name, stored in found.items()}
    names = expected.keys() | shapes.keys()
    if differ := sorted(name for name in names if shapes.get(name) != expected.get(name)):
        raise UserError(
            f"{source} does not fit its config.json: {len(differ)} weights differ. The first is {differ[0]}: expected "
            f"{expected.get(differ[0], 'none')}, found {shapes.get(differ[0], 'none')}. Use a complete checkpoint of "
            "Gemma3ForConditionalGeneration or Gemma3ForCausalLM."
        )


def checked_text_weights(folder: Path, config: Gemma3TextConfig) -> dict[str, Stored]:
    """The language model's weights in a multimodal folder; an incomplete one raises an error."""
    weights, expected = renamed(folder, text_name), expected_shapes(Gemma3ForCausalLM, config)
    if config.tie_word_embeddings and HEAD not in weights:
        del expected[HEAD]
    refuse_other_weights(weights, expected, folder)
    return weights


def load_text_model(folder: Path, **options: Any) -> tuple[Gemma3ForCausalLM, dict[str, Any]]:
    """The language model of a multimodal Gemma-3 folder and transformers' account of the loading.

    The vision tower is never read. Saved again, the model is an ordinary text-only checkpoint.

    Args:
        options: As `from_pretrained` takes them: `dtype`, `attn_implementation` and so on.
    """
    config = text_config(folder)
    weights = checked_text_weights(folder, config)
    # copies, because what is read is a view of the file, and the model has to outlive it
    state = {name: weight.to(options.get("dtype"), copy=True) for name, weight in read_weights(weights).items()}
    options |= {"config": config, "state_dict": state, "output_loading_info": True}
    model, info = Gemma3ForCausalLM.from_pretrained(None, **options)  # pyright: ignore
    model.name_or_path = model.config._name_or_path = str(folder)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model, info
