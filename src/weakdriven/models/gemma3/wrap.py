"""Puts a trained text-only Gemma-3 back into the multimodal layout of its base, for servers that load only that.

The text weights get the published prefix; the base's vision tower and projector are copied bit for bit.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from transformers import AutoConfig, Gemma3ForConditionalGeneration, Gemma3TextConfig

from weakdriven.errors import UserError
from weakdriven.models.adapters import ADAPTER_FILE
from weakdriven.models.gemma3 import multimodal
from weakdriven.models.gemma3.multimodal import Stored, read_weights, stored_weights
from weakdriven.models.load import load_tokenizer, locate_model
from weakdriven.runs.files import read_json, sync_tree, write_json

OF_TRAINED = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
OF_BASE = "*processor_config.json"
TEXT = "language_model."
"""Published prefix of the text model's weights."""
SHARD_BYTES = 2 << 30
"""Approximate memory in use at once; a single tensor may be larger."""
OUTER = ("architectures", "transformers_version", "_name_or_path", "dtype", "torch_dtype")
"""Keys of a whole configuration that its part for the text does not have."""


def wrap_text_model(trained: str, base: str, out: str, *, shard_bytes: int = SHARD_BYTES) -> tuple[int, int]:
    """Save a trained `Gemma3ForCausalLM` as a `Gemma3ForConditionalGeneration` with its base's vision side.

    Args:
        trained: Folder of the text-only checkpoint, with its tokenizer; its precision is kept.
        base: Folder or Hub id of the multimodal model that it was trained from.
        out: New or empty folder.
        shard_bytes: Size of the files, which is about the memory needed.

    Returns:
        The number of text weights and of vision weights.
    """
    target = refuse_used(Path(out).expanduser().resolve())
    text_folder, base_folder = locate_text_model(trained), locate_model(base)
    if not multimodal.is_multimodal(base_folder):
        raise UserError(
            f"{base} is not a multimodal Gemma-3 (model type gemma3 with a vision_config); give the one that the model "
            "was trained from, whose vision tower is added."
        )
    refuse_other_tokens(text_folder, base_folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}") as folder:
        part = Path(folder) / "model"
        part.mkdir()
        write_json(part / "config.json", wrapped_config(text_folder, base_folder))
        config: Any = AutoConfig.from_pretrained(part, trust_remote_code=False)
        refuse_other_settings(config, text_folder)
        weights = read_weights(wrapped_weights(text_folder, base_folder, config))
        copy_files(text_folder, base_folder, part)
        save_torch_state_dict(weights, part, max_shard_size=shard_bytes)
        refuse_changed(weights, part)
        sync_tree(part)
        os.replace(part, target)
    text = sum(name.startswith(TEXT) for name in weights)
    return text, len(weights) - text


def refuse_used(target: Path) -> Path:
    """Raise an error unless a path is new or an empty folder, and can be written; return it."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        found = "holds files" if target.is_dir() else "is a file"
        raise UserError(f"{target} {found}; give a new or empty folder as --output.")
    parent = next(folder for folder in target.parents if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=parent):
            pass
    except OSError as error:
        raise UserError(f"{parent} cannot be written ({error.strerror}); choose a writable --output.") from error
    return target


def locate_text_model(source: str) -> Path:
    """Return the folder of a text-only Gemma-3 with its tokenizer."""
    if (Path(source).expanduser() / ADAPTER_FILE).is_file():
        raise UserError(
            f"{source} is an adapter; expected a whole model. Make one with `weakdriven export merge "
            f"{source} --output FOLDER`."
        )
    folder = locate_model(source)
    kind = read_json(folder / "config.json").get("model_type")
    if kind != Gemma3TextConfig.model_type:
        raise UserError(
            f"{source} has model type {kind}; expected a text-only Gemma-3 (gemma3_text), as runs save it. Other "
            "models need no wrapping."
        )
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"{source} has no tokenizer.json; save the tokenizer that it was trained with there.")
    return folder


def wrapped_weights(trained: Path, base: Path, config: Any) -> dict[str, Stored]:
    """Return every weight of the result by its published name; `config` is the result's configuration."""
    text, vision = stored_weights(trained), multimodal.renamed(base, multimodal.vision_name)
    expected = {
        multimodal.vision_name(name) or f"{TEXT}{multimodal.text_name(name)}": shape
        for name, shape in multimodal.expected_shapes(Gemma3ForConditionalGeneration, config).items()
    }
    if config.tie_word_embeddings:
        text.pop(multimodal.HEAD, None)
        del expected[f"{TEXT}{multimodal.HEAD}"]
    wanted = {f"{TEXT}{name}": stored for name, stored in text.items()} | vision
    multimodal.refuse_other_weights(wanted, expected, f"{trained} with the vision tower of {base}")
    return wanted


