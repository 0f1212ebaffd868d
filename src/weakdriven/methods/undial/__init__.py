"""UNDIAL: `loss.py` as published (Dong et al., 2024), `noise.py` as the WMSS paper describes it.

Both are losses for SFT (`methods.other_loss`). `methods.table` sets the start model and the number of epochs.
"""
