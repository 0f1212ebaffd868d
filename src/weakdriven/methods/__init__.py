"""What can be trained: WMSS (`wmss.py`, Algorithm 1 of the paper), every baseline of the paper, and the controls.

Each baseline is one function in `table.py`; a baseline with its own loss or trainer has a folder. The mathematics of
WMSS is in `weakdriven.wmss`. Start with `wmss.py`.
"""
