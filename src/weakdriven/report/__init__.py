"""Turn run directories, finished or not, into pages, tables, figures and model cards. Reads files; imports no torch.

Start at `read.py` (a run's files as plain values) and `run/page.py` (the page of one run). `figure.py` and `plots.py`
make the figures of all pages, `format.py` formats numbers and names, and `results.py` reads the scores of several runs.
Measuring belongs to `diagnose`, scoring to `eval`.
"""

from weakdriven.report.read import accuracy_rows, load_run, validation_table
from weakdriven.report.run.page import write_report

__all__ = ["accuracy_rows", "load_run", "validation_table", "write_report"]
