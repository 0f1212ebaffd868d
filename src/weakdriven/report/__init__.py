"""Run directories -> pages, tables, figures and model cards. Reads files only, of runs in any state; imports no torch.

Start at `read.py` (a run's files as plain values) and `run/page.py` (the page of one run). `figure.py` and `plots.py`
are the figures that all pages share, `format.py` numbers and names as text, `results.py` the scores of several runs.
What is measured belongs to `diagnose`, how answers are scored to `eval`.
"""

from weakdriven.report.read import accuracy_rows, load_run, validation_table
from weakdriven.report.run.page import write_report

__all__ = ["accuracy_rows", "load_run", "validation_table", "write_report"]
