"""Training one model through TRL: settings become training arguments, rows get their order, checkpoints resume.

`sft.py` is supervised fine-tuning; `phase.py` is what all trainings share, from the order of the rows to the last good
checkpoint; `fsdp.py` is the one way to shard. The trainers of other methods are in `methods`, that of a pair in
`wmss`. Start with `phase.py`.
"""
