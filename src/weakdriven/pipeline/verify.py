"""A raw row -> a candidate for a training set, and the verdict on it: one reader and one verifier for each domain."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from weakdriven.data.example import Example
from weakdriven.data.files import Row
from weakdriven.data.layouts import as_example
from weakdriven.errors import UserError
from weakdriven.eval.answers import BAD_GOLD, EMPTY_BOX, FAILED, NO_BOX, TIMEOUT, UNFINISHED, Graded
from weakdriven.eval.grading import check_golds, grade, grade_many
from weakdriven.eval.hub_rows import our_fields
from weakdriven.eval.sandbox import SandboxError
from weakdriven.pipeline.unit_tests import unit_tests_of

NO_ANSWER = (NO_BOX, EMPTY_BOX, UNFINISHED)


class Fault(NamedTuple):
    """Why a row is dropped."""

    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Candidate:
    example: Example
    tests: dict[str, Any] = field(default_factory=dict)
    """Of a program: what `grade_code` takes."""


Verify = Callable[[Sequence[Candidate]], list[Fault | None]]
"""Takes candidates and gives the fault of each, None for those that are right."""


@dataclass(frozen=True)
class Checks:
    """How rows are verified; nothing here changes what is right."""

    workers: int | None = None
    """Rows verified at once; one for each processor unless given."""
    timeout: float = 10.0
    """Seconds for one comparison of answers, or for one program with all its tests."""
    unsafe: bool = False
    python: str | None = None
    """See `weakdriven.eval.sandbox.run_code`."""


def read_candidate(domain: str, row: Row, number: int, path: str) -> Candidate | Fault:
    """One raw row, whichever of the known layouts it has."""
    try:
        if domain == "logic":
            row = logic_fields(row, number, path)
        example = as_example(row, number, path, needs_completion=False, domain=domain)
    except (UserError, ValueError, TypeError, KeyError, AttributeError) as error:
        return Fault("malformed row", str(error))
    if domain != "code":
        return Candidate(example) if (example.gold or "").strip() else Fault("no gold")
    try:
        tests = unit_tests_of(row, example)
    except (UserError, ValueError, TypeError, KeyError, AttributeError) as error:
        return Fault("bad tests", str(error))
    return Candidate(example, tests) if tests else Fault("no tests")


def logic_fields(row: Row, number: int, path: str) -> Row:
    """A row of LogiQA 2.0 (MRC) or ReClor as their authors publish it, in our fields; a row in ours as it is.

    >>> raw = {"id": 10, "answer": 1, "text": "All cats sleep.", "question": "So?", "options": ["No.", "Cats sleep."]}
    >>> logic_fields(raw, 3, "raw/train.txt")["id"]
    'logiqa2-train-00002'
    """
    stem = Path(path).name.split(".")[0]
    if "text" in row:
        return our_fields("logiqa2", row, number) | {"id": f"logiqa2-{stem}-{number - 1:05d}"}
    if "answers" in row:
        name = row.get("id_string") or f"{stem}-{number - 1:05d}"
        return our_fields("reclor", row, number) | {"id": f"reclor-{name}"}
    return row


def verifier(domain: str, checks: Checks) -> Verify:
    """The function that decides on candidates of a domain."""
    if domain == "math":
        return lambda candidates: verify_math(candidates, checks)
    if domain == "code":
        return lambda candidates: verify_code(candidates, checks)
    return verify_logic


def verify_math(candidates: Sequence[Candidate], checks: Checks) -> list[Fault | None]:
    """Whether the boxed answer has the value of the gold answer."""
    texts = [candidate.example.completion for candidate in candidates]
    golds = [candidate.example.gold for candidate in candidates]
    graded = grade_many("math", texts, golds, workers=checks.workers, timeout=checks.timeout)
    return [math_fault(verdict, str(gold)) for verdict, gold in zip(graded, golds, strict=True)]


def math_fault(graded: Graded, gold: str) -> Fault | None:
    if graded.correct:
        return None
    if graded.reason in NO_ANSWER:
        return Fault("no answer", graded.reason)
    detail = f"found {graded.answer!r:.80}, expected {gold!r:.80}"
    for reason, name in {BAD_GOLD: BAD_GOLD, TIMEOUT: "verifier timeout", FAILED: FAILED}.items():
        if graded.reason.startswith(reason):
            return Fault(name, detail)
    return Fault("wrong answer", f"{detail} ({graded.reason})")


def verify_code(candidates: Sequence[Candidate], checks: Checks) -> list[Fault | None]:
    """Whether the program passes its tests in the sandbox; where there is no sandbox, that is an error."""

    def one(candidate: Candidate) -> Fault | None:
        options = {"timeout": checks.timeout, "unsafe": checks.unsafe, "python": checks.python}
        try:
            graded = grade("code", candidate.example.completion, candidate.tests, **options)
        except SandboxError:
            raise
        except UserError as error:
            return Fault("bad tests", str(error))
        if graded.correct:
            return None
        return Fault("tests failed", graded.reason) if graded.answer is not None else Fault("no answer", graded.reason)

    with ThreadPoolExecutor(checks.workers) as threads:
        return list(threads.map(one, candidates))


def verify_logic(candidates: Sequence[Candidate]) -> list[Fault | None]:
    """Whether there are options and the answer is the letter of one; the reasoning is still to be written."""
    faults: list[Fault | None] = []
    for candidate in candidates:
        options, gold = candidate.example.meta.get("options") or [], candidate.example.gold
        if len(options) < 2:
            faults.append(Fault("malformed row", f"there are {len(options)} options"))
        elif check_golds("choice", [gold], options=[options]):
            faults.append(Fault(BAD_GOLD, f"the answer {gold!r:.80} is no letter of {len(options)} options"))
        else:
            faults.append(None)
    return faults
