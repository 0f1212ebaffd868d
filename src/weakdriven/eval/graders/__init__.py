"""From a completion to a verdict: whether its answer is right, and why not.

Start at `grading.py`: `grade` sends a completion to `answers.py`, `choices.py` or `code.py`. Answers in LaTeX are
compared by math-verify in worker processes (`workers.py` starts them, `judge.py` runs in them); code runs in
`eval/sandbox`. `candidates.py` applies the same graders to rows of a training set. Scores of whole
benchmarks are in `eval`.
"""
