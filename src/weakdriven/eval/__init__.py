"""Benchmarks, their graders, and the statistics of graded samples."""

from weakdriven.eval.graders.answers import Graded
from weakdriven.eval.graders.grading import check_golds, grade, grade_many

__all__ = ["Graded", "check_golds", "grade", "grade_many"]
