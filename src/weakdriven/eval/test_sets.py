"""Test sets of the user: turn rows with a question and its answer into items; load them or a shipped benchmark.

docs/how-to/evaluation.md lists the fields of a row and the graders.
"""

import json
import logging
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from weakdriven.config.benchmarks import GRADERS, PYTHON, TestSet
from weakdriven.config.evaluation import EvalSettings
from weakdriven.data.example import Example, refuse_broken_text
from weakdriven.data.rows.files import count_rows, read_rows
from weakdriven.data.rows.layouts import as_example, layout_name
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS, CODE, Benchmark, Item, Row, code_item, contest_item, load_items
from weakdriven.eval.graders.choices import LETTERS, gold_letter
from weakdriven.eval.graders.functions import load_function, source_digest
from weakdriven.eval.graders.grading import check_golds
from weakdriven.eval.graders.texts import plain_text
from weakdriven.runs.redact import without_login

logger = logging.getLogger(__name__)
SPLIT = "test"
"""Split that is read from a Hub dataset."""
VERSION, MAX_NEW_TOKENS = 1, 1024
"""Version of the user's test sets, raised when their prompts or graders change; and default limit of new tokens."""
NUMBER = re.compile(r"[+-]?\s?\$?\d[\d,]*(\.\d+)?(\s?/\s?\d+)?\s?%?")
LATEX = re.compile(r"\\[a-zA-Z]+|\$.+\$|\w\^[\d{]")


class Loaded(NamedTuple):
    """A benchmark or a test set with its items."""

    name: str
    benchmark: Benchmark
    items: list[Item]


def load_benchmark(entry: str | TestSet, data_dir: str | None, domain: str = "") -> Loaded:
    """Load a shipped benchmark, or a test set of the user, with all of its items.

    Args:
        domain: Domain of the training data, which decides how the options of a test set's questions are worded.
    """
    if isinstance(entry, str):
        return Loaded(entry, BENCHMARKS[entry], load_items(entry, data_dir))
    source = without_login(entry.path)
    rows = [(f"{source}, row {number}", row) for number, row in enumerate(read_rows(entry.path, SPLIT), start=1)]
    if not rows:
        raise UserError(f"{source}: this test set has no rows.")
    examples = [read_example(row, number, where, domain) for number, (where, row) in enumerate(rows, start=1)]
    grader = entry.grader or find_grader(rows, examples)
    benchmark = own_benchmark(entry.path, grader, rows=len(rows), found=entry.grader is None)
    items = [
        make_item(benchmark.kind, row, example, where) for (where, row), example in zip(rows, examples, strict=True)
    ]
    refuse_repeats(source, items)
    return Loaded(entry.name, benchmark, items)


def own_benchmark(path: str, grader: str, *, rows: int, found: bool) -> Benchmark:
    """Describe a test set of the user as the table of shipped benchmarks would."""
    kind: Any = "python" if grader.startswith(PYTHON) else grader
    options = {"math": {"boxed": False}, "code": CODE, "python": {"function": grader.removeprefix(PYTHON)}}
    return Benchmark(
        kind,
        "",
        rows,
        MAX_NEW_TOKENS,
        VERSION,
        without_login(path),
        grading=options.get(kind, {}),
        grader=grader,
        found=found,
    )


