"""The mixed loss of WD-JT and token entropy, without ever building all logits: tensors in, tensors out.

Nothing here knows models, recipes or files. The losses of other methods are in `methods`; they walk over tiles of
logits with `tiled_loss`. Start with `mixed_ce`.
"""
