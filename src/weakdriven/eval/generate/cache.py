"""A cache of keys and values with spare slots: a new token is written in place and nothing is copied.

B = rows, K = key-value heads, L = tokens so far, M = tokens that a layer still keeps, S = slots, D = head dimension.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

CHUNK = 128
"""Slots are added in chunks: larger ones would attend to more empty slots, smaller ones need more copies and graphs."""
UNSEEN = float("-inf")


@dataclass(eq=False)
class Slots:
    """For layers with one window: the slot of the next token (in place of the oldest) and the attention mask."""

    window: int | None
    mask_B11S: Tensor
    """Added to the attention scores."""
    next_1: Tensor


class SlotLayer(CacheLayerMixin):
    keys: Any
    values: Any

    def __init__(self, slots: Slots, keys_BKSD: Tensor, values_BKSD: Tensor):
        super().__init__()
        self.slots, self.keys, self.values = slots, keys_BKSD, values_BKSD
        self.is_initialized, self.is_sliding = True, slots.window is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.slots.next_1, key_states)
        self.values.index_copy_(2, self.slots.next_1, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        raise NotImplementedError("The masks over slots are made in advance.")

    def get_seq_length(self) -> int:
        raise NotImplementedError("The cache knows its length.")

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in transformers before 5.13

    def batch_select_indices(self, indices: Tensor) -> None:
        self.keys, self.values = self.keys[indices], self.values[indices]


class SlotCache(Cache):
    """Takes the prompts' keys and values out of a model's own cache, which is empty afterwards.

    Args:
        mask_BL: 1 for each token of a prompt, 0 for padding on the left.
        dtype: Dtype of the model, for the masks.
    """

    def __init__(self, past: DynamicCache, mask_BL: Tensor, dtype: torch.dtype):
        self.length = mask_BL.shape[1]
        self.length_1 = torch.tensor([self.length], device=mask_BL.device)
        self.kinds: dict[int | None, Slots] = {}
        layers: list[Any] = []
        olds: list[Any] = past.layers
        for old in olds:
            window = window_of(old)
            place_M = torch.arange(self.length - old.keys.shape[2], self.length, device=mask_BL.device)
            slot_M, room = (place_M if window is None else place_M % window), slots_for(self.length + 1, window)
            if window not in self.kinds:
                mask_B11S = torch.full((len(mask_BL), 1, 1, room), UNSEEN, dtype=dtype, device=mask_BL.device)
                seen_BM = torch.zeros_like(mask_BL[:, place_M], dtype=dtype)
                mask_B11S[:, 0, 0, slot_M] = seen_BM.masked_fill(mask_BL[:, place_M] == 0, UNSEEN)
                self.kinds[window] = Slots(window, mask_B11S, self.length_1)
            keys, values = spread(old.keys, slot_M, room), spread(old.values, slot_M, room)
            layers.append(SlotLayer(self.kinds[window], keys, values))
            old.keys = old.values = None
        super().__init__(layers=layers)

    def make_room(self) -> bool:
        """Make sure that there is a slot for one more token; return whether tensors were moved."""
        moved = False
        for slots in self.kinds.values():
            if (more := slots_for(self.length + 1, slots.window) - slots.mask_B11S.shape[3]) > 0:
                slots.mask_B11S, moved = F.pad(slots.mask_B11S, (0, more), value=UNSEEN), True
        if moved:
            layers: list[Any] = self.layers
            for layer in layers:
                if (more := layer.slots.mask_B11S.shape[3] - layer.keys.shape[2]) > 0:
                    layer.keys = F.pad(layer.keys, (0, 0, 0, more))
                    layer.values = F.pad(layer.values, (0, 0, 0, more))
        return moved

    def room_left(self) -> int:
        """Count the tokens that fit before tensors must move; a full window never needs more."""
        rooms = [(slots.mask_B11S.shape[3], slots.window) for slots in self.kinds.values()]
        return min((room - self.length for room, window in rooms if room != window), default=CHUNK)

    def open(self) -> None:
        """Assign a slot to the next token and unmask it."""
        for slots in self.kinds.values():
            slots.next_1 = self.length_1 if slots.window is None else self.length_1 % slots.window
            slots.mask_B11S.index_fill_(3, slots.next_1, 0.0)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        for slots in self.kinds.values():
            slots.mask_B11S = slots.mask_B11S[indices]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length


def window_of(layer: Any) -> int | None:
    return layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None


def is_ordinary(past: Any) -> bool:
    """Return whether a cache has only keys and values, of all tokens or of one window size, in every layer."""
    if type(past) is not DynamicCache or past.offloading:
        return False
    windows = {window_of(layer) for layer in past.layers} - {None}
    known = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in past.layers)
    return known and len(windows) <= 1 and all(window > 1 for window in windows if window)


def slots_for(length: int, window: int | None) -> int:
    """
    >>> [slots_for(length, window) for length, window in [(1, None), (128, None), (129, None), (129, 512), (600, 512)]]
    [128, 128, 256, 256, 512]
    """
    whole = -(-length // CHUNK) * CHUNK
    return whole if window is None else min(whole, window)


def spread(kept_BKMD: Tensor, slot_M: Tensor, room: int) -> Tensor:
    """Move keys or values to their slots; fill the others with zeros, because attention multiplies them by 0."""
    B, K, _, D = kept_BKMD.shape
    return kept_BKMD.new_zeros(B, K, room, D).index_copy_(2, slot_M, kept_BKMD)
