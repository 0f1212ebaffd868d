"""Run a whole recipe from data to report (`run.py`), or many: comparisons, sweeps, weak candidates. `chat.py` talks to
the models of a run.

Only this package knows the order of all stages; what a stage does is in `stages`. Start with `run.py`.
"""
