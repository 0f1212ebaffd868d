"""The study of docs/evidence as code: what it runs, what it keeps of the runs, and the page that it computes from that.

Start at `run`, which runs the study. `__main__` collects results (`collect`, `diagnosed`) and writes the page (`page`,
from the tests in `results`). `data` makes the training set. `check` repeats a round without the package.
"""
