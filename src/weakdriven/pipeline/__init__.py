"""A whole recipe from data to report (`run.py`), or many: methods under several seeds, sweeps, weak candidates; and a
conversation with what a run trained (`chat.py`).

Only this package knows the order of everything; what a stage does is in `stages`. Start at `run.py`.
"""
