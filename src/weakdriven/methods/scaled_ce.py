"""Cross-entropy on scaled logits: what the mixed loss does to the strong model's logits, without any weak model."""

from dataclasses import dataclass

from torch import Tensor

from weakdriven.errors import UserError
from weakdriven.losses.mixed_ce import mixed_cross_entropy_with_statistics
from weakdriven.methods.token_loss import Tokens


@dataclass(frozen=True)
class ScaledLogits:
    """Cross-entropy of softmax(strong_weight * z): a mixture whose weak logits are all equal."""

    strong_weight: float
    """Factor of the logits, more than 0; 1 is plain cross-entropy. Paper: lambda."""

    def __post_init__(self) -> None:
        if not 0 < self.strong_weight < float("inf"):
            raise UserError(f"strong_weight is {self.strong_weight}; it must be a number above 0.")

    def __call__(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        head = tokens.head.times(self.strong_weight)
        loss, sums = mixed_cross_entropy_with_statistics(
            tokens.hidden_TD, head, None, head, tokens.target_T, strong_weight=1.0, scale=tokens.scale
        )
        return loss, {"scaled_loss": sums.mixed_loss, "scaled_probability": sums.mixed_probability}
