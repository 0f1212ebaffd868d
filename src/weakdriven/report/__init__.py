"""A run directory -> one self-contained HTML page. Reads files only, so it also works on a run that is half done."""

from weakdriven.report.read import accuracy_rows, load_run
from weakdriven.report.run.page import write_report

__all__ = ["accuracy_rows", "load_run", "write_report"]
