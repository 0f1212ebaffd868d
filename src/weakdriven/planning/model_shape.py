"""The numbers of a decoder that decide its cost."""

from dataclasses import dataclass


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
