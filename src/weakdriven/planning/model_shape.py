"""The shape of a decoder: the numbers that determine its cost."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Adapter:
    """The LoRA adapter of one model."""

    rank: int
    parameters: int
    """Parameters in the whole model."""
    modules: float
    """Mean number of adapted linear layers per decoder layer."""
    inputs: float
    """Mean sum of their input widths per decoder layer."""
    outputs: float
    """Mean sum of their output widths per decoder layer."""
    quantized: bool = False


@dataclass(frozen=True)
class Shape:
    """The shape of a causal LM; widths in elements, not bytes."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    parameters: int
    """All weights; a tied head counts once."""
    linear: int
    """Weights of the linear layers, without the head."""
    tied: bool
    tensors: int = 0
    query_norm: bool = False
    """Whether queries and keys have norms (Qwen3, Gemma-3)."""
    norm_after: bool = False
    """Whether attention and MLP are also followed by norms (Gemma)."""
    wide_norm: bool = False
    """Whether norms multiply by their weight in fp32 (Gemma)."""
    window: int | None = None
    windowed: int = 0
    """Number of layers with sliding-window attention over `window` tokens."""
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
        """Weights of all matrix products that a token passes through."""
        return self.linear + self.head

    @property
    def layer(self) -> float:
        """Weights of one layer."""
        return (self.parameters - self.head * (1 if self.tied else 2)) / self.layers

    @property
    def trained(self) -> int:
        return self.adapter.parameters if self.adapter else self.parameters

    def attention_flops(self, length: float) -> float:
        """Return the forward FLOPs of attention per token, for a row of this length.

        Causal attention computes half of all pairs, or those in the window.
        """
        full = 2 * length * self.query  # two products, multiply and add, half of the pairs: 2 * 2 / 2
        near = full if self.window is None else min(full, 4 * self.window * self.query)
        return (self.layers - self.windowed) * full + self.windowed * near

    def forward_flops(self, length: float) -> float:
        """Return the FLOPs of a forward pass per token, for a row of this length."""
        return 2.0 * self.products + self.attention_flops(length)
