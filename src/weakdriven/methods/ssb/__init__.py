"""SSB: a model that reads a hint teaches itself without it, through its stored logits.

`stage.py` has the steps in order, `loss.py` stores logits and compares with them, `trainer.py` trains the student.
"""
