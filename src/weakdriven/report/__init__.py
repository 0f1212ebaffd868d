"""A run directory -> one self-contained HTML page. Reads files only, so it also works on a run that is half done."""

from weakdriven.report.page import write_report
from weakdriven.report.read import accuracy_rows, load_run

__all__ = ["accuracy_rows", "load_run", "write_report"]
