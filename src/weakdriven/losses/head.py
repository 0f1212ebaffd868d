"""What turns hidden states into logits: weights, and what a model does to its logits after them.

T = tokens, D = width, V = vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Head(NamedTuple):
    """An output head: z = scale * (hidden @ weight.T + bias), then cap * tanh(z / cap) where there is a cap.

    >>> Head(torch.eye(2), scale=0.5).logits(torch.tensor([[2.0, 4.0]])).tolist()
    [[1.0, 2.0]]
    """

    weight_VD: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    """Granite divides its logits by a number, Cohere multiplies them."""
    cap: float | None = None
    """Gemma-2 keeps its logits inside (-cap, cap)."""

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """All of them, in float32 or better: for references, never for training."""
        raw_TV = hidden_TD @ self.weight_VD.to(hidden_TD.dtype).T
        raw_TV = raw_TV.to(torch.promote_types(raw_TV.dtype, torch.float32))
        if self.bias_V is not None:
            raw_TV = raw_TV + self.bias_V
        raw_TV = raw_TV * self.scale
        return raw_TV if self.cap is None else self.cap * (raw_TV / self.cap).tanh()

    def times(self, factor: float) -> "Head":
        """The head whose logits are these times a positive factor, those that are capped too."""
        return self._replace(scale=self.scale * factor, cap=None if self.cap is None else self.cap * factor)


def as_head(head: Tensor | Head) -> Head:
    return head if isinstance(head, Head) else Head(head)


def first_rows(head: Head, rows: int) -> Head:
    if len(head.weight_VD) == rows:
        return head
    return head._replace(weight_VD=head.weight_VD[:rows], bias_V=None if head.bias_V is None else head.bias_V[:rows])
