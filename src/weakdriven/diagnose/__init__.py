"""`weakdriven diagnose`: measure the logits of a run's models, and the effect of mixing on logits and gradients.

Start at `diagnose.py`. Each model runs once over some examples (`forward_pass.py`); statistics of every token are
computed tile by tile. The pages and tables are in `report`.
"""
