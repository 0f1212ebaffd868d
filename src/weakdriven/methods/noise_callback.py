"""Adds noise to the input embeddings while a model is trained.

B = rows, L = padded length of the batch, D = width of an embedding.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback

Draw = Callable[[int, tuple[int, ...], torch.Generator], Tensor]
"""Draws noise for sequences of a length, in a shape."""


class NoiseCallback(TrainerCallback):
    """Adds the noise and logs its size; as a callback, it knows the step."""

    def __init__(self, draw: Draw, seed: list[int], *, padded: bool):
        self.draw, self.seed, self.padded = draw, seed, padded
        self.generator: torch.Generator | None = None
        self.step = self.process = 0
        self.mask_BL: Any = None
        self.squares: Tensor | None = None
        """Sum of squares of the noise, sum of squares of the embeddings, and the count of both, since the last log."""

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
            # seeded at each step, so that checkpoints need no generator state
            drawn = np.random.SeedSequence([*self.seed, self.step, self.process]).generate_state(1, np.uint64)
            self.generator = torch.Generator(embedding_BLD.device).manual_seed(int(drawn[0]) >> 1)
        _, width, size = shape = embedding_BLD.shape
        if self.padded:
            noise_BLD = self.draw(width, shape, self.generator)
        else:
            noise_BLD = torch.zeros(shape, device=embedding_BLD.device)
            # row by row and without padding, so that the noise does not depend on the size of micro-batches
            for row, length in enumerate(self.mask_BL.sum(1).tolist()):
                noise_BLD[row, :length] = self.draw(length, (length, size), self.generator)
        real_BL = embedding_BLD.new_ones(shape[:2]) if self.mask_BL is None else self.mask_BL.float()
        squares = [(x.float().square().sum(-1) * real_BL).sum() for x in (noise_BLD, embedding_BLD.detach())]
        sums = torch.stack([*squares, real_BL.sum() * size])
        self.squares = sums if self.squares is None else self.squares + sums
        return embedding_BLD + noise_BLD.to(embedding_BLD.dtype)
