"""WeakStrongPair: two causal LMs, one forward, one mixed loss; saved and loaded together."""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from weakdriven.errors import UserError
from weakdriven.losses.mixed_ce import IGNORE, MixStatistics, mixed_cross_entropy_with_statistics

WEAK_FOLDER = "weak"


class PairOutput(NamedTuple):
    loss: Tensor
    num_tokens: Tensor
    """Supervised tokens of this batch."""
    statistics: MixStatistics


class WeakStrongPair(nn.Module):
    """Runs both models on the same batch and takes cross-entropy on their mixed logits.

    Args:
        strong_weight: Share of the strong logits, in [0, 1]. Paper: lambda.
        weak_trainable: False freezes the weak model: forward only, no gradient, no optimizer state.
    """

    def __init__(
        self, *, strong: PreTrainedModel, weak: PreTrainedModel, strong_weight: float = 0.5, weak_trainable: bool = True
    ):
        super().__init__()
        if not 0 <= strong_weight <= 1:
            raise UserError(f"strong_weight is {strong_weight}; it must be between 0 and 1.")
        if strong_weight == 0:
            warnings.warn("strong_weight is 0, so the strong model gets no gradient", stacklevel=2)
        rows = [len(head(model).weight) for model in (weak, strong)]
        if rows[0] != rows[1]:
            raise UserError(
                f"Cannot mix logits: weak has {rows[0]} vocabulary rows, strong has {rows[1]}. "
                "Use two checkpoints of one run."
            )
        self.strong, self.weak, self.strong_weight = strong, weak, strong_weight
        self.weak_trainable = weak_trainable
        weak.requires_grad_(weak_trainable)

    def train(self, mode: bool = True) -> "WeakStrongPair":
        super().train(mode)
        if not self.weak_trainable:
            self.weak.eval()
        return self

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> PairOutput:
        """Mixed loss summed over supervised tokens, divided by `num_items_in_batch` (by their number if unset)."""
        target = labels[:, 1:]
        kept = target != IGNORE
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False, **kwargs}
        strong_TD = hidden_states(self.strong, inputs)[:, :-1][kept]
        with torch.set_grad_enabled(self.weak_trainable and torch.is_grad_enabled()):
            weak_TE = hidden_states(self.weak, inputs)[:, :-1][kept]
        mixed_sum, statistics = mixed_cross_entropy_with_statistics(
            strong_TD,
            head(self.strong).weight,
            weak_TE,
            head(self.weak).weight,
            target[kept],
            strong_weight=self.strong_weight,
        )
        num_tokens = kept.sum()
        items = num_tokens.clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        return PairOutput(mixed_sum / items, num_tokens, statistics)

    @property
    def config(self) -> Any:
        return self.strong.config

    @property
    def generation_config(self) -> Any:
        return self.strong.generation_config

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.strong.is_gradient_checkpointing

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        for model in (self.strong, self.weak):
            model.gradient_checkpointing_enable(**kwargs)


def head(model: PreTrainedModel) -> nn.Linear:
    """The layer that turns hidden states into logits."""
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear) or layer.bias is not None:
        raise UserError(f"{type(model).__name__} has no plain output head; weak-driven training needs a causal LM.")
    return layer


def hidden_states(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """What the model's head reads, in the head's own precision."""
    hidden = model.base_model(**inputs).last_hidden_state
    return hidden.to(head(model).weight.dtype)


def save_pair(pair: WeakStrongPair, folder: Path) -> None:
    """An ordinary strong checkpoint, with the weak one in a folder inside."""
    pair.strong.save_pretrained(folder)
    pair.weak.save_pretrained(folder / WEAK_FOLDER)


def load_pair_weights(pair: WeakStrongPair, folder: Path) -> None:
    """Read what `save_pair` wrote back into the same architecture; anything missing or left over is an error."""
    for model, place in ((pair.strong, folder), (pair.weak, folder / WEAK_FOLDER)):
        left, extra = {name for name, _ in model.named_parameters()}, set()
        for shard in sorted(place.glob("*.safetensors")):
            weights = load_file(shard)
            extra.update(model.load_state_dict(weights, strict=False).unexpected_keys)
            left -= weights.keys()
        if left or extra:
            raise UserError(
                f"The checkpoint {place} does not fit: {len(left)} weights are missing and {len(extra)} too many "
                f"(first: {sorted(left | extra)[0]}). Remove it and run again."
            )
