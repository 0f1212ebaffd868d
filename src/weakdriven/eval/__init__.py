"""Evaluation: benchmarks, what generates the answers, what grades them, and the statistics of the graded samples.

Start with `benchmarks.py` (the table of benchmarks) and `run.py` (one benchmark on one model: generate, grade, score).
`standalone.py` evaluates a model outside a recipe, `rollouts.py` samples and verifies completions of training prompts.
`generate/` holds the engines, of which `engines.py` opens one at a time; `graders/` holds the verdicts, `sandbox/` the
isolation of generated programs. `stages` and `pipeline` decide which model is evaluated when; `report` has the tables.
"""

from weakdriven.eval.graders.answers import Graded
from weakdriven.eval.graders.grading import check_golds, grade, grade_many
from weakdriven.eval.statistics import pass_at_k

__all__ = ["Graded", "check_golds", "grade", "grade_many", "pass_at_k"]
