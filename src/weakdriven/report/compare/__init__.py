"""Several runs: `table.py` for a folder of `weakdriven compare`, `runs.py` for any run directories, `page.py` for both.

The page of a sweep is here too; its tables and figures are in `sweep`.
"""
