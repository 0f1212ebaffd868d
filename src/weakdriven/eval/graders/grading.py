"""One door to the graders of all benchmarks: `grade` for one completion, `grade_many` for a file of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

from weakdriven.eval.graders.answers import Graded, grade_math, readable
from weakdriven.eval.graders.choices import gold_letter, grade_choice
from weakdriven.eval.graders.code import grade_code

Kind = Literal["math", "choice", "code"]


def grade(kind: Kind, text: str, gold: Any, **options: Any) -> Graded:
    r"""Whether a completion is right.

    Args:
        kind: "math" compares the last boxed value, "choice" the chosen letter, "code" runs tests.
        gold: The final answer as text; for "code", the benchmark's item.
        options: "math": `timeout` in seconds. "choice": `options`, the texts of the choices, and `timeout`. "code": see
            `weakdriven.eval.graders.code.grade_code`.

    >>> grade("choice", "A is wrong, so B.", "B", options=["3", "4"])
    Graded(correct=True, answer='B', reason='letter')
    """
    if kind == "math":
        return grade_math(text, gold, **options)
    if kind == "choice":
        return grade_choice(text, gold, **options)
    if kind == "code":
        return grade_code(text, gold, **options)
    raise ValueError(f"There is no grader {kind!r}; use math, choice or code.")


def grade_many(
    kind: Kind,
    texts: Sequence[str],
    golds: Sequence[Any],
    *,
    options: Sequence[list[str] | None] | None = None,
    workers: int | None = None,
    timeout: float = 10.0,
    **more: Any,
) -> list[Graded]:
    """`grade` for each text and its gold answer, in order, at most `workers` at a time.

    Args:
        options: For "choice", the choices of each text.
        workers: Texts graded at once; unset: as many threads as Python's default. Processes are one for each core.
        timeout: Seconds for one comparison; what takes longer is wrong, for the reason `timeout`.
    """

    def one(row: int) -> Graded:
        choices = {} if options is None else {"options": options[row]}
        return grade(kind, texts[row], golds[row], timeout=timeout, **choices, **more)

    if len(texts) != len(golds) or (options is not None and len(options) != len(texts)):
        raise ValueError(f"{len(texts)} texts need as many golds (and options); there are {len(golds)} golds.")
    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(one, range(len(texts))))


def check_golds(kind: Kind, golds: Sequence[Any], *, options: Sequence[list[str] | None] | None = None) -> list[int]:
    r"""Positions of gold answers that cannot be graded against, so that a run can stop before it generates.

    >>> check_golds("choice", ["A", "F", "b", ""])
    [1, 3]
    """
    if kind == "code":
        return []
    if kind == "choice":
        choices = options or [None] * len(golds)
        return [row for row, gold in enumerate(golds) if gold_letter(gold, choices[row]) is None]
    with ThreadPoolExecutor() as threads:
        fine = threads.map(partial(readable, timeout=10.0), golds)
        return [row for row, good in enumerate(fine) if not good]
