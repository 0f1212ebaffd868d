"""What a method changes in supervised fine-tuning, as known before a model is loaded."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, Trainer, TrainerCallback


@dataclass(frozen=True)
class Variant:
    """Plain SFT, of which methods override a part. Two variants are equal if they train the same way."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Added to the stage's settings, and so to its key and manifest."""

    def training(
        self, model: "PreTrainedModel | PeftModel", *, seed: list[int]
    ) -> "AbstractContextManager[list[TrainerCallback]]":
        """Wrap the training of the model in a context that yields callbacks to run before our own.

        Args:
            seed: The recipe's seed and the number of the phase, for random draws.
        """
        return nullcontext([])

    def trainer(self, *, teacher: "PreTrainedModel | None", **arguments: Any) -> "Trainer":
        """Make the trainer from the arguments of TRL's `SFTTrainer` and, if the variant needs one, a frozen teacher."""
        from weakdriven.training.fsdp import ShardedCheckpoints

        return ShardedCheckpoints(**arguments)


PLAIN = Variant()
