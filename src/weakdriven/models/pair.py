"""WeakStrongPair: two causal LMs, one forward, one mixed loss; saved and loaded together."""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from weakdriven.errors import UserError
from weakdriven.losses.mixed_ce import (
    IGNORE,
    Implementation,
    MixStatistics,
    mixed_cross_entropy_with_statistics,
)
from weakdriven.models.adapters import load_adapter_weights
from weakdriven.models.head import causal_lm, head, hidden_states

WEAK_FOLDER = "weak"


class PairOutput(NamedTuple):
    loss: Tensor
    num_tokens: Tensor
    """Supervised tokens of this batch."""
    statistics: MixStatistics


class WeakStrongPair(nn.Module):
    """Runs both models on the same batch and takes cross-entropy on their mixed logits.

    Args:
        strong_weight: Share of the strong logits, in [0, 1]; may be changed between steps. Paper: lambda. A model whose
            share is 0 for the whole training is not run.
        weak_trainable: False freezes the weak model: forward only, no gradient, no optimizer state.
        strong_anchor: Weight of the strong model's own cross-entropy, added to the mixed one.
        vocabulary: Tokens of the one tokenizer that serves both; needed where the heads are padded differently.
        implementation: Of the loss: `auto`, `triton`, `chunked` or `reference`.
    """

    def __init__(
        self,
        *,
        strong: PreTrainedModel | PeftModel,
        weak: PreTrainedModel | PeftModel,
        strong_weight: float = 0.5,
        weak_trainable: bool = True,
        strong_anchor: float = 0.0,
        vocabulary: int | None = None,
        implementation: Implementation = "auto",
    ):
        super().__init__()
        if not 0 <= strong_weight <= 1:
            raise UserError(f"strong_weight is {strong_weight}; it must be between 0 and 1.")
        if not 0 <= strong_anchor < float("inf"):
            raise UserError(f"strong_anchor is {strong_anchor}; it must be 0 or more.")
        if strong_weight == strong_anchor == 0:
            warnings.warn("strong_weight is 0, so the strong model gets no gradient", stacklevel=2)
        refuse_different_heads(strong, weak, vocabulary)
        self.strong, self.weak = strong, weak
        self.strong_weight, self.strong_anchor = strong_weight, strong_anchor
        self.implementation: Implementation = implementation
        self.weak_trainable = weak_trainable
        if not weak_trainable:
            weak.requires_grad_(False)

    def train(self, mode: bool = True) -> "WeakStrongPair":
        super().train(mode)
        if not self.weak_trainable:
            self.weak.eval()
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> PairOutput:
        """Mixed loss summed over supervised tokens, divided by `num_items_in_batch` (by their number if unset).

        Sequences packed into one row are told apart by `position_ids` that start again, with no `attention_mask`.
        """
        if labels is None:
            raise UserError(
                "WeakStrongPair got no labels; the mixed loss needs the true tokens (-100: not supervised)."
            )
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False, **kwargs}
        if position_ids is not None:
            inputs["position_ids"] = position_ids
        target = labels[:, 1:]
        if position_ids is not None and attention_mask is None:  # the end of one sequence does not predict the next
            target = target.masked_fill(position_ids[:, 1:] == 0, IGNORE)
        # positions by number, so that the one wait for the GPU is here and not once more for each model
        place = (target != IGNORE).flatten().nonzero()[:, 0]

        def supervised(model: Any) -> Tensor:
            return hidden_states(model, inputs)[:, :-1].flatten(0, 1).index_select(0, place)

        strong_TD = supervised(self.strong) if self.strong_weight > 0 or self.strong_anchor > 0 else None
        with torch.set_grad_enabled(self.weak_trainable and torch.is_grad_enabled()):
            weak_TE = supervised(self.weak) if self.strong_weight < 1 else None
        total, statistics = mixed_cross_entropy_with_statistics(
            strong_TD,
            head(self.strong),
            weak_TE,
            head(self.weak),
            target.flatten().index_select(0, place),
            strong_weight=self.strong_weight,
            strong_anchor=self.strong_anchor,
            implementation=self.implementation,
        )
        num_tokens = torch.tensor(len(place), device=target.device)
        items = num_tokens.clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        return PairOutput(total / items, num_tokens, statistics)

    @property
    def config(self) -> Any:
        return self.strong.config

    @property
    def generation_config(self) -> Any:
        return self.strong.generation_config

    @property
    def _no_split_modules(self) -> list[str]:
        """Layers that FSDP shards as one, read by accelerate."""
        layers = (causal_lm(model)._no_split_modules or [] for model in (self.strong, self.weak))
        return sorted({name for names in layers for name in names})

    @property
    def is_gradient_checkpointing(self) -> bool:
        return causal_lm(self.strong).is_gradient_checkpointing

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        for model in (self.strong, self.weak):
            model.gradient_checkpointing_enable(**kwargs)  # pyright: ignore


def refuse_different_heads(strong: Any, weak: Any, vocabulary: int | None) -> None:
    """Heads of one vocabulary may be padded to different lengths; without a tokenizer's word they must be equal."""
    rows = [len(head(model).weight_VD) for model in (weak, strong)]
    if rows[0] != rows[1] and (vocabulary is None or vocabulary > min(rows)):
        known = "" if vocabulary is None else f" for a tokenizer of {vocabulary} tokens"
        raise UserError(
            f"Cannot mix logits: weak has {rows[0]} vocabulary rows, strong has {rows[1]}{known}. "
            "Use two checkpoints of one run, or two models that share a tokenizer."
        )


def save_pair(pair: WeakStrongPair, folder: Path) -> None:
    """An ordinary strong checkpoint, with the weak one in a folder inside; of adapted models the adapters only."""
    pair.strong.save_pretrained(str(folder))
    if not _weak_is_bare_base(pair):
        pair.weak.save_pretrained(str(folder / WEAK_FOLDER))


def load_pair_weights(pair: WeakStrongPair, folder: Path) -> None:
    """Read what `save_pair` wrote back into the same architecture; anything missing or left over is an error."""
    branches = [(pair.strong, folder), (pair.weak, folder / WEAK_FOLDER)]
    for model, place in branches[: 1 if _weak_is_bare_base(pair) else 2]:
        if isinstance(model, PeftModel):
            load_adapter_weights(model, place)
        else:
            _load_weights(model, place)


def _weak_is_bare_base(pair: WeakStrongPair) -> bool:
    """A frozen weak model beside an adapter is not written, as the frozen base of the strong one is not."""
    return isinstance(pair.strong, PeftModel) and not isinstance(pair.weak, PeftModel) and not pair.weak_trainable


def _load_weights(model: PreTrainedModel, folder: Path) -> None:
    left, extra = {name for name, _ in model.named_parameters()}, set()
    for shard in sorted(folder.glob("*.safetensors")):
        weights = load_file(shard)
        extra.update(model.load_state_dict(weights, strict=False).unexpected_keys)
        left -= weights.keys()
    if left or extra:
        raise UserError(
            f"The checkpoint {folder} does not fit: {len(left)} weights are missing and {len(extra)} too many "
            f"(first: {sorted(left | extra)[0]}). Remove it and run again."
        )
