"""The output head, which turns hidden states into logits: weights, bias, and the scale and cap that some models add.

T = tokens, D = width, V = vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Head(NamedTuple):
    """An output head: z = scale * (hidden @ weight.T + bias), then cap * tanh(z / cap) if there is a cap.

    >>> Head(torch.eye(2), scale=0.5).logits(torch.tensor([[2.0, 4.0]])).tolist()
    [[1.0, 2.0]]
    """

    weight_VD: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    """Factor of the logits, as in Granite and Cohere."""
    cap: float | None = None
    """Keeps the logits in (-cap, cap), as in Gemma-2."""

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """Compute all logits, in float32 or better; only for references, never for training."""
        raw_TV = hidden_TD @ self.weight_VD.to(hidden_TD.dtype).T
        raw_TV = raw_TV.to(torch.promote_types(raw_TV.dtype, torch.float32))
        if self.bias_V is not None:
            raw_TV = raw_TV + self.bias_V
        raw_TV = raw_TV * self.scale
        return raw_TV if self.cap is None else self.cap * (raw_TV / self.cap).tanh()

    def times(self, factor: float) -> "Head":
        """Return a head with these logits times a positive factor, after any cap."""
        return self._replace(scale=self.scale * factor, cap=None if self.cap is None else self.cap * factor)


def as_head(head: Tensor | Head) -> Head:
    return head if isinstance(head, Head) else Head(head)


def first_rows(head: Head, rows: int) -> Head:
    if len(head.weight_VD) == rows:
        return head
    return head._replace(weight_VD=head.weight_VD[:rows], bias_V=None if head.bias_V is None else head.bias_V[:rows])
