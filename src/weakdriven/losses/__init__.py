"""The mixed loss of WD-JT and token entropy: tensors in, tensors out, without ever building all logits.

Nothing here knows models, recipes or files. The losses of other methods are in `methods`; they use `tiled_loss` to
loop over tiles of logits. Start with `mixed_ce.py`.
"""
