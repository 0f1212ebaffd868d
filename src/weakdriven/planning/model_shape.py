"""The numbers of a decoder that decide its cost, counted on torch's meta device: no weight is read or made."""

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from peft import get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from weakdriven.config.recipe import LoraSettings
from weakdriven.data.rows.hub import network_fault
from weakdriven.errors import UserError
from weakdriven.models.gemma3.multimodal import is_multimodal, text_config
from weakdriven.models.load import EMBEDDED, locate_model
from weakdriven.training.lora import lora_config, refuse_targets

SHAPES = Path(__file__).with_name("shapes")
"""A folder for each usual model, whose config.json has what decides its shape; of Gemma-3, its language model."""
VARIANT = re.compile(r"-(Base|Instruct|it|pt|Coder|Math)(?=-|$)")
"""Parts of a model's name that say how it was trained, not its shape."""


@dataclass(frozen=True)
class Adapter:
    """LoRA on one model."""

    rank: int
    parameters: int
    """In the whole model."""
    modules: float
    """Adapted linear layers of an average decoder layer."""
    inputs: float
    """Sum of their input widths."""
    outputs: float
    quantized: bool = False


@dataclass(frozen=True)
class Shape:
    """A causal LM; widths in numbers, not bytes."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    parameters: int
    """All; a tied head counts once."""
    linear: int
    """Weights of the linear layers, without the head."""
    tied: bool
    tensors: int = 0
    query_norm: bool = False
    """Queries and keys have a norm of their own (Qwen3, Gemma-3)."""
    norm_after: bool = False
    """Attention and MLP are followed by a norm too (Gemma)."""
    wide_norm: bool = False
    """The norm multiplies by its weight in fp32 (Gemma)."""
    window: int | None = None
    windowed: int = 0
    """Layers whose attention looks back no further than `window`."""
    adapter: Adapter | None = None

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def head(self) -> int:
        """Weights of the output head."""
        return self.vocabulary * self.hidden

    @property
    def products(self) -> int:
        """Weights that each token is multiplied with."""
        return self.linear + self.head

    @property
    def layer(self) -> float:
        """Weights of one layer."""
        return (self.parameters - self.head * (1 if self.tied else 2)) / self.layers

    @property
    def trained(self) -> int:
        return self.adapter.parameters if self.adapter else self.parameters

    def attention_flops(self, length: float) -> float:
        """Forward, per token, in a causal row of this length: half of all pairs, or those in the window."""
        full = 2 * length * self.query  # two products, a multiplication and an addition each, half of the pairs
        near = full if self.window is None else min(full, 4 * self.window * self.query)
        return (self.layers - self.windowed) * full + self.windowed * near

    def forward_flops(self, length: float) -> float:
        """Of a forward pass, per token of a row of this length."""
        return 2.0 * self.products + self.attention_flops(length)


def config_folder(source: str) -> Path:
    """A folder that holds config.json: a local one, the shape that ships with the package, or this file from the Hub.

    >>> config_folder("Qwen/Qwen2.5-Coder-1.5B-Instruct").name
    'Qwen2.5-1.5B'
    """
    on_hub = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    if source == EMBEDDED or Path(source).expanduser().is_dir() or not on_hub:
        return locate_model(source)
    cached = try_to_load_from_cache(source, "config.json")
    shape = SHAPES / VARIANT.sub("", source.rpartition("/")[2])
    if not isinstance(cached, str) and shape.is_dir():
        return shape
    fault = "" if isinstance(cached, str) else network_fault()
    try:
        return Path(cached if isinstance(cached, str) else hf_hub_download(source, "config.json")).parent
    except Exception as error:
        raise UserError(
            f"{source} is neither a local folder nor a model whose config.json the Hub gives ({fault or error}); a "
            "plan needs that one file, so a folder with nothing else in it is enough."
        ) from error


def read_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Configuration of the causal LM that is trained; of Gemma-3 its language model."""
    try:
        if is_multimodal(folder):
            return text_config(folder)
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except UserError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"The configuration of {folder} cannot be read ({error}).") from error


def shape_of(config: Any, lora: LoraSettings | None = None, *, trust_remote_code: bool = False) -> Shape:
    """Count what the architecture's own class builds."""
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        shape = count_model(model, config)
    except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as error:  # code that comes with a model
        raise UserError(
            f"A plan knows decoders of the usual kind, which can be built without weights; {config.model_type} is "
            f"none ({error})."
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
    """What PEFT itself would train."""
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
