"""Noise on the input embeddings during training: uniform (NEFTune) or Gaussian (`undial.mode: paper_noise`).

B = rows, L = padded length of the batch, D = width of an embedding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback

from weakdriven.errors import UserError
from weakdriven.models.head import causal_lm
from weakdriven.training.sft import Variant


@dataclass(frozen=True)
class EmbeddingNoise:
    """How much noise, and of which kind."""

    scale: float
    """Alpha of `uniform` noise, sigma of `gaussian` noise; 0 is no noise at all."""
    kind: Literal["uniform", "gaussian"] = "uniform"
    """`uniform`: alpha / sqrt(L D) times u in (-1, 1), as in NEFTune. `gaussian`: sigma / sqrt(L) times N(0, 1)."""
    padded: bool = False
    """L is the padded length, and padding gets noise too, as upstream; otherwise L is each sequence's own length."""

    def draw(self, length: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Noise for sequences of this length; the last dimension of `shape` is D."""
        options: dict[str, Any] = {"generator": generator, "device": generator.device}
        if self.kind == "gaussian":
            return torch.randn(shape, **options) * (self.scale / length**0.5)
        return (2 * torch.rand(shape, **options) - 1) * (self.scale / (length * shape[-1]) ** 0.5)


@dataclass(frozen=True)
class NoisyEmbeddings(Variant):
    """SFT with noise on the embeddings."""

    noise: EmbeddingNoise = field(kw_only=True)

    @contextmanager
    def training(self, model: PreTrainedModel | PeftModel, *, seed: list[int]) -> Iterator[list[TrainerCallback]]:
        """Evaluation, generation and scans see no noise: it needs training mode and recorded gradients.

        Seed and step decide the noise, so a resumed run draws the same noise as an uninterrupted one.
        """
        if self.noise.scale == 0:
            yield []
            return
        callback = NoiseCallback(self.noise, seed)
        inner: Any = causal_lm(model)
        if (factor := getattr(inner.config.get_text_config(), "embedding_multiplier", 1)) not in (None, 1):
            raise UserError(
                f"{type(inner).__name__} multiplies its embeddings by {factor} where no noise can be added after it; "
                "train this model without embedding noise."
            )
        with (
            inner.base_model.register_forward_pre_hook(callback.read_mask, with_kwargs=True),
            inner.get_input_embeddings().register_forward_hook(callback.add_noise),  # Gemma's has scaled its output
        ):
            yield [callback]


class NoiseCallback(TrainerCallback):
    """Adds the noise and logs its size; the trainer's callbacks give the step."""

    def __init__(self, noise: EmbeddingNoise, seed: list[int]):
        self.noise, self.seed = noise, seed
        self.generator: torch.Generator | None = None
        self.step = self.process = 0
        self.mask_BL: Any = None
        self.squares: Tensor | None = None
        """Sums of squares of noise and of embeddings, and the count of each, since the last log."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.process = args.process_index

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step, self.generator = state.global_step, None

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs is not None and "loss" in logs and self.squares is not None:
            noise, embedding, count = self.squares.tolist()
            logs |= {"noise_rms": (noise / count) ** 0.5, "embedding_rms": (embedding / count) ** 0.5}
            self.squares = None

    def read_mask(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.mask_BL = kwargs.get("attention_mask")

    def add_noise(self, module: Any, args: Any, embedding_BLD: Tensor) -> Tensor | None:
        if not module.training or not torch.is_grad_enabled():
            return None
        if self.generator is None:
            # seeded anew at each step, so that there is no state to keep in a checkpoint
            drawn = np.random.SeedSequence([*self.seed, self.step, self.process]).generate_state(1, np.uint64)
            self.generator = torch.Generator(embedding_BLD.device).manual_seed(int(drawn[0]) >> 1)
        _, width, size = shape = embedding_BLD.shape
        if self.noise.padded:
            noise_BLD = self.noise.draw(width, shape, self.generator)
        else:
            noise_BLD = torch.zeros(shape, device=embedding_BLD.device)
            # one by one and without padding, so that the same examples get the same noise in micro-batches of any size
            for row, length in enumerate(self.mask_BL.sum(1).tolist()):
                noise_BLD[row, :length] = self.noise.draw(length, (length, size), self.generator)
        real_BL = embedding_BLD.new_ones(shape[:2]) if self.mask_BL is None else self.mask_BL.float()
        squares = [(x.float().square().sum(-1) * real_BL).sum() for x in (noise_BLD, embedding_BLD.detach())]
        sums = torch.stack([*squares, real_BL.sum() * size])
        self.squares = sums if self.squares is None else self.squares + sums
        return embedding_BLD + noise_BLD.to(embedding_BLD.dtype)
