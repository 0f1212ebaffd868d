"""Several runs: `table.py` for a folder of `weakdriven compare` or any run directories, `page.py` their page.

The page of a sweep is here too; its tables and figures are in `sweep`.
"""
