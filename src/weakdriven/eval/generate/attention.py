"""Attention of one new token to a cache, without copying keys and values for each query head.

B = rows, H = query heads, K = key-value heads, G = H / K, S = tokens in the cache, D = head dimension.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from weakdriven.models.row_attention import takes_attention

NAME = "weakdriven_grouped_sdpa"
READ_BY_SDPA = ("softcap", "output_attentions", "position_bias", "cache")
"""Further arguments that transformers' sdpa reads; if one is given, we call that function."""


def grouped_attention(query_BH1D: Tensor, key_BKSD: Tensor, value_BKSD: Tensor, mask_B11S: Tensor, scale: float):
    """Compute scaled_dot_product_attention for one query, with scores and softmax in float32.

    Args:
        mask_B11S: Added to the scores, or true where the query attends; each row must attend to some token.
    """
    B, H, _, D = query_BH1D.shape
    K, S = key_BKSD.shape[1:3]
    query, key = query_BH1D.reshape(B * K, H // K, D), key_BKSD.reshape(B * K, S, -1)
    if query.dtype == torch.float32:
        score = torch.bmm(query, key.mT)
    else:  # some models have large scores, for which bfloat16's 8 bits are too few in a softmax
        score = torch.bmm(query, key.mT, out_dtype=torch.float32)
    if mask_B11S.dtype == torch.bool:
        mask_B11S = torch.zeros_like(mask_B11S, dtype=torch.float32).masked_fill(~mask_B11S, float("-inf"))
    score_BKGS = torch.add(mask_B11S.float(), score.view(B, K, H // K, S), alpha=scale)
    weight = score_BKGS.softmax(-1).to(value_BKSD.dtype).view(B * K, H // K, S)
    return torch.bmm(weight, value_BKSD.reshape(B * K, S, -1)).view(B, H, 1, -1)


def grouped_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Call transformers' sdpa, except for one new token with a mask, where it would repeat the keys per query head."""
    plain = not any(others.get(name) is not None and others[name] is not False for name in READ_BY_SDPA)
    one = query.shape[2] == 1 and dropout == 0
    shared = key.shape[1] < query.shape[1]
    masked = attention_mask is not None and attention_mask.shape[1] == 1 and attention_mask.shape[-1] == key.shape[2]
    exact = query.dtype == torch.float32 or query.is_cuda  # only CUDA's bmm has a float32 output
    if not (plain and one and shared and masked and exact):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **others)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    assert attention_mask is not None
    return grouped_attention(query, key, value, attention_mask, scale).transpose(1, 2), None


AttentionInterface.register(NAME, grouped_sdpa)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def grouped(model: PreTrainedModel) -> Iterator[None]:
    """Generate with `grouped_sdpa` if the model uses sdpa and its attention function can be replaced."""
    if not takes_attention(model):
        yield
        return
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")
