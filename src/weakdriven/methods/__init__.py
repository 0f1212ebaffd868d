"""What can be trained: WMSS (`wmss.py`, Algorithm 1 of the paper), every baseline of the paper, and the controls.

Each method is one function in `table.py`; a baseline with a loss or a trainer of its own is a folder that holds all of
it. The mathematics of WMSS is in `weakdriven.wmss`. Start at `wmss.py`.
"""
