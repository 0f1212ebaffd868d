"""WeakStrongPair: two causal LMs with one forward pass and one mixed loss, saved and loaded together."""

import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from weakdriven.errors import UserError
from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import IGNORE, MixStatistics, mixed_cross_entropy_with_statistics, targets
from weakdriven.losses.tiled_loss import refuse_negative
from weakdriven.losses.tiles import Implementation
from weakdriven.models.adapters import load_adapter_weights, merged
from weakdriven.models.head import causal_lm, head, hidden_states, refuse_different_heads
from weakdriven.models.sharded import checkpoint_weights, gathered_model, is_sharded, whole

WEAK_FOLDER = "weak"
PAIR_FILE = "pair.json"
"""File next to a saved pair: its mixture at that step, and the rest of its training state."""
MeanRow = tuple[Tensor, Tensor]
"""Mean row and mean bias of a head, times the head's scale; together they give the mean logit."""


class PairOutput(NamedTuple):
    loss: Tensor
    num_tokens: Tensor
    """Supervised tokens of this batch."""
    statistics: MixStatistics
    mean_logits: tuple[Tensor, Tensor]
    """The strong and the weak model's mean logit over the vocabulary, summed over supervised tokens. NaN if it was not
    requested, the model did not run, or its logits are capped."""


def _of_strong(name: str) -> Any:
    return property(lambda pair: getattr(pair.strong, name))


class WeakStrongPair(nn.Module):
    """Runs both models on the same batch and takes cross-entropy on their mixed logits.

    Args:
        strong_weight: Share of the strong logits, in [0, 1]; may change between steps. Paper: lambda. The weak model
            does not run while its share is 0, nor does the strong model if it has no anchor either.
        weak_trainable: If False, the weak model is frozen: no gradients and no optimizer state.
        strong_anchor: Weight of the strong model's own cross-entropy, added to the mixed one.
        vocabulary: Size of the common vocabulary; needed if the heads are padded to different sizes.
        implementation: Implementation of the loss: `auto`, `triton`, `chunked` or `reference`.
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
        refuse_negative(strong_anchor=strong_anchor)
        if strong_weight == strong_anchor == 0:
            warnings.warn("strong_weight is 0, so the strong model gets no gradient", stacklevel=2)
        refuse_shared_layers(strong, weak)
        refuse_different_heads(strong, weak, vocabulary)
        self.strong, self.weak = strong, weak
        self.strong_anchor = strong_anchor
        self.strong_weight = strong_weight
        self.implementation: Implementation = implementation
        self.weak_trainable = weak_trainable
        self._mean_rows: tuple[MeanRow | None, MeanRow | None] = None, None
        if not weak_trainable:
            weak.requires_grad_(False)

    @property
    def strong_weight(self) -> float:
        return self._strong_weight

    @strong_weight.setter
    def strong_weight(self, value: float) -> None:
        self._strong_weight = value
        # a compiled forward reads these flags and not the weight, so a schedule does not recompile it at each step
        self.strong_runs, self.weak_runs = value > 0 or self.strong_anchor > 0, value < 1

    def measure_mean_logits(self, on: bool) -> None:
        """Set whether the next forward passes return mean logits; call it again after each optimizer step."""
        self._mean_rows = (mean_row(head(self.strong)), mean_row(head(self.weak))) if on else (None, None)

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
        """Return the mixed loss: its sum over supervised tokens / `num_items_in_batch` (default: their number).

        Sequences packed into one row need `position_ids` that restart at each sequence, and no `attention_mask`.
        """
        if labels is None:
            raise UserError("WeakStrongPair got no labels; it needs the true tokens (-100: not supervised).")
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False, **kwargs}
        if position_ids is not None:
            inputs["position_ids"] = position_ids
        target = targets(labels, position_ids, attention_mask)
        # indices wait for the GPU once; a mask would wait once per model
        place = (target != IGNORE).flatten().nonzero()[:, 0]
        items = float(len(place) if num_items_in_batch is None else num_items_in_batch)

        def supervised(model: Any) -> Tensor:
            return hidden_states(model, inputs)[:, :-1].flatten(0, 1).index_select(0, place)

        strong_TD = supervised(self.strong) if self.strong_runs else None
        with torch.set_grad_enabled(self.weak_trainable and torch.is_grad_enabled()):
            weak_TE = supervised(self.weak) if self.weak_runs else None
        target_T = target.flatten().index_select(0, place)
        return self._mixed_loss(strong_TD, weak_TE, target_T, items)  # pyright: ignore

    @torch.compiler.disable
    def _mixed_loss(
        self, strong_TD: Tensor | None, weak_TE: Tensor | None, target_T: Tensor, items: float
    ) -> PairOutput:
        scale = 1 / max(items, 1.0)
        options: dict[str, Any] = {"strong_weight": self.strong_weight, "strong_anchor": self.strong_anchor}
        options |= {"scale": scale, "implementation": self.implementation}
        loss, statistics = mixed_cross_entropy_with_statistics(
            strong_TD, head(self.strong), weak_TE, head(self.weak), target_T, **options
        )
        unknown = torch.full_like(statistics.mixed_loss, torch.nan)
        strong, weak = (
            unknown if row is None or hidden is None else summed_mean_logit(hidden, row)
            for hidden, row in zip((strong_TD, weak_TE), self._mean_rows, strict=True)
        )
        return PairOutput(loss, target_T.new_full((), len(target_T)), statistics, (strong, weak))

    # Attributes that users and callbacks read from a trained model. Those by which Trainer and accelerate decide how to
    # train one model are left out (get_input_embeddings, tie_weights, quantization, device maps).
    config = _of_strong("config")
    generation_config = _of_strong("generation_config")
    device = _of_strong("device")
    dtype = _of_strong("dtype")
    name_or_path = _of_strong("name_or_path")
    model_tags = _of_strong("model_tags")
    add_model_tags = _of_strong("add_model_tags")
    num_parameters = _of_strong("num_parameters")
    print_trainable_parameters = _of_strong("print_trainable_parameters")

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate with the strong model; a method, because under FSDP2 Trainer wraps it to gather the weights."""
        return self.strong.generate(*args, **kwargs)  # pyright: ignore

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the strong model; if it is sharded, all processes must call this."""
        if (strong := self._whole_strong()) is not None:
            strong.save_pretrained(*args, **kwargs)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Upload the strong model; if it is sharded, all processes must call this."""
        return None if (strong := self._whole_strong()) is None else strong.push_to_hub(*args, **kwargs)

    def merge_and_unload(self, *args: Any, **kwargs: Any) -> PreTrainedModel:
        """Return a copy of the strong model with its adapter merged; the base is unchanged, as both may share it."""
        if not isinstance(self.strong, PeftModel):
            raise UserError("The strong model has no adapter to merge; it is an ordinary model already.")
        return merged(self.strong, *args, **kwargs)

    def _whole_strong(self) -> Any:
        """Return the strong model; if it is sharded, a copy in main memory on the main process and None elsewhere."""
        return gathered_model(self.strong) if is_sharded(self.strong) else self.strong

    @property
    def _no_split_modules(self) -> list[str]:
        """Layers that FSDP shards as one unit; accelerate reads them."""
        layers = (causal_lm(model)._no_split_modules or [] for model in (self.strong, self.weak))
        return sorted({name for names in layers for name in names})

    @property
    def is_gradient_checkpointing(self) -> bool:
        return causal_lm(self.strong).is_gradient_checkpointing

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        for model in (self.strong, self.weak):
            model.gradient_checkpointing_enable(**kwargs)  # pyright: ignore

    def gradient_checkpointing_disable(self) -> None:
        for model in (self.strong, self.weak):
            model.gradient_checkpointing_disable()  # pyright: ignore


