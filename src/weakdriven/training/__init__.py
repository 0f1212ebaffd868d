"""Trains one model through TRL: turns settings into training arguments, orders the rows and resumes from checkpoints.

`sft.py` is supervised fine-tuning. `phase.py` is what all trainings share, from the order of the rows to the last good
checkpoint. `fsdp.py` shards models. The trainers of other methods are in `methods`, the trainer of a pair is in `wmss`.
Start with `phase.py`.
"""
