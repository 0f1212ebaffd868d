"""`weakdriven diagnose`: the logits of a run's models, and what mixing does to logits and gradients, token by token.

Each model runs once over some examples (`forward_pass.py`); statistics are computed tile by tile. The pages and tables
are in `report`. Start at `diagnose.py`.
"""
