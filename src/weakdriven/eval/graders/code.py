"""Grade a model's answer to a code benchmark: find the code, append the tests, run it."""

import ast
import contextlib
import json
import re
import textwrap
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError
from weakdriven.eval.graders.answers import Graded, unfinished
from weakdriven.eval.sandbox import io_tests
from weakdriven.eval.sandbox.run import OUTPUT_LIMIT, CodeResult, last_line, run_code

HARNESS = Path(io_tests.__file__).read_text(encoding="utf-8")
NO_CODE = "no code found"
PYTHON_TAGS = ("python", "python3", "py")

# Code under `if __name__ == "__main__":` is a demonstration and not part of an answer, so the program has another name.
NAME = '__name__ = "solution"; __import__("sys").modules[__name__] = __import__("sys").modules["__main__"]'

# A skipped test says nothing about the answer, and an answer can raise SkipTest, so a skip counts as a failure.
UNITTEST = """
import unittest as _unittest
_cases = [globals()[name] for name in {names!r}]
_cases = [case for case in _cases if isinstance(case, type) and issubclass(case, _unittest.TestCase)]
_suite = _unittest.TestSuite(map(_unittest.defaultTestLoader.loadTestsFromTestCase, _cases))
_result = _unittest.TextTestRunner(verbosity=0).run(_suite)
assert _result.testsRun > 0, "no test ran"
assert _result.wasSuccessful() and not _result.skipped, "a test failed or was skipped"
"""


def grade_code(
    text: str, item: Mapping[str, Any], *, timeout: float = 10, test_timeout: float = 6, **options: Any
) -> Graded:
    """Run the code in an answer on the item's tests.

    Args:
        timeout: Seconds for an item's whole program; with `test_style` "io", each test has its own limit instead.
        test_timeout: Seconds for one test of style "io".
        options: `memory_mb`, `unsafe` and `python` of `run_code`.
    """
    code = code_for(item, text)
    if code is None:
        return Graded(False, None, NO_CODE)
    if item["test_style"] == "io":
        reason = run_tests(code, item, test_timeout=test_timeout, **options)
    else:
        result = run_code(assemble(item, code), timeout=timeout, **options)
        detail = last_line(result.stderr)
        reason = None if result.passed else f"program {result.status}: {detail}".removesuffix(": ")
    return Graded(reason is None, code, "tests passed" if reason is None else reason[:240])


def code_for(item: Mapping[str, Any], text: str) -> str | None:
    """Return the code in an answer to an item; a body that continues the item's `starter_code` is appended to it."""
    code, starter = extract_code(text, item["entry_point"]), item.get("starter_code", "").rstrip()
    if code is None or not starter or item["test_style"] != "io" or defines(code, item["entry_point"]):
        return code
    whole = f"{starter}\n{code}"
    return whole if as_body(code) is not None and compiles(whole) else code


def extract_code(text: str, entry_point: str) -> str | None:
    """Return the code in an answer: the last fenced block that defines `entry_point`, or a bare completion.

    Without `entry_point`, return a whole program: the last Python block, or the whole text if it is a program.

    >>> extract_code("Sure:\\n```python\\ndef f(x):\\n    return x\\n```\\nDone.", "f")
    'def f(x):\\n    return x\\n'
    """
    if unfinished(text):
        return None
    text = text.rpartition("</think>")[2]
    if "<answer>" in text:
        inside = text.rpartition("<answer>")[2].partition("</answer>")[0]
        if (code := code_in(inside, entry_point)) is not None:
            return code
    return code_in(text, entry_point)


def code_in(text: str, entry_point: str) -> str | None:
    blocks = [(tag, body) for tag, body in fenced_blocks(text) if tag in (*PYTHON_TAGS, "")]
    if not entry_point:
        return program_in(text, blocks)
    if defining := [body for _, body in blocks if defines(body, entry_point)]:
        return defining[-1]
    head, fence, rest = text.partition("```")
    if fence and not rest.startswith(PYTHON_TAGS) and (code := bare_code(head, entry_point)) is not None:
        return code  # the prompt opened the fence that this one closes
    tagged = [body for tag, body in blocks if tag] or [body for _, body in blocks]
    return tagged[-1] if tagged else bare_code(text, entry_point)


