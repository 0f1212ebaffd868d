"""What a method changes about supervised fine-tuning. The changes themselves are in `methods`."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel, Trainer, TrainerCallback

from weakdriven.training.fsdp import ShardedCheckpoints


@dataclass(frozen=True)
class Variant:
    """Plain SFT; a method overrides what it does differently. Two variants are equal if they train the same way."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Added unchanged to the stage's settings, so they are part of its key and of its manifest."""

    def training(
        self, model: PreTrainedModel | PeftModel, *, seed: list[int]
    ) -> AbstractContextManager[list[TrainerCallback]]:
        """A context in which the model is trained; yields callbacks that run before our own.

        Args:
            seed: Seed of the recipe and number of the phase, for what the context draws at random.
        """
        return nullcontext([])

    def trainer(self, *, teacher: PreTrainedModel | None, **arguments: Any) -> Trainer:
        """The trainer.

        Args:
            teacher: A frozen model, for a variant that needs one.
            arguments: Those of TRL's `SFTTrainer`.
        """
        return ShardedCheckpoints(**arguments)


PLAIN = Variant()
