from weakdriven.losses.entropy import token_entropy
from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import mixed_cross_entropy, mixed_cross_entropy_reference

__all__ = ["Head", "mixed_cross_entropy", "mixed_cross_entropy_reference", "token_entropy"]
