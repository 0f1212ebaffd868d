"""Turn a raw row into a candidate training example with its tests, and verify it."""

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from weakdriven.data.example import Example
from weakdriven.data.rows.files import Row
from weakdriven.data.rows.layouts import as_example
from weakdriven.data.structure import has_box, structure_fault
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import contest_item
from weakdriven.eval.graders.answers import BAD_GOLD, EMPTY_BOX, NO_BOX, UNFINISHED, readable
from weakdriven.eval.graders.choices import NO_CHOICE, gold_letter
from weakdriven.eval.graders.code import NO_CODE
from weakdriven.eval.graders.grading import Kind, grade
from weakdriven.eval.graders.workers import FAILED, TIMEOUT
from weakdriven.eval.hub_rows import called_function, our_fields
from weakdriven.eval.sandbox.run import SandboxError
from weakdriven.runs.machine import cores

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_ANSWER = (NO_BOX, EMPTY_BOX, UNFINISHED, NO_CHOICE, NO_CODE)
NO_ANSWER_FOUND, BAD_TESTS, VERIFIER_TIMEOUT = "no answer", "bad tests", "verifier timeout"


class Fault(NamedTuple):
    """Reason for dropping a row."""

    reason: str
    detail: str = ""
    answer: str | None = None
    """Answer of a wrong completion, if it has one."""


@dataclass(frozen=True)
class Candidate:
    example: Example
    tests: dict[str, Any] = field(default_factory=dict)
    """Tests of a program, as `grade_code` takes them."""


Verify = Callable[[Sequence[Candidate]], list[Fault | None]]
"""Returns the fault of each candidate, None for a right one."""


@dataclass(frozen=True)
class Checks:
    """How rows are verified: rows at once, seconds for each, and the options of `weakdriven.eval.sandbox.run_code`."""

    workers: int | None = None
    timeout: float = 10.0
    unsafe: bool = False
    python: str | None = None


def read_candidate(domain: str, row: Row, number: int, path: str) -> Candidate | Fault:
    try:
        if domain == "logic":
            row = logic_fields(row, number, path)
        example = as_example(row, number, path, needs_completion=False, domain=domain)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        return Fault("malformed row", str(error))
    if not example.prompt:
        return Fault("malformed row", "plain text has no question")
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
    """Convert a row of LogiQA 2.0 (MRC) or ReClor from its published layout to our fields; keep a row in our fields."""
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
    """Find a fault of the form of a completion, which needs no verifier."""
    if fault := structure_fault(example.completion, style):
        return Fault("bad structure", fault)
    no_box = example.domain == "math" and not has_box(example.completion)
    return Fault(NO_ANSWER_FOUND, NO_BOX) if no_box else None


def kind_of(candidate: Candidate) -> Kind:
    """Choose the grader of a candidate; a math problem with options is graded by its letter."""
    options = candidate.example.meta.get("options")
    return "code" if candidate.tests else "choice" if options and isinstance(options, list) else "math"


def verifier(checks: Checks) -> Verify:
    return partial(in_threads, checks, completion_fault)


def problem_checker(checks: Checks) -> Verify:
    """Return a check whether a future completion of a problem could be verified."""
    return partial(in_threads, checks, problem_fault)


def in_threads(
    checks: Checks, decide: Callable[[Checks, Candidate], Fault | None], candidates: Sequence[Candidate]
) -> list[Fault | None]:
    with ThreadPoolExecutor(checks.workers or cores()) as threads:
        return list(threads.map(partial(decide, checks), candidates))


def completion_fault(checks: Checks, candidate: Candidate) -> Fault | None:
    """Verify a completion by its boxed answer, letter or tests; raise an error if the sandbox cannot run a program."""
    example, kind = candidate.example, kind_of(candidate)
    gold, options = example.gold, dict[str, Any]()
    if kind == "code":
        gold, options = candidate.tests, {"unsafe": checks.unsafe, "python": checks.python}
    elif kind == "choice":
        options = {"options": example.meta["options"]}
    try:
        graded = grade(kind, example.completion, gold, timeout=checks.timeout, **options)
    except SandboxError:
        raise
    except UserError as error:
        return Fault(BAD_TESTS, str(error))
    if graded.correct:
        return None
    if graded.reason in NO_ANSWER:
        return Fault(NO_ANSWER_FOUND, graded.reason)
    if kind == "code":
        return Fault("tests failed", graded.reason)
    detail = f"found {graded.answer!r:.80}, expected {str(gold)!r:.80}"
    for reason, name in {BAD_GOLD: BAD_GOLD, TIMEOUT: VERIFIER_TIMEOUT, FAILED: FAILED}.items():
        if graded.reason.startswith(reason):
            return Fault(name, detail)
    return Fault("wrong answer", f"{detail} ({graded.reason})", graded.answer)


def problem_fault(checks: Checks, candidate: Candidate) -> Fault | None:
    """Check a problem's gold answer; the tests of a program have been read before."""
    kind, gold, options = kind_of(candidate), str(candidate.example.gold), candidate.example.meta.get("options", [])
    if kind == "math" and not readable(gold, timeout=checks.timeout):
        return Fault(BAD_GOLD, f"{gold!r:.80} is not a value")
    if kind == "choice" and len(options) < 2:
        return Fault("malformed row", f"found {len(options)} options")
    if kind == "choice" and gold_letter(gold, options) is None:
        return Fault(BAD_GOLD, f"the answer {gold!r:.80} is not a letter of {len(options)} options")
    return None


