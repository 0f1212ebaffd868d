"""Graders written by the user as Python functions: trusted code, called in this process on one reply at a time."""

import importlib
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError
from weakdriven.eval.graders.answers import Graded
from weakdriven.eval.graders.texts import final_text
from weakdriven.runs.files import file_digest

Function = Callable[[str, dict[str, Any]], Any]
"""Takes a reply and the row of the test set; returns whether the reply is right, or a score from 0 to 1."""
RIGHT = 0.5
"""Replies with at least this score are right."""


def load_function(name: str) -> Function:
    """Import `module.function` from the environment or from the working directory."""
    module, _, function = name.rpartition(".")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # importing the module may raise anything
        raise UserError(
            f"The grader python:{name} cannot be imported ({type(error).__name__}: {error}); expected a function in an "
            "installed module or in a module of the working directory."
        ) from None
    if not callable(found):
        raise UserError(f"The grader python:{name} is a {type(found).__name__}; expected a function(reply, row).")
    return found


def source_digest(function: Function) -> str:
    """Hash the file that defines the function; empty if there is none."""
    file = getattr(sys.modules.get(getattr(function, "__module__", "")), "__file__", None)
    return file_digest(Path(file)) if file and Path(file).is_file() else ""


def grade_function(reply: str, gold: dict[str, Any], *, function: str) -> Graded:
    """Grade a reply by `module.function`.

    Args:
        gold: The `row` of the test set, and `where` it is from.
    """
    try:
        score = load_function(function)(reply, dict(gold["row"]))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"The grader python:{function} failed on {gold['where']} ({type(error).__name__}: {error}); correct it "
            "and run the same command again; replies are kept."
        ) from error
    if not isinstance(score, bool | int | float) or not 0 <= score <= 1 or math.isnan(score):
        raise UserError(
            f"The grader python:{function} returned {score!r:.80} for {gold['where']}; expected True, False or a "
            "number from 0 to 1. Correct the function and run the same command again: replies are kept."
        )
    return Graded(score >= RIGHT, final_text(reply) or None, f"score {float(score):g}")
