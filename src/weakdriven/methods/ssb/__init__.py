"""SSB: a model that reads a hint teaches itself without it, through its stored logits.

`stage.py` has the steps in order, `targets.py` stores the teacher's logits, `loss.py` compares with them, `trainer.py`
trains the student.
"""