@contextmanager
def refuse_unreadable() -> Iterator[None]:
    """Turn the various failures of Python's parser on thousands of brackets, signs or terms into one error."""
    try:
        yield
    except UserError:
        raise
    except (RecursionError, MemoryError):
        raise UserError("the test is nested too deeply to read") from None
    except (SyntaxError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"the test cannot be read: {error}") from None


@refuse_unreadable()
def unit_tests_of(row: Row, example: Example) -> dict[str, Any]:
    """Return a row's tests as `grade_code` takes them; empty if there are none, an error if they would test nothing.

    A row has `test_case` with `test_code` (AM-DeepSeek-R1-Distilled), `tests` as inputs and outputs (contests), `test`
    as a program (HumanEval, MBPP, BigCodeBench), or `tests` or `test_list` as a list of asserts.
    """
    fields, case = example.meta | row, example.meta.get("test_case")
    if isinstance(case, str) and case.strip():
        case = json.loads(case)
    if isinstance(case, dict) and str(case.get("test_code") or "").strip():
        return program_tests(example.id, str(case["test_code"]), str(case.get("test_entry_point") or ""))
    tests = fields.get("tests") or fields.get("test_list")
    if isinstance(tests, list) and tests and all(isinstance(test, dict) for test in tests):
        question = {"question": example.prompt[-1]["content"], "id": example.id, "tests": tests}
        return contest_item(fields | question, example.id).gold
    if isinstance(tests, list) and tests:
        fields |= {"test": "\n".join(map(str, tests))}
    test, name = str(fields.get("test") or ""), str(fields.get("entry_point") or "")
    if not test.strip():
        return {}
    prompt = row["prompt"] if isinstance(row.get("prompt"), str) else ""
    return program_tests(example.id, test, name, prompt=prompt, style=str(fields.get("test_style") or ""))


@refuse_unreadable()
def program_tests(id: str, test: str, entry_point: str, *, prompt: str = "", style: str = "") -> dict[str, Any]:
    """Return tests that are a program; functions that only pytest would call are called here.

    A test that asserts nothing would accept every answer, so it raises an error.

    >>> program_tests("7", "def test_f():\\n    assert f(1) == 2", "f")["test"]
    'def test_f():\\n    assert f(1) == 2\\n\\ntest_f()\\n'
    """
    tree = ast.parse(test)
    functions = {node.name: node for node in tree.body if isinstance(node, FUNCTIONS)}
    if entry_point in functions and (entry_point != "check" or not takes_arguments(functions[entry_point])):
        called, entry_point = [functions[entry_point]], ""  # the name is the test's, not the tested function's
    else:
        called = [node for name, node in functions.items() if name.startswith("test")]
    style, parts = style or style_of(tree, functions, entry_point), list[ast.AST]([tree])
    if style == "asserts":
        plain = [node for node in called if isinstance(node, ast.FunctionDef) and not node.decorator_list]
        if len(plain) < len(called) or any(map(takes_arguments, plain)):
            raise UserError("a function of the test has arguments or decorators, which need pytest")
        parts = [node for node in tree.body if not isinstance(node, (*FUNCTIONS, ast.ClassDef))] + called
        calls = {ast.unparse(node.func) for part in parts for node in living(part) if isinstance(node, ast.Call)}
        parts += [node for node in tree.body if isinstance(node, FUNCTIONS) and node.name in calls]
        if called:
            test = "\n".join([test.rstrip(), "", *(f"{node.name}()" for node in called), ""])
        first = next((ast.unparse(node) for node in living(tree) if asserts(node)), "")
        entry_point = entry_point or called_function(first, "")
    nodes = [node for part in parts for node in living(part)]
    if not any(asserts(node) or (style == "unittest" and calls_assertion(node)) for node in nodes):
        raise UserError("the test asserts nothing")
    return {"id": id, "prompt": prompt, "entry_point": entry_point, "test": test, "test_style": style}


def style_of(tree: ast.Module, functions: dict[str, Any], entry_point: str) -> str:
    bases = [base for node in tree.body if isinstance(node, ast.ClassDef) for base in node.bases]
    if any(ast.unparse(base).endswith("TestCase") for base in bases):
        return "unittest"
    return "check" if entry_point and "check" in functions and takes_arguments(functions["check"]) else "asserts"


def takes_arguments(function: Any) -> bool:
    given = function.args
    needed = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    return needed > 0 or any(default is None for default in given.kw_defaults)


def living(top: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it as `ast.walk` does, without branches that are never executed."""
    nodes = [top]
    for node in nodes:
        yield node
        below = ast.iter_child_nodes(node)
        if isinstance(node, (ast.If, ast.While)):
            if isinstance(node.test, ast.Constant):
                below = node.body if node.test.value else node.orelse
            elif ast.unparse(node.test) == "__name__ == '__main__'":  # the grader runs a program under another name
                below = node.orelse
        nodes.extend(below)


def asserts(node: ast.AST) -> bool:
    """Return whether a node is an assert that can fail; `assert False` can, after a call that should raise an error."""
    if not isinstance(node, ast.Assert):
        return False
    if isinstance(node.test, ast.Constant):
        return not node.test.value
    return not isinstance(node.test, ast.Tuple) and names_something(node.test)


def calls_assertion(node: ast.AST) -> bool:
    """Return whether a node calls `self.assertEqual`, `pytest.raises` or the like on more than constants."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    on_something = not given or any(map(names_something, given))
    return name.startswith("fail") or (name.startswith(("assert", "raises")) and on_something)


def names_something(expression: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) for node in ast.walk(expression))
