"""Why a selection (WD-DS) came out as it did, and why one example was chosen or not; `weakdriven select explain`."""

from weakdriven.report.selection_explained.facts import load_selection
from weakdriven.report.selection_explained.terminal import explain_example, explain_selection

__all__ = ["explain_example", "explain_selection", "load_selection"]
