"""Count the shape of any decoder on torch's meta device, without reading or allocating weights."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from weakdriven.config.recipe import LoraSettings
from weakdriven.errors import UserError
from weakdriven.models.gemma3.multimodal import is_multimodal, text_config
from weakdriven.planning.model_shape import Adapter, Shape
from weakdriven.training.lora import lora_config, refuse_targets


def load_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Load the configuration of the causal LM that is trained; for Gemma-3, of its language model."""
    try:
        if is_multimodal(folder):
            return text_config(folder)
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except UserError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"The configuration of {folder} cannot be read ({error}).") from error


def count_shape(config: Any, lora: LoraSettings | None = None, *, trust_remote_code: bool = False) -> Shape:
    """Build the model with its own class on the meta device and count its shape."""
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        shape = count_model(model, config)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        ImportError,
    ) as error:  # also from code that comes with a model
        raise UserError(
            f"A plan needs a decoder that can be built without weights, but {config.model_type} cannot ({error})."
        ) from error
    return replace(shape, adapter=count_adapter(model, lora, shape.layers)) if lora else shape


def count_model(model: Any, config: Any) -> Shape:
    model.tie_weights()
    weights = {id(weight): weight for weight in model.parameters()}
    head = model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    names = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    kinds = list(getattr(config, "layer_types", None) or [])
    heads = config.num_attention_heads
    return Shape(
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


def count_adapter(model: Any, lora: LoraSettings, layers: int) -> Adapter:
    """Count the adapter that PEFT would train."""
    if lora.target_modules != "all-linear":
        refuse_targets(model, list(lora.target_modules))
    loud = logging.getLogger("peft")
    level = loud.level
    loud.setLevel(logging.ERROR)
    try:
        adapted: Any = get_peft_model(model, lora_config(lora), low_cpu_mem_usage=True)
    finally:
        loud.setLevel(level)
    found = [module for module in adapted.modules() if hasattr(module, "lora_A") and hasattr(module, "in_features")]
    return Adapter(
        rank=lora.rank,
        parameters=sum(weight.numel() for name, weight in adapted.named_parameters() if ".lora_" in name),
        modules=len(found) / layers,
        inputs=sum(module.in_features for module in found) / layers,
        outputs=sum(module.out_features for module in found) / layers,
        quantized=lora.quantize is not None,
    )
