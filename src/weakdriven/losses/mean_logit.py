"""Mean over the vocabulary of a model's logits, without the logits: what a head's mean row gives.

T = tokens, D = width, V = vocabulary. As in `diagnose/logits.py` the vocabulary is the head, with rows that pad it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from weakdriven.losses.head import Head


class MeanRow(NamedTuple):
    """Mean of a head's rows and of its bias, times what it scales its logits by; in float32 or better."""

    weight_D: Tensor
    bias: Tensor


@torch.no_grad()
def mean_row(head: Head) -> MeanRow | None:
    """One pass over the head; None where it caps its logits, whose mean no row can give."""
    if head.cap is not None:
        return None
    wide, factor = torch.promote_types(head.weight_VD.dtype, torch.float32), head.scale / len(head.weight_VD)
    weight_D = head.weight_VD.sum(0, dtype=wide) * factor
    bias = weight_D.new_zeros(()) if head.bias_V is None else head.bias_V.sum(dtype=wide) * factor
    return MeanRow(weight_D, bias)


@torch.no_grad()
def summed_mean_logit(hidden_TD: Tensor, row: MeanRow) -> Tensor:
    """Sum over tokens of the mean logit.

    >>> row = mean_row(Head(torch.eye(2), scale=0.5))
    >>> summed_mean_logit(torch.tensor([[2.0, 4.0], [0.0, 2.0]]), row).item()
    2.0
    """
    # no matrix product, which autocast would round
    return (hidden_TD.sum(0, dtype=row.weight_D.dtype) * row.weight_D).sum() + len(hidden_TD) * row.bias
