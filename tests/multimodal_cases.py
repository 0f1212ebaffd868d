"""Tiny Gemma-3 folders with a vision tower, in every layout that exists on disk."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from helpers import embedded_tokenizer
from weakdriven.models.gemma3.multimodal import stored_weights

ROWS = 512
TEXT = {
    "vocab_size": ROWS,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 7,  # the sixth attends to everything, with a scaled rotation
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "sliding_window": 4,
    "query_pre_attn_scalar": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}
VISION = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
    "vision_use_head": False,
}
IDS = torch.arange(3, 23)[None]


def published(name: str) -> str:
    """Return the name in published checkpoints of a weight that transformers 5.22 saves."""
    return name.replace("vision_tower.", "vision_tower.vision_model.")


def newer(name: str) -> str:
    """Return the name as saved by transformers 4.52 and later."""
    if name.startswith("language_model.lm_head."):
        return name.removeprefix("language_model.")
    return "model." + published(name).replace("language_model.model.", "language_model.")


LAYOUTS = {"published": published, "newer": newer, "saved by 5.22": lambda name: name}


def tokenizer() -> Any:
    found = embedded_tokenizer()
    found.add_special_tokens({"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>", "<image>"]})
    return found


def multimodal_model(*, tied: bool = True, dtype: torch.dtype = torch.float32, seed: int = 0, **text: Any) -> Any:
    torch.manual_seed(seed)
    config = Gemma3Config(
        text_config=TEXT | text,
        vision_config=VISION,
        mm_tokens_per_image=4,
        boi_token_index=500,
        eoi_token_index=501,
        image_token_index=502,
        tie_word_embeddings=tied,
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    for weight in model.parameters():  # norms and biases too, else some would be equal
        weight.data.normal_(0, 0.3)
    return model.to(dtype)


def write_multimodal(folder: Path, *, layout: str = "published", shards: int = 1, **options: Any) -> Any:
    """Save a random model with its tokenizer and processor file, and a configuration as short as Google's."""
    model = multimodal_model(**options)
    model.save_pretrained(folder)
    weights = {LAYOUTS[layout](name): weight for name, weight in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    write_weights(folder, weights, shards)
    config = json.loads((folder / "config.json").read_text())
    config["torch_dtype"] = config.pop("dtype")
    if config["tie_word_embeddings"]:
        del config["tie_word_embeddings"]
    config["text_config"] = (
        {"model_type": "gemma3_text"}
        | TEXT
        | {key: config["text_config"][key] for key in options.keys() & config["text_config"].keys()}
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Gemma3ImageProcessor"}')
    tokenizer().save_pretrained(folder)
    return model


def write_weights(folder: Path, weights: dict[str, torch.Tensor], shards: int = 1) -> None:
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    places = {
        name: f"model-{number % shards + 1:05d}-of-{shards:05d}.safetensors" for number, name in enumerate(weights)
    }
    for file in set(places.values()):
        part = {name: weight for name, weight in weights.items() if places[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def all_weights(folder: Path) -> dict[str, torch.Tensor]:
    files = {stored.file for stored in stored_weights(folder).values()}
    return {name: weight for file in sorted(files) for name, weight in load_file(file).items()}


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def change_weights(folder: Path, change: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def copied(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))
