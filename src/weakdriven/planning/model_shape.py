"""A model's Shape from its configuration alone: built on torch's meta device, so no weight is read or made."""

import json
import logging
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from weakdriven.config.recipe import LoraSettings
from weakdriven.errors import UserError
from weakdriven.models.gemma3.multimodal import is_multimodal, text_config
from weakdriven.models.load import EMBEDDED, locate_model
from weakdriven.planning.shape import Adapter, Shape
from weakdriven.training.lora import lora_config, refuse_targets


def config_folder(source: str) -> Path:
    """A folder that holds config.json: a local one, or what the Hub gives of this single file."""
    on_hub = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    if source == EMBEDDED or Path(source).expanduser().is_dir() or not on_hub:
        return locate_model(source)  # which says what was expected
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(source, "config.json")).parent
    except Exception as error:
        raise UserError(
            f"{source} is neither a folder here nor a model whose config.json the Hub gives ({error}); a plan needs "
            "that one file, so a folder with nothing else in it will do."
        ) from error


def read_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Configuration of the causal LM that is trained; inside Gemma-3 the language model."""
    try:
        if is_multimodal(folder):
            return text_config(folder)
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
        raise UserError(f"The configuration of {folder} cannot be read ({error}).") from error


def shape_of(config: Any, lora: LoraSettings | None = None, *, trust_remote_code: bool = False) -> Shape:
    """Counts what the architecture's own class builds; a tied head counts once."""
    needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    if missing := [name for name in needed if getattr(config, name, None) is None]:
        raise UserError(
            f"A plan needs {missing[0]} in the configuration, and {config.model_type} has none; this version plans "
            "decoders of the usual kind."
        )
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as error:  # code that comes with a model
        raise UserError(
            f"{config.model_type} cannot be built without its weights, so it has no plan ({error})."
        ) from error
    model.tie_weights()
    weights = {id(weight): weight for weight in model.parameters()}
    head = model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    names = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    kinds = list(getattr(config, "layer_types", None) or [])
    heads = config.num_attention_heads
    shape = Shape(
        kind=config.model_type,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        parameters=sum(weight.numel() for weight in weights.values()),
        linear=sum(module.weight.numel() for module in linear),
        tied=head is not None and head.weight is model.get_input_embeddings().weight,
        tensors=len(weights),
        query_norm="q_norm" in names,
        norm_after="post_feedforward_layernorm" in names,
        wide_norm=config.model_type.startswith("gemma"),
        window=getattr(config, "sliding_window", None) if "sliding_attention" in kinds else None,
        windowed=kinds.count("sliding_attention"),
    )
    return shape.with_adapter(adapter_of(model, lora, shape.layers)) if lora else shape


def adapter_of(model: Any, lora: LoraSettings, layers: int) -> Adapter:
    """What PEFT itself would train, counted on the meta device."""
    if lora.target_modules != "all-linear":
        refuse_targets(model, list(lora.target_modules))
    loud = logging.getLogger("peft")
    level = loud.level
    loud.setLevel(logging.ERROR)
    try:
        adapted: Any = get_peft_model(model, lora_config(lora), low_cpu_mem_usage=True)
    finally:
        loud.setLevel(level)
    parameters = sum(weight.numel() for name, weight in adapted.named_parameters() if ".lora_" in name)
    found = [module for module in adapted.modules() if hasattr(module, "lora_A") and hasattr(module, "in_features")]
    return Adapter(
        rank=lora.rank,
        parameters=parameters,
        modules=len(found) / layers,
        inputs=sum(module.in_features for module in found) / layers,
        outputs=sum(module.out_features for module in found) / layers,
        quantized=lora.quantize is not None,
    )
