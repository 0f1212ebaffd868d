"""A raw row -> a candidate for a training set, and the verdict on it: one reader and one verifier for each domain."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from weakdriven.data.example import Example
from weakdriven.data.rows.files import Row
from weakdriven.data.rows.layouts import as_example
from weakdriven.data.structure import has_box, structure_fault
from weakdriven.errors import UserError
from weakdriven.eval.graders.answers import BAD_GOLD, EMPTY_BOX, NO_BOX, UNFINISHED, Graded
from weakdriven.eval.graders.choices import NO_CHOICE, gold_letter
from weakdriven.eval.graders.grading import Kind, check_golds, grade, grade_many
from weakdriven.eval.graders.unit_tests import unit_tests_of
from weakdriven.eval.graders.workers import FAILED, TIMEOUT
from weakdriven.eval.hub_rows import our_fields
from weakdriven.eval.sandbox.run import SandboxError
from weakdriven.runs.machine import cores

NO_ANSWER = (NO_BOX, EMPTY_BOX, UNFINISHED, NO_CHOICE)
NO_ANSWER_FOUND, BAD_TESTS, VERIFIER_TIMEOUT = "no answer", "bad tests", "verifier timeout"


class Fault(NamedTuple):
    """Why a row is dropped."""

    reason: str
    detail: str = ""
    answer: str | None = None
    """The answer of a wrong completion, if it has one."""


@dataclass(frozen=True)
class Candidate:
    example: Example
    tests: dict[str, Any] = field(default_factory=dict)
    """Of a program: what `grade_code` takes."""


Verify = Callable[[Sequence[Candidate]], list[Fault | None]]
"""Returns the fault of each candidate, None for those that are right."""


@dataclass(frozen=True)
class Checks:
    """How rows are verified: rows at once, seconds for each, and the options of `weakdriven.eval.sandbox.run_code`."""

    workers: int | None = None
    timeout: float = 10.0
    unsafe: bool = False
    python: str | None = None


def read_candidate(domain: str, row: Row, number: int, path: str) -> Candidate | Fault:
    """One raw row, whichever of the known layouts it has."""
    try:
        if domain == "logic":
            row = logic_fields(row, number, path)
        example = as_example(row, number, path, needs_completion=False, domain=domain)
    except (UserError, ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        return Fault("malformed row", str(error))
    if example.domain != domain:
        return Fault("another domain", example.domain)
    if domain == "logic" and not example.meta.get("options"):
        return Fault("malformed row", "there are no options")
    if domain != "code":
        return Candidate(example) if (example.gold or "").strip() else Fault("no gold")
    try:
        tests = unit_tests_of(row, example)
    except UserError as error:
        return Fault(BAD_TESTS, str(error))
    return Candidate(example, tests) if tests else Fault("no tests")


def logic_fields(row: Row, number: int, path: str) -> Row:
    """A row of LogiQA 2.0 (MRC) or ReClor as their authors publish it, in our fields; a row in ours as it is.

    >>> raw = {"id": 10, "answer": 1, "text": "All cats sleep.", "question": "So?", "options": ["No.", "Cats sleep."]}
    >>> logic_fields(raw, 3, "raw/train.txt")["id"]
    'logiqa2-train-00002'
    """
    stem = Path(path).name.split(".")[0]
    if "text" in row:
        row = our_fields("logiqa2", row, number) | {"id": f"logiqa2-{stem}-{number - 1:05d}"}
    elif "answers" in row:
        name = row.get("id_string") or f"{stem}-{number - 1:05d}"
        row = our_fields("reclor", row, number) | {"id": f"reclor-{name}"}
    for field_ in ("context", "question") if "question" in row else ():
        if not isinstance(found := row.get(field_), str) or not found.strip():
            raise UserError(f"expected a text as {field_}, found {found!r:.80}")
    return row


def form_fault(example: Example, style: str) -> Fault | None:
    """The fault of a completion that shows without a verifier."""
    if fault := structure_fault(example.completion, style):
        return Fault("bad structure", fault)
    no_box = example.domain == "math" and not has_box(example.completion)
    return Fault(NO_ANSWER_FOUND, NO_BOX) if no_box else None


def kind_of(candidate: Candidate) -> Kind:
    """How its answer is verified; a math problem with options asks for a letter."""
    options = candidate.example.meta.get("options")
    return "code" if candidate.tests else "choice" if options and isinstance(options, list) else "math"


def verifier(checks: Checks) -> Verify:
    """Verifies completions."""
    math, choice = partial(verify_answers, "math", checks), partial(verify_answers, "choice", checks)
    return partial(by_kind, math=math, choice=choice, code=partial(verify_code, checks))


def problem_checker(checks: Checks) -> Verify:
    """Checks whether a completion of a problem, which is yet to be generated, could be verified."""
    # the tests of a program have been read, so there is nothing to check
    return partial(by_kind, math=partial(check_values, checks), choice=lambda some: list(map(letter_fault, some)))


def by_kind(candidates: Sequence[Candidate], **verify: Verify) -> list[Fault | None]:
    """The fault of each candidate, from the function for its kind if there is one."""
    faults: list[Fault | None] = [None] * len(candidates)
    for kind, decide in verify.items():
        places = [place for place, candidate in enumerate(candidates) if kind_of(candidate) == kind]
        for place, fault in zip(places, decide([candidates[place] for place in places]), strict=True):
            faults[place] = fault
    return faults


def verify_answers(kind: Kind, checks: Checks, candidates: Sequence[Candidate]) -> list[Fault | None]:
    """Whether the boxed answer has the value of the gold answer, or the chosen letter is the gold letter."""
    examples = [candidate.example for candidate in candidates]
    golds = [example.gold for example in examples]
    options = [example.meta["options"] for example in examples] if kind == "choice" else None
    texts = [example.completion for example in examples]
    graded = grade_many(kind, texts, golds, options=options, workers=checks.workers, timeout=checks.timeout)
    return [answer_fault(verdict, str(gold)) for verdict, gold in zip(graded, golds, strict=True)]


def answer_fault(graded: Graded, gold: str) -> Fault | None:
    if graded.correct:
        return None
    if graded.reason in NO_ANSWER:
        return Fault(NO_ANSWER_FOUND, graded.reason)
    detail = f"found {graded.answer!r:.80}, expected {gold!r:.80}"
    for reason, name in {BAD_GOLD: BAD_GOLD, TIMEOUT: VERIFIER_TIMEOUT, FAILED: FAILED}.items():
        if graded.reason.startswith(reason):
            return Fault(name, detail)
    return Fault("wrong answer", f"{detail} ({graded.reason})", graded.answer)


def verify_code(checks: Checks, candidates: Sequence[Candidate]) -> list[Fault | None]:
    """Whether the program passes its tests in the sandbox; where there is no sandbox, that is an error."""
    options = {"timeout": checks.timeout, "unsafe": checks.unsafe, "python": checks.python}

    def one(candidate: Candidate) -> Fault | None:
        try:
            graded = grade("code", candidate.example.completion, candidate.tests, **options)
        except SandboxError:
            raise
        except UserError as error:
            return Fault(BAD_TESTS, str(error))
        found = NO_ANSWER_FOUND if graded.answer is None else "tests failed"
        return None if graded.correct else Fault(found, graded.reason)

    with ThreadPoolExecutor(checks.workers or cores()) as threads:
        return list(threads.map(one, candidates))


def check_values(checks: Checks, candidates: Sequence[Candidate]) -> list[Fault | None]:
    golds = [candidate.example.gold for candidate in candidates]
    bad = set(check_golds("math", golds, timeout=checks.timeout))
    return [Fault(BAD_GOLD, f"{gold!r:.80} is no value") if place in bad else None for place, gold in enumerate(golds)]


def letter_fault(candidate: Candidate) -> Fault | None:
    options, gold = candidate.example.meta["options"], candidate.example.gold
    if len(options) < 2:
        return Fault("malformed row", f"there are {len(options)} options")
    if gold_letter(str(gold), options) is None:
        return Fault(BAD_GOLD, f"the answer {gold!r:.80} is no letter of {len(options)} options")
    return None
