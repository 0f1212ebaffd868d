"""Tests that are pairs of input and output, as LiveCodeBench has them.

The answer runs in the sandbox, all tests in one go; what it printed or returned is compared out here, where it cannot
reach. So it can neither read nor change what is expected.
"""

import contextlib
import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError
from weakdriven.eval.sandbox import io_tests
from weakdriven.eval.sandbox.run import OUTPUT_LIMIT, CodeResult, last_line, run_code

HARNESS = Path(io_tests.__file__).read_text(encoding="utf-8")


def run_tests(code: str, item: Mapping[str, Any], *, test_timeout: float, **options: Any) -> str | None:
    """Why the code does not pass the item's tests, or None if it does; `options` are those of `run_code`."""
    name, tests, functional = item.get("id", "item"), item["tests"], item["testtype"] == "functional"
    if item["testtype"] not in ("stdin", "functional") or not tests:
        raise UserError(f"{name}: {len(tests)} tests of testtype {item['testtype']!r}; expected stdin or functional.")
    try:
        inputs, outputs = [test["input"] for test in tests], [test["output"] for test in tests]
        if functional:
            inputs = [[json.loads(line) for line in text.split("\n") if line.strip()] for text in inputs]
            outputs = list(map(value_of, outputs))
    except ValueError as error:
        raise UserError(f"{name}: a functional test holds text that is no JSON: {error}") from error
    sizes = [len(test["output"]) for test in tests]
    enough = 4 * max(sizes) + 2**16
    job = {"code": code, "entry_point": item["entry_point"] if functional else "", "inputs": inputs}
    result = run_code(
        HARNESS,
        stdin=json.dumps(job | {"seconds": test_timeout, "output_limit": enough}),
        timeout=len(tests) * test_timeout + 5,
        keep_stdout=True,
        output_limit=OUTPUT_LIMIT + 6 * sum(sizes) + len(tests) * 2**16,  # one byte is at most six in JSON
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
    """A JSON value; whole numbers of any length, in time that is linear in it."""
    return json.loads(text, parse_int=Decimal)


def read_report(result: CodeResult) -> list[tuple[str, str]]:
    """(how it ended, what it printed) of each test; empty if the program has tampered with the report."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        rows = [json.loads(line) for line in result.stdout.split("\n") if line]
        return [(str(row["ending"]), str(row["output"])) for row in rows]
    return []


def same_value(got: str, want: Any) -> bool:
    """Whether a returned value, as JSON and so with lists for tuples, is the expected one."""
    with contextlib.suppress(ValueError, RecursionError, InvalidOperation):
        return bool(value_of(got) == want)
    return False


def same_output(got: str, want: str) -> bool:
    """Whether two outputs agree as LiveCodeBench compares them: line by line, as text or else as numbers.

    >>> same_output("1.0 2\\n", "1 2.00"), same_output("yes", "Yes"), same_output("1\\n\\n2", "1\\n2")
    (True, False, False)
    """
    got_lines, want_lines = (text.strip().split("\n") for text in (got, want))
    return len(got_lines) == len(want_lines) and all(map(same_line, got_lines, want_lines))


def same_line(got: str, want: str) -> bool:
    if got.strip() == want.strip():
        return True
    with contextlib.suppress(InvalidOperation, ValueError):
        return [Decimal(word) for word in got.split()] == [Decimal(word) for word in want.split()]
    return False


def shown(text: str) -> str:
    """A text short enough for one line."""
    text = text.strip()
    return repr(text if len(text) <= 40 else text[:20] + "...")
