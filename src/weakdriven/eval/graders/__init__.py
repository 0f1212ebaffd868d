"""Decide whether the answer of a completion is right, and if not, why.

Start at `grading.py`: `grade` sends a completion to `answers.py`, `choices.py` or `code.py`. Answers in LaTeX are
compared by math-verify in worker processes (`workers.py` starts them, `judge.py` runs in them); code runs in
`eval/sandbox`. `candidates.py` applies the same graders to training examples. `eval/scoring.py` scores whole
benchmarks.
"""
