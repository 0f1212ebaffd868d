"""Selects PyTorch's attention kernel for training: never one with wrong gradients, the fused causal one if possible."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from weakdriven.models.row_attention import NAME, rows_apart


@contextmanager
def trained_attention(model: nn.Module) -> Iterator[None]:
    """Set the attention kernels of a block that trains; masks stay on the CPU, where dropping them gains nothing."""
    drop = without_padding_masks(model) if torch.cuda.is_available() else nullcontext()
    with without_cudnn_attention(), drop, rows_apart(model):  # in this order: rows_apart acts on rows without a mask
        yield


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Disable cuDNN's attention in PyTorch.

    Its backward pass gives NaN if rows are padded to 64 more than a multiple of 128 tokens and all scores of a head are
    far below 0, as in some heads of Qwen2.5 (pytorch#196678, trl#7181).
    """
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


@contextmanager
def without_padding_masks(model: nn.Module) -> Iterator[None]:
    """Drop the masks of right padding in all causal LMs inside `model`; causal attention never sees that padding.

    With any mask, PyTorch does not use its fused causal kernel. The hidden states of padding change, but no loss reads
    them.
    """
    inner = [one for one in model.modules() if isinstance(one, PreTrainedModel) and one.base_model is not one]
    with ExitStack() as hooks:
        for one in inner:
            hooks.enter_context(one.base_model.register_forward_pre_hook(_drop_padding_mask, with_kwargs=True))
        yield


def _drop_padding_mask(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    mask_BL: Any = kwargs.get("attention_mask")
    tensors = {name for name, value in kwargs.items() if isinstance(value, Tensor)}
    if tensors != {"input_ids", "attention_mask"}:  # with positions or images, the mask may mean more than padding
        return None
    if module.config._attn_implementation not in ("sdpa", NAME) or torch.compiler.is_compiling():
        return None
    if mask_BL.dim() != 2 or (mask_BL[:, 1:] > mask_BL[:, :-1]).any():  # padding is not on the right
        return None
    return args, {**kwargs, "attention_mask": None}
