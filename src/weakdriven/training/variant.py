"""What a method changes in supervised fine-tuning: known before a model is loaded."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, Trainer, TrainerCallback


@dataclass(frozen=True)
class Variant:
    """Plain SFT; a method overrides what it does differently. Two variants are equal if they train the same way."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Added unchanged to the stage's settings, so they are part of its key and of its manifest."""

    def training(
        self, model: "PreTrainedModel | PeftModel", *, seed: list[int]
    ) -> "AbstractContextManager[list[TrainerCallback]]":
        """A context in which the model is trained; yields callbacks that run before our own.

        Its random draws are seeded by the recipe's seed and the number of the phase.
        """
        return nullcontext([])

    def trainer(self, *, teacher: "PreTrainedModel | None", **arguments: Any) -> "Trainer":
        """The trainer, from the arguments of TRL's `SFTTrainer` and, if the variant needs one, a frozen teacher."""
        from weakdriven.training.fsdp import ShardedCheckpoints

        return ShardedCheckpoints(**arguments)


PLAIN = Variant()
