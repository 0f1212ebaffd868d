"""Checks a recipe's `lora` before anything is computed, and translates it to PEFT."""

import difflib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PeftModel
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from weakdriven.config.recipe import LoraSettings
from weakdriven.errors import UserError
from weakdriven.models.adapters import ADAPTER, ADAPTER_FILE, keeps_base, refuse_adapter
from weakdriven.models.gemma3.multimodal import text_config
from weakdriven.models.load import fingerprint, locate_model, refuse_different_vocabularies


def lora_config(lora: LoraSettings) -> LoraConfig:
    size = {"r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
    return LoraConfig(**size, target_modules=lora.target_modules, task_type="CAUSAL_LM")  # pyright: ignore


def check_lora(lora: LoraSettings, base: Path, *, trust_remote_code: bool = False) -> None:
    """Raise an error if this machine cannot quantize, or if a target is missing in the base or cannot be adapted."""
    if lora.quantize and not (find_spec("bitsandbytes") and torch.cuda.is_available()):
        raise UserError(
            f"lora.quantize: {lora.quantize} needs a CUDA device and bitsandbytes (pip install bitsandbytes), but one "
            "is missing here; install it or remove the setting."
        )
    if lora.target_modules == "all-linear":
        return
    config = text_config(base, trust_remote_code=trust_remote_code)
    with torch.device("meta"):  # the layers without weights
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    refuse_targets(model, list(lora.target_modules))


def refuse_targets(model: Any, targets: list[str]) -> None:
    """Raise an error for a target that PEFT would silently ignore, that is the head, or that cannot be merged."""
    head = model.get_output_embeddings()
    linear = [one for one in model.named_modules() if isinstance(one[1], nn.Linear | Conv1D) and one[1] is not head]
    names = sorted({name.rsplit(".", 1)[-1] for name, _ in linear})
    for target in targets:
        found = [one for one in model.named_modules() if f".{one[0]}".endswith(f".{target}")]
        if not found or any(one not in linear for one in found):
            near = difflib.get_close_matches(target, names, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Those are {', '.join(names)}."
            raise UserError(
                f"lora.target_modules: {target} is not a linear layer of {type(model).__name__}, or it is the output "
                f"head, whose weights the mixed loss reads directly. {hint}"
            )


def ready_adapter(source: str, base: Path, base_source: str, *, trust_remote_code: bool = False) -> Path:
    """Return the folder of an M1 that was trained elsewhere; it must be an adapter over the recipe's model."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        folder = locate_model(source)
    if not (folder / ADAPTER_FILE).is_file():
        raise UserError(
            f"sft.model: {source} has no {ADAPTER_FILE}, but lora trains adapters over {base_source}; give an adapter, "
            "or remove lora."
        )
    try:
        config: Any = PeftConfig.from_pretrained(str(folder))
    except Exception as error:
        raise UserError(f"sft.model: {folder / ADAPTER_FILE} cannot be read ({error}).") from error
    refuse_adapter(config, "strong")
    if not keeps_base(config):
        raise UserError(
            f"sft.model: the adapter {source} was made with init_lora_weights {config.init_lora_weights}, which changes"
            " the base itself; convert it first (save_pretrained with path_initial_model_for_weight_conversion)."
        )
    name = config.base_model_name_or_path
    here = Path(str(name))
    if name != base_source and not (here.is_dir() and fingerprint(here) == fingerprint(base)):
        raise UserError(
            f"sft.model: {source} is an adapter over {name}, but the recipe's model is {base_source}; use an adapter "
            f"over the same base (if the base has only moved, correct base_model_name_or_path in {ADAPTER_FILE})."
        )
    if (folder / "tokenizer_config.json").is_file():
        refuse_different_vocabularies(base, folder, trust_remote_code=trust_remote_code)
    return folder


def name_base(model: PeftModel, source: str, folder: Path) -> None:
    """Record the adapter's base in its configuration, so that its folder loads from anywhere on this machine.

    A Hub id is kept, with the commit that was used; a folder is recorded by its absolute path.
    """
    config: Any = model.peft_config[ADAPTER]
    on_hub = folder.parent.name == "snapshots" and not Path(source).expanduser().is_dir()
    config.base_model_name_or_path = source if on_hub else os.path.abspath(folder)
    config.revision = folder.name if on_hub else None