def program_in(text: str, blocks: list[tuple[str, str]]) -> str | None:
    """Return the last block marked as Python; else the last part of the text that reads like a program."""
    if tagged := [body for tag, body in blocks if tag]:
        return tagged[-1]
    # if the prompt opened the fence, the first fence closes it
    for code in (text.partition("```")[0], *(body for _, body in reversed(blocks))):
        # requires a call, because the output of a program may be valid Python too
        if compiles(code) and any(isinstance(node, ast.Call) for node in ast.walk(ast.parse(code))):
            return code
    return blocks[-1][1] if blocks else None


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """List (language, content) of each nonempty fenced block; an unclosed fence extends to the end."""
    blocks: list[tuple[str, list[str]]] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        mark = re.match(r"\s*(`{3,}|~{3,})[ \t]*([\w+-]*)", line)
        if fence and mark and mark[1].startswith(fence) and not mark[2]:
            fence = ""
        elif fence:
            blocks[-1][1].append(line.rstrip().removesuffix(fence) + "\n" if line.rstrip().endswith(fence) else line)
            fence = "" if line.rstrip().endswith(fence) else fence
        elif mark:
            fence = mark[1]
            blocks.append((mark[2].lower(), []))
    return [(tag, "".join(lines)) for tag, lines in blocks if "".join(lines).strip()]


def bare_code(text: str, entry_point: str) -> str | None:
    """Return code without fences: a body that continues the prompt, or everything from the first statement on."""
    if (body := as_body(text)) is not None:
        return text if compiles(STUB + body) else longest_valid(text, STUB)
    if not defines(text, entry_point):
        return None
    if compiles(text):
        return text
    start = re.search(r"^(import |from \w|def |async def |class |@)", text, re.MULTILINE)
    return longest_valid(text[start.start() if start else 0 :], "")


STUB = "def _stub():\n"


def as_body(code: str) -> str | None:
    """Return the code as an indented function body, or None if it is not one."""
    code = code.lstrip("\r\n") if code.strip() else ""
    if code[:1] in (" ", "\t"):
        return code
    for body in ("    " + code, textwrap.indent(code, "    ")):
        if compiles(STUB + body) and "return" in code and not compiles(code):
            return body
    return None


def compiles(code: str) -> bool:
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        compile(code, "<answer>", "exec", dont_inherit=True)
        return True
    return False


def longest_valid(code: str, before: str) -> str:
    """Return the most lines from the start that compile behind `before`; all lines if none do."""
    lines = code.splitlines(keepends=True)
    while lines:
        try:
            compile(before + "".join(lines), "<answer>", "exec", dont_inherit=True)
            return "".join(lines)
        except SyntaxError as error:
            place = (error.lineno or 1) - 1 - before.count("\n")
            del lines[max(0, min(place, len(lines) - 1)) :]
        except (ValueError, RecursionError, MemoryError, OverflowError):
            break
    return code


def defines(code: str, name: str) -> bool:
    """Return whether the code defines `name` at its top level or in `class Solution`, as far as it can be parsed."""
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        start = r"^[ \t]*" if re.search(r"^class Solution\b", code, re.MULTILINE) else "^"
        return re.search(rf"{start}(async def|def|class) +{re.escape(name)}\b", code, re.MULTILINE) is not None
    named: list[str] = []
    for statement in statements:
        inner = statement.body if isinstance(statement, ast.ClassDef) and statement.name == "Solution" else []
        named += [one.name for one in [statement, *inner] if isinstance(one, DEFINITIONS)]
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        named += [target.id for target in targets if isinstance(target, ast.Name)]
    return name in named


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def assemble(item: Mapping[str, Any], code: str) -> str:
    """Join an item's program and the code of an answer according to the item's `test_style`."""
    style, name, test = item["test_style"], item["entry_point"], item.get("test", "")
    if style not in ("check", "asserts", "unittest"):
        known = "io is graded without a program; others are" if style == "io" else "expected"
        raise UserError(f"{item.get('id', 'item')}: test_style is {style!r}; {known} check, asserts or unittest.")
    ending = f"check({name})\n" if style == "check" else ""
    if style == "unittest":
        # only the test's own classes count: an answer may contain tests too
        names = [node.name for node in ast.parse(test).body if isinstance(node, ast.ClassDef)]
        if not names:
            raise UserError(f"{item.get('id', 'item')}: the test of style unittest defines no class.")
        ending = UNITTEST.format(names=names)
    if style == "asserts":
        solution = code
    elif not defines(code, name) and (body := as_body(code)) is not None:
        solution = item["prompt"] + body
    else:
        solution = preamble(item["prompt"], name) + code
    future = re.compile(r"^from __future__ import .*$", re.MULTILINE)  # must come first
    first = "\n".join([*future.findall(solution), NAME])
    return f"{first}\n{future.sub('', solution)}\n{test}\n\n{ending}"


