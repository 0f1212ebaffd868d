"""Noise on the input embeddings during training: uniform (NEFTune) or Gaussian (`undial.mode: paper_noise`).

B = rows, L = width of the batch, D = width of an embedding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

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
    length: Literal["true", "padded"] = "true"
    """L: each sequence's own, with no noise on padding; or the batch's width, with noise on all of it (as upstream)."""

    def __post_init__(self) -> None:
        if not 0 <= self.scale < float("inf"):
            raise UserError(
                f"The scale of the embedding noise is {self.scale}; it must be 0 (off) or a positive number."
            )

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

        Args:
            seed: Decides the noise together with the step, so that a resumed run draws what it would have drawn.
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
            inner.base_model.register_forward_pre_hook(callback.read_inputs, with_kwargs=True),
            inner.get_input_embeddings().register_forward_hook(callback.add_noise),  # Gemma's has scaled its output
        ):
            yield [callback]


class Segment(NamedTuple):
    """One sequence within a batch."""

    row: int
    start: int
    length: int


class NoiseCallback(TrainerCallback):
    """Adds the noise and logs its size; the trainer's callbacks give the step."""

    def __init__(self, noise: EmbeddingNoise, seed: list[int]):
        self.noise, self.seed = noise, seed
        self.generator: torch.Generator | None = None
        self.step = self.process = 0
        self.packed = False
        self.inputs: dict[str, Any] = {}
        self.sums: Tensor | None = None
        """Sums of squares of noise and of embeddings, and the count of each."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.process, self.packed = args.process_index, getattr(args, "packing", False)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step, self.generator = state.global_step, None

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs is not None and "loss" in logs and self.sums is not None:
            noise, embedding, count = self.sums.tolist()
            logs |= {"noise_rms": (noise / count) ** 0.5, "embedding_rms": (embedding / count) ** 0.5}
            self.sums = None

    def read_inputs(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """The decoder's inputs say where sequences begin and end."""
        self.inputs = {name: kwargs.get(name) for name in ("attention_mask", "position_ids")}

    def add_noise(self, module: Any, args: Any, embedding_BLD: Tensor) -> Tensor | None:
        if not module.training or not torch.is_grad_enabled():
            return None
        if self.generator is None:
            # seeded anew at each step, so that there is no state to keep in a checkpoint
            drawn = np.random.SeedSequence([*self.seed, self.step, self.process]).generate_state(1, np.uint64)
            self.generator = torch.Generator(embedding_BLD.device).manual_seed(int(drawn[0] >> 1))
        noise_BLD = self._noise(embedding_BLD.shape)
        size, mask_BL = embedding_BLD.shape[-1], self.inputs["attention_mask"]
        squares = [x.float().square().sum(-1) for x in (noise_BLD, embedding_BLD.detach())]
        real_BL = torch.ones_like(squares[0]) if mask_BL is None else mask_BL.to(squares[0])
        sums = torch.stack([(squares[0] * real_BL).sum(), (squares[1] * real_BL).sum(), real_BL.sum() * size])
        self.sums = sums if self.sums is None else self.sums + sums
        return embedding_BLD + noise_BLD.to(embedding_BLD.dtype)

    def _noise(self, shape: torch.Size) -> Tensor:
        assert self.generator is not None
        rows, width, size = shape
        if self.noise.length == "padded":
            return self.noise.draw(width, (rows, width, size), self.generator)
        noise_BLD = torch.zeros(shape, device=self.generator.device)
        # one by one and without padding, so that the same rows get the same noise in micro-batches of any size
        for row, start, length in segments(rows, width, packed=self.packed, **self.inputs):
            noise_BLD[row, start : start + length] = self.noise.draw(length, (length, size), self.generator)
        return noise_BLD


def segments(
    rows: int, width: int, *, attention_mask: Tensor | None, position_ids: Tensor | None, packed: bool = False
) -> list[Segment]:
    """The sequences of a batch: each row's unmasked part, or more where its positions begin again at 0.

    >>> segments(1, 5, attention_mask=None, position_ids=torch.tensor([[0, 1, 2, 0, 1]]))
    [Segment(row=0, start=0, length=3), Segment(row=0, start=3, length=2)]
    >>> segments(2, 3, attention_mask=torch.tensor([[1, 1, 1], [1, 1, 0]]), position_ids=None)
    [Segment(row=0, start=0, length=3), Segment(row=1, start=0, length=2)]
    """
    if position_ids is None and (packed or attention_mask is None):
        raise UserError(
            "The batch has no position_ids that show where each of its packed sequences begins, and the noise on an "
            "embedding depends on the length of its sequence; train without packing or with padding_free."
        )
    if attention_mask is not None and attention_mask.dim() != 2:
        raise UserError(
            f"The attention_mask has {attention_mask.dim()} dimensions, so the lengths of the sequences cannot be read "
            "from it; give one number for each token."
        )
    found: list[Segment] = []
    mask_BL = np.ones((rows, width), bool) if attention_mask is None else attention_mask.cpu().numpy().astype(bool)
    begins_BL = np.zeros((rows, width), bool)
    if position_ids is not None:
        begins_BL |= np.broadcast_to(position_ids.cpu().numpy() == 0, (rows, width))
    for row in range(rows):
        real = np.flatnonzero(mask_BL[row])
        starts = np.union1d(real[:1], real[begins_BL[row, real]])
        lengths = np.diff(np.append(starts, real[-1:] + 1))
        found += [Segment(row, *one) for one in zip(starts.tolist(), lengths.tolist(), strict=True)]
    return found
