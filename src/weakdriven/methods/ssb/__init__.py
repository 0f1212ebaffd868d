"""SSB: a model that reads a hint is the teacher of the same model without the hint, through stored logits.

`stage.py` has the steps in order, `targets.py` stores the teacher's logits, `loss.py` distils them, and `trainer.py`
trains the student.
"""
