"""The paper's method as a library: WD-DS (entropies, selection) and WD-JT (two models, one mixed loss).

Only `trainer.train_joint`, which a run's stage calls, needs a recipe. Algorithm 1 is in `methods/wmss.py`, the loss in
`losses`. Start with `selection.py` and `pair.py`.
"""