def recorded_benchmark(name: str, scores: dict[str, Any]) -> Benchmark:
    """Return the benchmark of saved results; scores.json describes it if it is a test set of the user."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    try:
        facts = scores["test_set"]
        if facts["grader"] in GRADERS or facts["grader"].startswith(PYTHON):
            return own_benchmark(facts["path"], facts["grader"], rows=facts["rows"], found=facts["found"])
    except (KeyError, TypeError, AttributeError):
        pass
    raise UserError(f"{name} is not a benchmark, and its scores.json does not describe a test set; evaluate it again.")


def grading_of(benchmark: Benchmark, settings: Any) -> dict[str, Any]:
    """Return what decides verdicts besides items and version; when it changes, saved answers are graded again."""
    found: dict[str, Any] = {"grader": benchmark.grader} if benchmark.grader else {}
    if benchmark.kind == "code":
        found |= {"unsafe": settings.unsafe, "python": settings.code_python}
    if benchmark.kind == "python":
        found["source"] = source_digest(load_function(benchmark.grading["function"]))
    return found


def token_budget(entry: str | TestSet, settings: EvalSettings) -> int:
    """Choose the limit of new tokens: of the test set, else of the recipe for all benchmarks, else of the benchmark."""
    if isinstance(entry, str):
        return settings.max_new_tokens or BENCHMARKS[entry].max_new_tokens
    return entry.max_new_tokens or settings.max_new_tokens or MAX_NEW_TOKENS


def count_items(entry: str | TestSet, limit: int | None) -> int:
    """Count the items that will be evaluated without parsing rows."""
    rows = BENCHMARKS[entry].rows if isinstance(entry, str) else count_rows(entry.path, SPLIT)
    return min(limit or rows, rows)


def read_example(row: Row, number: int, where: str, domain: str) -> Example:
    """Build the prompt of a row as for a training row of the same layout."""
    if layout_name(row) in (None, "text"):
        raise UserError(
            f"{where}: found the fields {', '.join(map(str, row)) or 'none'}; expected question, prompt or messages, "
            "and answer."
        )
    path = where.rpartition(", row ")[0]
    return as_example(row, number, path, needs_completion=False, domain=domain)


def find_grader(rows: Sequence[tuple[str, Row]], examples: Sequence[Example]) -> str:
    """Choose a grader: choice for options, code for tests, math for numbers or LaTeX in all answers, else exact."""
    for grader, fits in (("choice", has_options), ("code", has_tests)):
        having = [fits(row) for _, row in rows]
        if all(having):
            return grader
        if any(having):
            what = {"choice": "options", "code": "tests"}[grader]
            raise UserError(
                f"{rows[having.index(False)][0]} has no {what}, but row {having.index(True) + 1} has; a test set has "
                "one grader: move such rows to a separate file, or set the grader."
            )
    answers = [answers_of(row, example, where) for (where, row), example in zip(rows, examples, strict=True)]
    mathematical = all(NUMBER.fullmatch(one.strip()) or LATEX.search(one) for each in answers for one in each)
    return "math" if mathematical and not check_golds("math", answers) else "exact"


def has_options(row: Row) -> bool:
    return bool(row.get("options"))


def has_tests(row: Row) -> bool:
    return bool(row.get("tests") or (row.get("test") and row.get("entry_point")))


def answers_of(row: Row, example: Example, where: str) -> list[str]:
    """Return the right answers of a row, one or several."""
    given = row.get("answer")
    found = given if isinstance(given, list) else [] if example.gold is None else [example.gold]
    if not found or any(one is None or not str(one).strip() for one in found):
        raise UserError(f"{where}: the field 'answer' is missing or empty; every row of a test set needs it.")
    if isinstance(given, dict) or not all(isinstance(one, str | int | float) for one in found):
        raise UserError(f"{where}: the answer is {given!r:.80}; expected a string, a number, or a list of them.")
    for one in found:
        refuse_broken_text(str(one), where)
    return [str(one) for one in found]


def make_item(kind: str, row: Row, example: Example, where: str) -> Item:
    level = None if row.get("level") is None else str(row["level"])
    if kind == "code":
        return program_item(row | {"id": example.id}, where)
    asked = "\n".join(turn["content"] for turn in example.prompt if turn["role"] == "user")
    alone = example.prompt == [{"role": "user", "content": asked}]
    item = Item(example.id, asked, None, level=level, messages=None if alone else example.prompt)
    if kind == "python":
        return item.answered({"row": json.loads(json.dumps(row, default=str)), "where": where.rpartition(", ")[2]})
    answers = answers_of(row, example, where)
    if kind == "choice":
        options = [str(option) for option in row.get("options") or []]
        if not 2 <= len(options) <= len(LETTERS):
            raise UserError(f"{where}: found {len(options)} options; the grader choice needs 2 to {len(LETTERS)}.")
        return item.answered([letter_of(answer, options, where) for answer in answers], options)
    return item.answered(answers)


def program_item(row: Row, where: str) -> Item:
    """Make a programming problem in the fields of the shipped code benchmarks; guess a missing `test_style`."""
    if tests := row.get("tests"):
        kind = "functional" if row.get("func_name") else "stdin"
        tests = [{"testtype": kind, **test} if isinstance(test, dict) else test for test in tests]
        return contest_item(row | {"tests": tests}, where)
    style = "check" if re.search(r"^def check\(", str(row.get("test")), re.MULTILINE) else "asserts"
    return code_item({"test_style": style} | row, where)


def letter_of(answer: str, options: list[str], where: str) -> str:
    """Return the letter of a right answer, which may be given as the text of an option."""
    same = [letter for letter, option in zip(LETTERS, options, strict=False) if option.strip() == answer.strip()]
    letter = same[0] if len(same) == 1 else gold_letter(answer, options)
    if letter is None:
        raise UserError(
            f"{where}: the answer is {answer!r:.80}; expected a letter from A to {LETTERS[len(options) - 1]}, or the "
            "text of one of the options."
        )
    return letter


def refuse_repeats(source: str, items: Sequence[Item]) -> None:
    """Raise an error for repeated ids and for a question with two answers; warn of repeated questions."""
    ids: dict[str, int] = {}
    asked: dict[str, int] = {}
    repeats = 0
    for number, item in enumerate(items, start=1):
        if (first := ids.setdefault(item.id, number)) != number:
            raise UserError(f"{source}: id {item.id!r} is in rows {first} and {number}; ids must be unique.")
        question = json.dumps(item.messages or item.question)
        if (first := asked.setdefault(question, number)) != number:
            repeats += 1
            if isinstance(item.gold, str | list) and plain_golds(item) != plain_golds(items[first - 1]):
                raise UserError(
                    f"{source}: rows {first} and {number} ask the same question with different answers; merge "
                    "them into one row with a list of the right answers."
                )
    if repeats:
        logger.warning("%s: %d of %d rows repeat a question, which is counted each time.", source, repeats, len(items))


def plain_golds(item: Item) -> list[str]:
    return sorted(map(plain_text, item.gold if isinstance(item.gold, list) else [item.gold]))
