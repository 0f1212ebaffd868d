"""Entry point to all graders: `grade` for one completion, `grade_many` for a file of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, get_args

from weakdriven.eval.graders.answers import Graded, grade_math, readable
from weakdriven.eval.graders.choices import gold_letter, grade_choice
from weakdriven.eval.graders.code import grade_code
from weakdriven.eval.graders.functions import grade_function
from weakdriven.eval.graders.texts import grade_text, plain_text

Kind = Literal["math", "choice", "code", "exact", "contains", "python"]


def grade(kind: Kind, text: str, gold: Any, **options: Any) -> Graded:
    r"""Grade a completion.

    Args:
        kind: "math" compares the last boxed value, "choice" the chosen letter, "code" runs tests, "exact" and
            "contains" compare texts, "python" calls a function.
        gold: The final answer as text, or a list of those that are right; for "code", the benchmark's item; for
            "python", the row.
        options: "math": `timeout` in seconds and `boxed`. "choice": `options`, the texts of the choices, and `timeout`.
            "code": see `weakdriven.eval.graders.code.grade_code`. "python": `function`, its dotted name.

    >>> grade("choice", "A is wrong, so B.", "B", options=["3", "4"])
    Graded(correct=True, answer='B', reason='letter')
    >>> grade("exact", "Paris", ["Paris", "Paris, France"]).correct
    True
    """
    if isinstance(gold, list):
        verdicts = [grade(kind, text, one, **options) for one in gold]
        return next((one for one in verdicts if one.correct), verdicts[0])
    if kind == "math":
        return grade_math(text, gold, **options)
    if kind == "choice":
        return grade_choice(text, gold, **options)
    if kind == "code":
        return grade_code(text, gold, **options)
    if kind in ("exact", "contains"):
        return grade_text(text, gold, contains=kind == "contains")
    if kind == "python":
        return grade_function(text, gold, function=options["function"])
    raise ValueError(f"There is no grader {kind!r}; use one of {', '.join(get_args(Kind))}.")


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
    """Apply `grade` to each text and its gold answer, in order, at most `workers` at a time.

    Args:
        options: For "choice", the choices of each text.
        workers: Texts graded at once; by default Python's number of threads. There is one worker process per core. A
            "python" function is called in this thread.
        timeout: Seconds for one comparison; if it takes longer, the answer is wrong with the reason `timeout`.
    """

    def one(row: int) -> Graded:
        choices = {} if options is None else {"options": options[row]}
        return grade(kind, texts[row], golds[row], timeout=timeout, **choices, **more)

    if len(texts) != len(golds) or (options is not None and len(options) != len(texts)):
        raise ValueError(f"{len(texts)} texts, but {len(golds)} golds; give one gold (and options) per text.")
    if kind == "python":
        return list(map(one, range(len(texts))))
    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(one, range(len(texts))))


def check_golds(kind: Kind, golds: Sequence[Any], *, options: Sequence[list[str] | None] | None = None) -> list[int]:
    r"""Return the positions of gold answers that cannot be graded against, so that a run can stop before it generates.

    >>> check_golds("choice", ["A", "F", "b", ["B", ""]])
    [1, 3]
    """
    if kind in ("code", "python"):
        return []
    each = [(row, one) for row, gold in enumerate(golds) for one in (gold if isinstance(gold, list) else [gold])]
    if kind in ("exact", "contains"):
        fine = [bool(plain_text(gold)) for _, gold in each]
    elif kind == "choice":
        choices = options or [None] * len(golds)
        fine = [gold_letter(gold, choices[row]) is not None for row, gold in each]
    else:
        with ThreadPoolExecutor() as threads:
            fine = list(threads.map(partial(readable, timeout=10.0), [gold for _, gold in each]))
    return sorted({row for (row, _), good in zip(each, fine, strict=True) if not good})