def refuse_other_tokens(trained: Path, base: Path) -> None:
    """Raise an error unless every token of the base has kept its id, because the vision side uses these ids."""
    vocabulary = load_tokenizer(trained).get_vocab()
    moved = sorted(name for name, number in load_tokenizer(base).get_vocab().items() if vocabulary.get(name) != number)
    if moved:
        raise UserError(
            f"The tokenizer of {trained} does not fit {base}: {len(moved)} tokens of the base have another id or none "
            f"(first: {moved[0]!r}); use the base that it was trained from."
        )


def wrapped_config(trained: Path, base: Path) -> dict[str, Any]:
    """Return the base's settings with those of the trained text; the base's older names stay, for older servers."""
    outer, inner = read_json(base / "config.json"), read_json(trained / "config.json")
    precision = "torch_dtype" if "torch_dtype" in outer else "dtype"
    parts = {"text_config": outer.get("text_config", {}) | inner, "vision_config": outer["vision_config"]}
    parts = {key: {k: v for k, v in part.items() if k not in OUTER} for key, part in parts.items()}
    tied = bool(multimodal.text_config(trained).tie_word_embeddings)
    changes = {"architectures": ["Gemma3ForConditionalGeneration"], "tie_word_embeddings": tied}
    kind = inner.get("dtype") or inner.get("torch_dtype")
    return outer | parts | changes | ({precision: kind} if kind else {})


def refuse_other_settings(wrapped: Any, trained: Path) -> None:
    """Raise an error unless transformers reads the trained model's settings from the new configuration."""
    theirs = AutoConfig.from_pretrained(trained, trust_remote_code=False).to_dict()
    ours = wrapped.text_config.to_dict()
    differ = sorted(k for k in theirs.keys() | ours.keys() if k not in OUTER and theirs.get(k) != ours.get(k))
    if differ:
        raise UserError(
            f"The base's config.json and that of {trained} cannot be joined: text_config would get {differ[0]} = "
            f"{ours.get(differ[0])!r}, but the trained model has {theirs.get(differ[0])!r}; use the base that it was "
            "trained from."
        )


def copy_files(trained: Path, base: Path, out: Path) -> None:
    """Copy the trained model's tokenizer, chat template and generation settings, and the base's image processor."""
    if not any(base.glob(OF_BASE)):
        raise UserError(f"{base} has no {OF_BASE}, which servers read; use the whole multimodal checkpoint.")
    # the trained model's generation settings come last and replace the base's
    for source, patterns in ((base, [OF_BASE]), (trained, OF_TRAINED)):
        for path in (path for pattern in (*patterns, "generation_config.json") for path in source.glob(pattern)):
            shutil.copyfile(path, out / path.name)


def refuse_changed(weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Read back what was written and compare it as bytes, because NaN does not equal itself."""
    written = read_weights(stored_weights(folder))
    for name, weight in weights.items():
        bits, theirs = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (weight, written[name]))
        if not torch.equal(bits, theirs):
            raise UserError(f"{name} was not written as it was read; check the disk and try again.")
