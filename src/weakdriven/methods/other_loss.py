"""SFT with another loss on the same tokens: scaled logits, and both forms of UNDIAL."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from weakdriven.training.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, Trainer

    from weakdriven.methods.token_loss import TokenLoss, Tokens

    LossAndSums = tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True)
class OtherLoss(Variant):
    """SFT with another loss."""

    loss: "TokenLoss" = field(kw_only=True)

    def trainer(self, *, teacher: "PreTrainedModel | None", **arguments: Any) -> "Trainer":
        from weakdriven.methods.token_loss import TokenLossTrainer

        return TokenLossTrainer(token_loss=self.loss, teacher=teacher, **arguments)


@dataclass(frozen=True)
class ScaledLogits:
    """Cross-entropy of softmax(strong_weight * z): the effect of mixing on the strong logits, without a weak model."""

    strong_weight: float
    """Factor of the logits, more than 0; 1 is plain cross-entropy. Paper: lambda."""

    def __call__(self, tokens: "Tokens") -> "LossAndSums":
        from weakdriven.losses.mixed_ce import mixed_cross_entropy_with_statistics

        head = tokens.head.times(self.strong_weight)
        loss, sums = mixed_cross_entropy_with_statistics(
            tokens.hidden_TD, head, None, head, tokens.target_T, strong_weight=1.0, scale=tokens.scale
        )
        return loss, {"scaled_loss": sums.mixed_loss, "scaled_probability": sums.mixed_probability}


@dataclass(frozen=True)
class AdjustedLogits:
    """UNDIAL as published; the teacher is a frozen model."""

    strength: float
    ce_weight: float

    def __call__(self, tokens: "Tokens") -> "LossAndSums":
        from weakdriven.methods.undial.loss import adjusted_logit_loss

        assert tokens.teacher_TE is not None and tokens.teacher_head is not None
        models = tokens.hidden_TD, tokens.head, tokens.teacher_TE, tokens.teacher_head
        return adjusted_logit_loss(*models, tokens.target_T, scale=tokens.scale, **vars(self))


@dataclass(frozen=True)
class NoisedLogits:
    """What the WMSS paper calls UNDIAL; each step draws new noise."""

    sigma: float
    site: Literal["target_logit", "logits"]
    sign: Literal["signed", "abs"]
    seed: tuple[int, ...]

    def __call__(self, tokens: "Tokens") -> "LossAndSums":
        from weakdriven.methods.undial.noise import noised_cross_entropy

        drawn = np.random.SeedSequence([*self.seed, tokens.step]).generate_state(1, np.uint64)
        given = tokens.hidden_TD, tokens.head, tokens.target_T, tokens.length_T
        options = {**vars(self), "seed": int(drawn[0]) >> 1, "key_T": tokens.key_T, "scale": tokens.scale}
        return noised_cross_entropy(*given, **options)
