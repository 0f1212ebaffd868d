"""The base class of all settings, and the settings of a training phase."""

import math
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

UNION = "one of: "
"""Prefix of the tag of a union's member; error messages leave such tags out of a setting's key."""


class Settings(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def refuse_repeats(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError(f"contains a name twice: {', '.join(values)}")
    return values


class TrainSettings(Settings):
    """One training phase, with its own optimizer and schedule."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the data of this phase."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    batch_size: int = Field(default=512, ge=1)
    """Examples per optimizer step, over all devices and accumulated micro-batches."""
    micro_batch_size: int = Field(default=1, ge=1)
    """Examples per device and forward pass."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum global norm of the gradients; larger gradients are clipped to it."""
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1)
    """Fraction of the steps in which the learning rate warms up."""
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    """Learning-rate schedule after warm-up."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's two decay rates."""
    optimizer: Literal["adamw", "adamw_bf16", "adamw_8bit", "adamw_fp8", "rmsprop"] = "adamw"
    """`adamw` keeps its state in the precision of the weights; `adamw_bf16`, `adamw_8bit` and `adamw_fp8`, which need
    torchao, in bf16, 8 bits or fp8. `rmsprop`, which SPIN uses, is torch's, with a fixed decay of 0.99 and weight decay
    added to the gradient.

    With `precision: bf16` an update of 1e-5 is smaller than the spacing of most weights, so `adamw` and `rmsprop` lose
    it. The others round stochastically, which preserves it on average."""
    gradient_checkpointing: Literal[True, False, "keep_attention", "keep_products"] = True
    """Recompute activations in the backward pass: about a fifth slower, with far less memory. `keep_attention` does not
    recompute attention. `keep_products` recomputes no matrix product either, which is faster but saves less memory."""
    activation_offloading: bool = False
    """Offload saved activations to CPU memory until the backward pass: slower, but fits longer sequences."""
    save_steps: int = Field(default=50, ge=0)
    """Optimizer steps between checkpoints, from which a stopped run resumes. 0 writes no checkpoints and needs no disk
    for them, but a stopped phase then starts again."""
    logging_steps: int = Field(default=1, ge=1)
    """Optimizer steps between lines in metrics.jsonl."""
    snapshots: list[float] = Field(default=[], max_length=20)
    """Fractions of this phase's steps, such as [0.25, 0.5, 0.75], after which the model is also saved, in
    <stage>/snapshots/25 and so on. Changing this list trains the phase again."""

    def steps(self, rows: int, epochs: int | None = None) -> int:
        """Return the optimizer steps of `epochs` (default: all) over `rows` examples; at least one step per epoch.

        >>> TrainSettings(batch_size=512).steps(1000), TrainSettings(batch_size=512).steps(100, epochs=3)
        (1, 3)
        """
        return rows // min(self.batch_size, rows) * (self.epochs if epochs is None else epochs)

    def saves(self, steps: int) -> int:
        """Return the maximum number of checkpoints in a phase, including one at its last step or when it is stopped.

        >>> TrainSettings(save_steps=50).saves(120), TrainSettings(save_steps=0).saves(120)
        (3, 0)
        """
        return math.ceil(steps / self.save_steps) if self.save_steps else 0

    @field_validator("snapshots")
    @classmethod
    def _whole_percents_that_rise(cls, shares: list[float]) -> list[float]:
        for share in shares:
            if not 0 < share < 1 or abs(100 * share - round(100 * share)) > 1e-9:
                raise ValueError(f"expected fractions between 0 and 1 with at most two decimals, found {share}")
        if any(later <= share for share, later in pairwise(shares)):
            raise ValueError(f"expected fractions in ascending order without repeats, found {shares}")
        return shares

    @field_validator("adam_betas", mode="before")
    @classmethod
    def _two_shares(cls, value: Any) -> Any:
        pair = list(value) if isinstance(value, list | tuple) else []
        if len(pair) != 2 or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in pair):
            raise ValueError(f"expected two numbers of at least 0 and below 1, such as [0.9, 0.999], found {value}")
        return float(pair[0]), float(pair[1])

    @model_validator(mode="after")
    def _settings_fit(self) -> "TrainSettings":
        if self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of micro_batch_size {self.micro_batch_size}; "
                "choose a micro_batch_size that divides it"
            )
        if self.optimizer == "rmsprop" and self.adam_betas != (0.9, 0.999):
            raise ValueError("adam_betas belong to AdamW, but optimizer is rmsprop; remove one of them")
        return self


class SupervisedSettings(TrainSettings):
    """A training phase that supervises completions."""

    packing: Literal["auto", True, False] = "auto"
    """Pack examples into one sequence without padding, as many as fit into `micro_batch_size` times
    `data.max_length` tokens; attention stays within an example. `auto` packs on GPUs in half precision, if the model's
    layers keep examples apart. Results differ by rounding."""
    eval_steps: int | float | None = None
    """Optimizer steps between evaluations on the validation rows, or a fraction of the phase's steps, such as 0.1
    (default: no evaluation). The last step is always evaluated. Joint training reports the strong model's loss."""

    def evaluates_every(self, steps: int) -> int:
        """Return `eval_steps` as a number of steps in a phase of `steps` steps; 0 if nothing is evaluated.

        >>> [SupervisedSettings(eval_steps=one).evaluates_every(150) for one in (20, 0.1, None)]
        [20, 15, 0]
        """
        every = self.eval_steps or 0
        return max(round(every * steps), 1) if 0 < every < 1 else int(every)

    @field_validator("eval_steps")
    @classmethod
    def _steps_or_a_fraction(cls, value: float | None) -> float | None:
        if value is not None and not (value >= 1 if isinstance(value, int) else 0 < value < 1):
            raise ValueError(f"expected a number of steps, such as 50, or a fraction, such as 0.1, found {value}")
        return value