@torch.no_grad()
def mean_row(head: Head) -> MeanRow | None:
    """Average a head's rows, including padding, in float32 or better; return None if the head caps its logits."""
    if head.cap is not None:
        return None
    wide, factor = torch.promote_types(head.weight_VD.dtype, torch.float32), head.scale / len(head.weight_VD)
    weight_D = head.weight_VD.sum(0, dtype=wide) * factor
    bias = weight_D.new_zeros(()) if head.bias_V is None else head.bias_V.sum(dtype=wide) * factor
    return whole(weight_D), whole(bias)  # between two forward passes, a process may hold only a shard


@torch.no_grad()
def summed_mean_logit(hidden_TD: Tensor, row: MeanRow) -> Tensor:
    """Sum each token's mean logit over the vocabulary, without computing the logits.

    >>> row = mean_row(Head(torch.eye(2), scale=0.5))
    >>> summed_mean_logit(torch.tensor([[2.0, 4.0], [0.0, 2.0]]), row).item()
    2.0
    """
    weight_D, bias = row  # no matrix product, because autocast would round it
    return (hidden_TD.sum(0, dtype=weight_D.dtype) * weight_D).sum() + len(hidden_TD) * bias


def refuse_shared_layers(strong: nn.Module, weak: nn.Module) -> None:
    if {id(module) for module in strong.modules()} & {id(module) for module in weak.modules()}:
        raise UserError("Weak and strong model share layers; give the weak one as a path, or load it a second time.")


def save_pair(pair: WeakStrongPair, folder: Path, **more: Any) -> None:
    """Save the strong model as an ordinary checkpoint with the weak one in a subfolder; of PEFT models, the adapters.

    Args:
        more: JSON values to save with the pair; `read_pair` returns them.
    """
    pair.strong.save_pretrained(str(folder))
    if not _weak_is_bare_base(pair):
        pair.weak.save_pretrained(str(folder / WEAK_FOLDER))
    write_pair(pair, folder, **more)


def write_pair(pair: WeakStrongPair, folder: Path, **more: Any) -> None:
    """Write `PAIR_FILE` next to a pair's weights."""
    kept = {"strong_weight": pair.strong_weight, "strong_anchor": pair.strong_anchor, **more}
    (folder / PAIR_FILE).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def read_pair(folder: Path) -> dict[str, Any]:
    """Read the `PAIR_FILE` of a saved pair; older versions wrote none, which gives an empty dict."""
    file = folder / PAIR_FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def load_pair_weights(pair: WeakStrongPair, folder: Path) -> None:
    """Load what `save_pair` wrote into the same architecture; a missing or extra weight raises an error."""
    branches = [(pair.strong, folder), (pair.weak, folder / WEAK_FOLDER)]
    for model, place in branches[: 1 if _weak_is_bare_base(pair) else 2]:
        if isinstance(model, PeftModel):
            load_adapter_weights(model, place)
        else:
            model.load_state_dict(checkpoint_weights(model, place))


def _weak_is_bare_base(pair: WeakStrongPair) -> bool:
    """Return whether the weak model is a frozen base, which is not saved, like the base of the strong adapter."""
    return isinstance(pair.strong, PeftModel) and not isinstance(pair.weak, PeftModel) and not pair.weak_trainable
