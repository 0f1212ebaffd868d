"""Noise on the input embeddings during training: uniform (NEFTune) or Gaussian (`undial.mode: paper_noise`).

B = rows, L = padded length of the batch, D = width of an embedding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from weakdriven.errors import UserError
from weakdriven.training.variant import Variant

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel, TrainerCallback


@dataclass(frozen=True)
class EmbeddingNoise:
    """Size and kind of the noise."""

    scale: float
    """Alpha of `uniform` noise or sigma of `gaussian` noise; 0 adds no noise."""
    kind: Literal["uniform", "gaussian"] = "uniform"
    """`uniform`: alpha / sqrt(L D) * U(-1, 1), as in NEFTune. `gaussian`: sigma / sqrt(L) * N(0, 1)."""
    padded: bool = False
    """If True, L is the padded length and padding gets noise too, as upstream; else L is each sequence's length."""

    def draw(self, length: int, shape: tuple[int, ...], generator: "torch.Generator") -> "torch.Tensor":
        """Draw noise for sequences of this length; the last dimension of `shape` is D."""
        import torch

        options: dict[str, Any] = {"generator": generator, "device": generator.device}
        if self.kind == "gaussian":
            return torch.randn(shape, **options) * (self.scale / length**0.5)
        return (2 * torch.rand(shape, **options) - 1) * (self.scale / (length * shape[-1]) ** 0.5)


@dataclass(frozen=True)
class NoisyEmbeddings(Variant):
    """SFT with noise on the embeddings."""

    noise: EmbeddingNoise = field(kw_only=True)

    @contextmanager
    def training(self, model: "PreTrainedModel | PeftModel", *, seed: list[int]) -> "Iterator[list[TrainerCallback]]":
        """Add noise in training mode while gradients are recorded, so not in evaluation, generation or scans.

        The noise depends on seed and step, so a resumed run draws the same noise as an uninterrupted one.
        """
        from weakdriven.methods.noise_callback import NoiseCallback
        from weakdriven.models.head import causal_lm

        if self.noise.scale == 0:
            yield []
            return
        callback = NoiseCallback(self.noise.draw, seed, padded=self.noise.padded)
        inner: Any = causal_lm(model)
        if (factor := getattr(inner.config.get_text_config(), "embedding_multiplier", 1)) not in (None, 1):
            raise UserError(
                f"{type(inner).__name__} multiplies its embeddings by {factor}, and noise cannot be added after that; "
                "train this model without embedding noise."
            )
        with (
            inner.base_model.register_forward_pre_hook(callback.read_mask, with_kwargs=True),
            inner.get_input_embeddings().register_forward_hook(callback.add_noise),  # Gemma's output is already scaled
        ):
            yield [callback]
