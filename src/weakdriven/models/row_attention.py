"""Attention for rows that are packed into one sequence: each row attends only to itself, without a mask.

L = tokens of all rows, H = heads (fewer for keys and values than for queries), D = width of a head.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch before 2.10
    varlen_attn = None

NAME = "weakdriven_rows"
OPTIONS = set(signature(varlen_attn).parameters) if varlen_attn else set()
KINDS = {"full_attention", "sliding_attention"}
WIDEST_HEAD = 256
"""Largest head width that torch's kernel supports."""


@contextmanager
def rows_apart(model: nn.Module) -> Iterator[None]:
    """Let causal LMs with sdpa attention inside `model` separate packed rows without a mask.

    A mask grows with the square of the sequence, and with it PyTorch cannot use its fused causal kernel.
    """
    inner = [one for one in model.modules() if isinstance(one, PreTrainedModel) and one.base_model is not one]
    with ExitStack() as stack:
        for one in inner:
            if not (takes_attention(one) and keeps_rows_apart(one)):
                continue
            one.set_attn_implementation(NAME)
            stack.callback(one.set_attn_implementation, "sdpa")
            stack.enter_context(one.base_model.register_forward_pre_hook(_find_ends, with_kwargs=True))
        yield


def takes_attention(model: PreTrainedModel) -> bool:
    """Return whether a model uses sdpa attention and contains no other models with their own settings."""
    config: Any = model.config
    one = isinstance(model, PreTrainedModel) and not config.sub_configs
    return one and config._attn_implementation == "sdpa" and model._can_set_attn_implementation()


def keeps_rows_apart(model: PreTrainedModel) -> bool:
    """Return whether every layer is full or sliding-window attention; convolutions would mix rows."""
    config: Any = model.config.get_text_config()
    return set(getattr(config, "layer_types", None) or KINDS) <= KINDS


def _find_ends(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """Add the ends of the rows in a sequence, where positions restart, unless the caller gave them."""
    position_BL = kwargs.get("position_ids")
    known = any(kwargs.get(name) is not None for name in ("attention_mask", "cu_seq_lens_q", "past_key_values"))
    if known or position_BL is None or position_BL.dim() != 2 or len(position_BL) > 1:
        return None
    begins = (position_BL[0] == 0).nonzero()[:, 0]
    ends = torch.cat([begins, begins.new_tensor([position_BL.shape[1]])]).to(torch.int32)
    return args, {**kwargs, "cu_seq_lens_q": ends, "max_length_q": int(ends.diff().max())}


def attention_of_rows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention by transformers' sdpa, or row by row in a sequence of rows that end at `cu_seq_lens_q`."""
    if attention_mask is None and cu_seq_lens_q is None:  # one row, or rows without padding
        attention_mask = window_mask(query.shape[2], sliding_window, query.device)
    if cu_seq_lens_q is None or attention_mask is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **others)
    heads: list[Any] = [query, key, value]
    if torch.is_autocast_enabled(query.device.type):  # sdpa does this by itself
        dtype = torch.get_autocast_dtype(query.device.type)
        heads = [one.to(dtype) for one in heads]
    if dropout or query.shape[-1] > WIDEST_HEAD or not has_kernel(query.device, heads[0].dtype):
        rows = []
        for begin, end in pairwise(cu_seq_lens_q.tolist()):
            row = [one[:, :, begin:end] for one in heads]
            row.append(window_mask(end - begin, sliding_window, query.device))
            rows.append(sdpa_attention_forward(module, *row, dropout=dropout, scaling=scaling, **others)[0])
        return torch.cat(rows, dim=1), None
    query_LHD, key_LHD, value_LHD = (one[0].transpose(0, 1) for one in heads)
    before = -1 if sliding_window is None else sliding_window - 1
    options: dict[str, Any] = {"scale": scaling, "window_size": (before, 0)}
    if "enable_gqa" in OPTIONS:  # torch 2.11 supports fewer key heads without it
        options["enable_gqa"] = True
    ends: Any = (cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q)
    return varlen_attn(query_LHD, key_LHD, value_LHD, *ends, **options)[None], None  # pyright: ignore


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether torch has a kernel for rows of different lengths; without it, each row is a separate call."""
    half = dtype in (torch.bfloat16, torch.float16)
    return "window_size" in OPTIONS and device.type == "cuda" and half and torch.cuda.get_device_capability() >= (8, 0)


def window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Make the mask of a row that is longer than a sliding window; None if the row only needs causal attention."""
    if window is None or length <= window:
        return None
    distance_LL = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return ((distance_LL >= 0) & (distance_LL < window))[None, None]


def no_mask_for_one_row(batch_size: int, *args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
    """Make transformers' mask for sdpa; return None for one sequence without padding, which may hold packed rows."""
    if batch_size == 1 and attention_mask is None:
        return None
    return sdpa_mask(batch_size, *args, attention_mask=attention_mask, **kwargs)


AttentionInterface.register(NAME, attention_of_rows)
AttentionMaskInterface.register(NAME, no_mask_for_one_row)
