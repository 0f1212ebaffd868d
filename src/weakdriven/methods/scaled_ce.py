"""Cross-entropy on scaled logits: what the mixed loss does to the strong model's logits, without any weak model.

T = tokens, D = width, V = vocabulary.
"""

from torch import Tensor

from weakdriven.errors import UserError
from weakdriven.losses.head import Head, as_head
from weakdriven.losses.mixed_ce import MixStatistics, mixed_cross_entropy_with_statistics
from weakdriven.losses.tiled_loss import refuse_shapes, supervised
from weakdriven.losses.tiles import Implementation


def scaled_cross_entropy(
    hidden_TD: Tensor,
    head_VD: Tensor | Head,
    target_T: Tensor,
    *,
    strong_weight: float = 0.5,
    scale: float | None = None,
    ignored: bool = True,
    implementation: Implementation = "auto",
) -> tuple[Tensor, MixStatistics]:
    """Mean cross-entropy of softmax(strong_weight * z): a mixture whose weak logits are all equal.

    Args:
        head_VD: Weights, or a `Head` where the model has a bias or caps or scales its logits.
        strong_weight: Factor of the logits, more than 0; 1 is plain cross-entropy. Paper: lambda.
        scale: Factor of the summed loss, such as one over the tokens of the step; None: one over those given here.
        ignored: Whether targets may be -100; False: there are none, and no time goes into looking for them.

    >>> import torch
    >>> loss, _ = scaled_cross_entropy(torch.tensor([[8.0, 2, 0, -2]]), torch.eye(4), torch.tensor([0]))
    >>> round(loss.item(), 5)
    0.07217
    """
    if not 0 < strong_weight < float("inf"):
        raise UserError(f"strong_weight is {strong_weight}; it must be a number above 0.")
    head = as_head(head_VD).times(strong_weight)
    refuse_shapes(hidden_TD, head, target_T)
    target_T, hidden_TD = supervised(target_T, hidden_TD, ignored=ignored)
    scale = 1 / max(len(target_T), 1) if scale is None else scale
    return mixed_cross_entropy_with_statistics(
        hidden_TD, head, None, head, target_T, strong_weight=1.0, scale=scale, implementation=implementation
    )
