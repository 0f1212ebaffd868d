"""Generate one more token for every row of a batch, with the model's own cache or with a slot cache.

B = unfinished rows, L = their length so far, V = vocabulary.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from weakdriven.errors import UserError
from weakdriven.eval.generate.attention import NAME
from weakdriven.eval.generate.cache import SlotCache, is_ordinary


def read_prompts(
    model: PreTrainedModel, known: Collection[str], ids_BL: Tensor, mask_BL: Tensor
) -> tuple[Tensor, "OwnCache | InSlots"]:
    """Return the logits after each left-padded prompt, and a decoder; `known` are the arguments of forward."""
    position_BL = (mask_BL.cumsum(1) - 1).clamp(min=0)
    output = forward(model, known, ids_BL, mask_BL, position_ids=position_BL)
    if (past := getattr(output, "past_key_values", None)) is None:
        raise UserError(f"{type(model).__name__} returns no past_key_values; use the vllm engine for it.")
    kind = InSlots if can_use_slots(model, known, past) else OwnCache
    return output.logits[:, -1].float(), kind(model, known, past, mask_BL, position_BL[:, -1:] + 1)


def forward(model: PreTrainedModel, known: Collection[str], ids_BL: Tensor, mask_BL: Tensor, **inputs: Any) -> Any:
    inputs = {name: value for name, value in (inputs | {"logits_to_keep": 1}).items() if name in known}
    return model(input_ids=ids_BL, attention_mask=mask_BL, use_cache=True, **inputs)


def can_use_slots(model: PreTrainedModel, known: Collection[str], past: Any) -> bool:
    """Return whether this model accepts masks made in advance, and caches nothing but keys and values.

    For models marked as compilable, transformers' own `generate` makes such masks in advance in the same form.
    """
    config: Any = model.config
    prepared = config._attn_implementation == NAME and model._can_compile_fullgraph
    usual_masks = not hasattr(model, "create_masks_for_generate") and getattr(config, "is_causal", True)
    types = set(getattr(config, "layer_types", None) or ()) <= {"full_attention", "sliding_attention"}
    inputs = {"position_ids", "past_key_values", "logits_to_keep"} <= set(known)
    one_device = len(set(getattr(model, "hf_device_map", {}).values())) <= 1
    whole = is_ordinary(past) and len(past.layers) == config.num_hidden_layers
    one_mask = whole and (bool(getattr(config, "layer_types", None)) or len(set(past.is_sliding)) == 1)
    return prepared and usual_masks and types and inputs and one_device and one_mask


class OwnCache:
    """The model's own cache; the model makes its masks from the attention mask of tokens."""

    repeats = False
    """Whether all steps do the same work on the same tensors."""

    def __init__(self, model: PreTrainedModel, known: Collection[str], past: Any, mask_BL: Tensor, position_B1: Tensor):
        self.model, self.known, self.past = model, known, past
        self.mask_BL, self.position_B1 = mask_BL, position_B1
        self.can_drop_rows = all(hasattr(layer, "batch_select_indices") for layer in getattr(past, "layers", [None]))
        """False for layers that keep a state instead of keys and values (hybrid models)."""

    def step(self, ids_B1: Tensor) -> Tensor:
        """Return the logits after one more token in each row."""
        self.mask_BL = torch.cat([self.mask_BL, self.mask_BL.new_ones(len(self.mask_BL), 1)], dim=1)
        inputs = {"position_ids": self.position_B1, "past_key_values": self.past}
        output = forward(self.model, self.known, ids_B1, self.mask_BL, **inputs)
        self.past, self.position_B1 = output.past_key_values, self.position_B1 + 1
        return output.logits[:, -1].float()

    def keep(self, rows: Tensor) -> None:
        self.past.batch_select_indices(rows)
        self.mask_BL, self.position_B1 = self.mask_BL[rows], self.position_B1[rows]

    def make_room(self) -> bool:
        return False

    def room_left(self) -> int:
        return 0

    def count(self) -> None: ...


class InSlots:
    """A slot cache; a step changes tensors in place and does not depend on their values."""

    repeats = can_drop_rows = True

    def __init__(self, model: PreTrainedModel, known: Collection[str], past: Any, mask_BL: Tensor, position_B1: Tensor):
        self.model, self.position_B1 = model, position_B1
        self.past = SlotCache(past, mask_BL, model.dtype)
        self.make_room, self.room_left = self.past.make_room, self.past.room_left

    def step(self, ids_B1: Tensor) -> Tensor:
        """Return the logits after one more token in each row."""
        self.past.open()
        kinds = self.past.kinds.items()
        masks = {"full_attention" if window is None else "sliding_attention": s.mask_B11S for window, s in kinds}
        output = self.model(
            input_ids=ids_B1,
            attention_mask=masks if getattr(self.model.config, "layer_types", None) else next(iter(masks.values())),
            position_ids=self.position_B1,
            past_key_values=self.past,
            use_cache=True,
            logits_to_keep=1,
        )
        self.position_B1 += 1
        self.past.length_1 += 1
        return output.logits[:, -1].float()

    def keep(self, rows: Tensor) -> None:
        self.past.batch_select_indices(rows)
        self.position_B1 = self.position_B1[rows]

    def count(self) -> None:
        """Count a finished step; a CUDA graph may have done it without running Python."""
        self.past.length += 1
