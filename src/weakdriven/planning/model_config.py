"""Read the configuration of a model and derive its shape.

The configurations of common models are shipped, and their shapes follow by arithmetic. Other models are built on
torch's meta device and counted there (`counted_shape.py`).
"""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, try_to_load_from_cache

from weakdriven.config.recipe import LoraSettings
from weakdriven.data.rows.hub import network_fault
from weakdriven.errors import UserError
from weakdriven.planning.model_shape import Adapter, Shape
from weakdriven.runs.files import read_json

SHAPES = Path(__file__).with_name("shapes")
"""Folders of common models, each with the part of config.json that determines the shape (for Gemma-3, of its language
model)."""
VARIANT = re.compile(r"-(Base|Instruct|it|pt|Coder|Math)(?=-|$)")
"""Parts of a model's name that do not affect its shape."""
GLOBAL_EVERY = 6
"""Every sixth layer of Gemma-3 attends to all earlier tokens, the others to those in the window."""


@dataclass(frozen=True)
class ShippedConfig:
    """A shipped config.json of a Llama, Mistral, Qwen or Gemma-3."""

    folder: Path
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    head_dim: int | None = None
    sliding_window: int | None = None

    def shape(self) -> Shape:
        """Return the shape that transformers' class for this model type would have."""
        hidden, layers, width = self.hidden_size, self.num_hidden_layers, self.head_width
        gemma, query_norm = self.model_type == "gemma3_text", self.model_type in ("qwen3", "gemma3_text")
        products = [inputs * outputs for inputs, outputs in self.products().values()]
        norms = [hidden] * (4 if gemma else 2) + [width] * (2 if query_norm else 0)
        biases = [width * heads for heads in self.heads] if self.model_type == "qwen2" else []
        in_layer = [*products, *norms, *biases]
        outside = [self.vocab_size * hidden] * (1 if self.tie_word_embeddings else 2) + [hidden]
        return Shape(
            layers=layers,
            hidden=hidden,
            intermediate=self.intermediate_size,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_dim=width,
            vocabulary=self.vocab_size,
            parameters=layers * sum(in_layer) + sum(outside),
            linear=layers * sum(products),
            tied=self.tie_word_embeddings,
            tensors=layers * len(in_layer) + len(outside),
            query_norm=query_norm,
            norm_after=gemma,
            wide_norm=gemma,
            window=self.sliding_window,
            windowed=layers - layers // GLOBAL_EVERY if gemma else 0,
        )

    def adapter(self, lora: LoraSettings) -> Adapter | None:
        """Return the adapter's size, or None if a target is not the name of a linear layer."""
        products = self.products()
        targets = list(products) if lora.target_modules == "all-linear" else set(lora.target_modules)
        if not products.keys() >= set(targets):
            return None
        inputs, outputs = (sum(products[name][side] for name in targets) for side in (0, 1))
        parameters = self.num_hidden_layers * lora.rank * (inputs + outputs)
        return Adapter(lora.rank, parameters, len(targets), inputs, outputs, lora.quantize is not None)

    def products(self) -> dict[str, tuple[int, int]]:
        """Return the input and output width of each linear layer in a decoder layer."""
        hidden, wide = self.hidden_size, self.intermediate_size
        query, key, value = (self.head_width * heads for heads in self.heads)
        attention = {"q_proj": (hidden, query), "k_proj": (hidden, key), "v_proj": (hidden, value)}
        mlp = {"gate_proj": (hidden, wide), "up_proj": (hidden, wide), "down_proj": (wide, hidden)}
        return {**attention, "o_proj": (query, hidden), **mlp}

    @property
    def heads(self) -> tuple[int, int, int]:
        """Number of heads of queries, keys and values."""
        return self.num_attention_heads, self.num_key_value_heads, self.num_key_value_heads

    def to_json_string(self, use_diff: bool = True) -> str:
        """Return a text that identifies the configuration, like the method of transformers' configurations."""
        return repr(self)

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


def config_folder(source: str) -> Path:
    """Return a folder with config.json: a local one, a shipped one, or one with this file from the Hub.

    >>> config_folder("Qwen/Qwen2.5-Coder-1.5B-Instruct").name
    'Qwen2.5-1.5B'
    """
    on_hub = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    if not on_hub or Path(source).expanduser().is_dir():
        from weakdriven.models.load import locate_model

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
            f"{source} is not a local folder, and its config.json could not be loaded from the Hub ({fault or error}). "
            "A plan needs only that file: give a folder that contains it."
        ) from error


def read_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Read the configuration of the causal LM that is trained; for Gemma-3, of its language model."""
    if folder.parent == SHAPES:
        names = {one.name for one in fields(ShippedConfig)}
        found = read_json(folder / "config.json")
        return ShippedConfig(folder, **{name: value for name, value in found.items() if name in names})
    from weakdriven.planning.counted_shape import load_config

    return load_config(folder, trust_remote_code=trust_remote_code)


def shape_of(config: Any, lora: LoraSettings | None = None, *, trust_remote_code: bool = False) -> Shape:
    """Return the shape of a model, with an adapter if `lora` is given."""
    if isinstance(config, ShippedConfig):
        adapter = config.adapter(lora) if lora else None
        if adapter or not lora:
            return replace(config.shape(), adapter=adapter)
    from weakdriven.planning.counted_shape import count_shape, load_config

    if isinstance(config, ShippedConfig):
        config = load_config(config.folder)
    return count_shape(config, lora, trust_remote_code=trust_remote_code)
