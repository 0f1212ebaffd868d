"""Evaluation: benchmarks, generation, grading, and statistics of graded samples.

Start with `benchmarks.py` (the table of benchmarks) and `run.py` (one benchmark on one model: generate, grade, score).
`standalone.py` evaluates a model outside a recipe, `rollouts.py` samples and verifies completions of training prompts.
`generate/` contains the inference engines, which `engines.py` opens one at a time; `graders/` decides whether an answer
is right, `sandbox/` isolates generated programs. `stages` and `pipeline` decide which model is evaluated when; `report`
makes the tables.
"""

from weakdriven.eval.graders.answers import Graded
from weakdriven.eval.graders.grading import check_golds, grade, grade_many
from weakdriven.eval.statistics import pass_at_k

__all__ = ["Graded", "check_golds", "grade", "grade_many", "pass_at_k"]