def preamble(prompt: str, entry_point: str) -> str:
    """Return the imports, helpers and constants of a prompt, without the function that the answer defines."""
    text = next(filter(compiles, (prompt, prompt.rstrip() + "\n    pass\n")), "")  # "" for plain English
    lines, kept = text.splitlines(keepends=True), list[str]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Expr) or (isinstance(node, DEFINITIONS) and node.name == entry_point):
            continue
        decorators = node.decorator_list if isinstance(node, DEFINITIONS) else []
        start = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        kept += [*lines[start - 1 : node.end_lineno], "\n"]
    return "".join(kept)


def run_tests(code: str, item: Mapping[str, Any], *, test_timeout: float, **options: Any) -> str | None:
    """Run tests that are pairs of input and output; return why the code fails, or None if it passes.

    The sandbox runs all tests in one go. Outputs are compared outside of it, so that the code can neither read nor
    change the expected ones.
    """
    name, tests, functional = item.get("id", "item"), item["tests"], item["testtype"] == "functional"
    if item["testtype"] not in ("stdin", "functional") or not tests:
        raise UserError(f"{name}: {len(tests)} tests of testtype {item['testtype']!r}; expected stdin or functional.")
    try:
        inputs, outputs = [test["input"] for test in tests], [test["output"] for test in tests]
        if functional:
            inputs = [[json.loads(line) for line in text.split("\n") if line.strip()] for text in inputs]
            outputs = list(map(value_of, outputs))
    except ValueError as error:
        raise UserError(f"{name}: a functional test has text that is not JSON: {error}") from error
    sizes = [len(test["output"]) for test in tests]
    enough = 4 * max(sizes) + 2**16
    job = {"code": code, "entry_point": item["entry_point"] if functional else "", "inputs": inputs}
    result = run_code(
        HARNESS,
        stdin=json.dumps(job | {"seconds": test_timeout, "output_limit": enough}),
        timeout=len(tests) * test_timeout + 5,
        keep_stdout=True,
        output_limit=OUTPUT_LIMIT + 6 * sum(sizes) + len(tests) * 2**16,  # a byte takes at most six in JSON
        **options,
    )
    same = same_value if functional else same_output
    report = read_report(result)
    for number, (want, (ending, got)) in enumerate(zip(outputs, report, strict=False), 1):
        where = f"test {number} of {len(tests)}"
        if ending != "passed":
            detail = last_line(result.stderr) if ending == "failed" else ""
            return f"program failed: {where}: {ending}: {detail}".removesuffix(": ")
        if not same(got, want):
            return f"program failed: {where}: wrong answer {shown(got)}, expected {shown(tests[number - 1]['output'])}"
    if not result.passed or len(report) != len(tests):
        status = "failed" if result.passed else result.status
        return f"program {status}: {last_line(result.stderr)}".removesuffix(": ")
    return None


def value_of(text: str) -> Any:
    """Parse JSON with whole numbers of any length in linear time."""
    return json.loads(text, parse_int=Decimal)


def read_report(result: CodeResult) -> list[tuple[str, str]]:
    """List (how it ended, what it printed) of each test; empty if the program tampered with the report."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        rows = [json.loads(line) for line in result.stdout.split("\n") if line]
        return [(str(row["ending"]), str(row["output"])) for row in rows]
    return []


def same_value(got: str, want: Any) -> bool:
    """Compare a returned value (as JSON, so tuples are lists) with the expected one."""
    with contextlib.suppress(ValueError, RecursionError, InvalidOperation):
        return bool(value_of(got) == want)
    return False


def same_output(got: str, want: str) -> bool:
    """Compare two outputs as LiveCodeBench does: line by line, as text or else as numbers."""
    got_lines, want_lines = ([line.strip() for line in text.strip().split("\n")] for text in (got, want))
    if len(got_lines) != len(want_lines):
        return False
    different = [(one, other) for one, other in zip(got_lines, want_lines, strict=True) if one != other]
    with contextlib.suppress(InvalidOperation, ValueError):
        return all(list(map(Decimal, one.split())) == list(map(Decimal, other.split())) for one, other in different)
    return False


def shown(text: str) -> str:
    """Shorten a text to one line."""
    text = text.strip()
    return repr(text if len(text) <= 40 else text[:20] + "...")
