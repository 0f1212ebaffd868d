from weakdriven.losses.entropy import token_entropy
from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import mixed_cross_entropy, mixed_cross_entropy_reference
from weakdriven.methods.scaled_ce import scaled_cross_entropy
from weakdriven.methods.ssb.loss import top_logits, topk_distillation
from weakdriven.methods.undial.loss import adjusted_logit_loss, noised_cross_entropy

__all__ = [
    "Head",
    "adjusted_logit_loss",
    "mixed_cross_entropy",
    "mixed_cross_entropy_reference",
    "noised_cross_entropy",
    "scaled_cross_entropy",
    "token_entropy",
    "top_logits",
    "topk_distillation",
]
