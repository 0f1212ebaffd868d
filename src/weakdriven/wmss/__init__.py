"""The paper's method as a library: WD-DS (entropies, selection) and WD-JT (two models, one mixed loss).

Nothing here needs a recipe but `trainer.train_joint`, which a run's stage calls. The order of Algorithm 1 is in
`methods/wmss.py`, the loss itself in `losses`. Start with `selection.py` and `pair.py`.
"""
