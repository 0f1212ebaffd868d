"""The study of docs/evidence as code: runs it, collects its results, and computes its pages from them.

Start with `run`, which runs the study. `__main__` collects results (`collect`, `diagnosed`) and writes the pages
(`page`, from the tests in `results`). `data` makes the training set. `check` repeats a round without the package.
"""
