"""The mixed loss of WD-JT and token entropy, without ever building all logits: tensors in, tensors out.

Nothing here knows models, recipes or files. The losses of other methods are in `methods`; they walk over tiles of
logits with `tiled_loss`. Start with `mixed_ce`.
"""

from weakdriven.losses.entropy import token_entropy
from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import mixed_cross_entropy, mixed_cross_entropy_reference

__all__ = ["Head", "mixed_cross_entropy", "mixed_cross_entropy_reference", "token_entropy"]
