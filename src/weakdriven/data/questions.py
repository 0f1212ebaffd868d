"""The user message of a problem, worded alike in training data and evaluation.

The system prompt (`prompts.py`) says how an answer must end.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

LETTERS = "ABCDEFGHIJ"
ASK_LETTER = "Answer with the letter of one option."
ASK_PROGRAM = "Complete this Python program and give all of it."
ASK_TEST = "The code must pass this test:"
ASK_STARTER = "Use this starter code for the solution."
ASK_STDIN = "Read the input from stdin and write the answer to stdout. Do not run the program on the sample inputs."


def lettered(options: Sequence[str]) -> str:
    """List options on separate lines: `(A) red`."""
    return "\n".join(f"({letter}) {option.strip()}" for letter, option in zip(LETTERS, options, strict=False))


def math_question(question: str, options: Sequence[str] | None = None) -> str:
    """Return the question; if there are options, add them with letters and ask for a letter."""
    if not options:
        return question.strip()
    return f"{question.strip()}\n\n{lettered(options)}\n\n{ASK_LETTER}"


def logic_question(context: str, question: str, options: Sequence[str]) -> str:
    """Join context, question and lettered options with empty lines between them."""
    return "\n\n".join(filter(None, [context.strip(), question.strip(), lettered(options)]))


def code_question(prompt: str, entry_point: str, test: str = "") -> str:
    """Ask for a function.

    Args:
        prompt: Code that ends where the function's body starts (HumanEval), a docstring with an assert (MBPP+), or
            plain English (MBPP).
        test: If the prompt has no assert, the first assert in here shows how the function is called.
    """
    if re.search(rf"^\s*(async )?def {re.escape(entry_point)}\b", prompt, re.MULTILINE):
        return f"{ASK_PROGRAM}\n\n```python\n{prompt.strip()}\n```"
    text, example = split_docstring(prompt)
    example = example or first_assert(test)
    if not example:
        return f"{text}\n\nName the function `{entry_point}`."
    return f"{text}\n\n{ASK_TEST}\n\n```python\n{example}\n```"


def contest_question(statement: str, starter_code: str = "") -> str:
    """Word a contest problem as LiveCodeBench's authors do: with starter code, or for a program that reads stdin."""
    if starter_code.strip():
        return f"{statement.strip()}\n\n{ASK_STARTER}\n\n```python\n{starter_code.strip()}\n```"
    return f"{statement.strip()}\n\n{ASK_STDIN}"


def user_message(row: Mapping[str, Any], domain: str) -> str:
    """Write the user message of a row in our fields, for benchmarks and training rows alike.

    Args:
        row: `prompt` with `entry_point`, perhaps `test` or `instruct_prompt`; or `question`, perhaps with `context`,
            `options`, and for code `starter_code` and `tests`.
    """
    if "prompt" in row and "entry_point" in row:
        if row.get("instruct_prompt"):
            return str(row["instruct_prompt"]).strip()
        return code_question(str(row["prompt"]), str(row["entry_point"]), str(row.get("test") or ""))
    question, context = str(row["question"]), str(row.get("context") or "").strip()
    if domain == "code" and ("tests" in row or "starter_code" in row):
        return contest_question(question, str(row.get("starter_code") or ""))
    options = [str(option) for option in row.get("options") or []]
    if domain == "logic":
        return logic_question(context, question, options)
    asked = math_question(question, options)
    return f"{context}\n\n{asked}" if context else asked


def bare(asked: str) -> str:
    """Remove what we add to a problem (requests, code fences) and lettered options.

    Overlap is searched in this form (`overlap/`), because our own words are no overlap.
    """
    return split_options(asked)[0]


def split_options(asked: str) -> tuple[str, list[str]]:
    """Split a problem into its bare text and its options.

    Lines that start with `A) `, `A. ` or `A: ` count as options only if A and B follow each other.

    >>> split_options("What is 2+2?\\nA)3\\nB)4"), split_options("Tom met\\nA. Smith.")
    (('What is 2+2?', ['3', '4']), ('Tom met\\nA. Smith.', []))
    """
    if not asked.isascii():
        asked = _INVISIBLE.sub("", asked)
    lines = [line for line in asked.splitlines() if not _ADDED.fullmatch(line)]
    lettered_lines = [(number, found) for number, line in enumerate(lines) if (found := _LETTERED.match(line))]
    options = {number: found for number, found in lettered_lines if _OPTION.match(lines[number])}
    expected = ""
    for (before, first), (number, found) in pairwise(lettered_lines):
        expected = "B" if first[1] == "A" else expected
        if found[1] == expected:
            options |= {before: first, number: found}
            expected = LETTERS[LETTERS.index(expected) + 1 :][:1]
        else:
            expected = ""
    left = "\n".join(line for number, line in enumerate(lines) if number not in options).strip()
    return left, [lines[number][options[number].end() :].strip() for number in sorted(options)]


_ASKED = "|".join(map(re.escape, (ASK_LETTER, ASK_PROGRAM, ASK_TEST, ASK_STARTER, ASK_STDIN)))
_ADDED = re.compile(rf"{_ASKED}|```(python)?|Name the function `\w*`\.")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")
_OPTION = re.compile(rf"\([{LETTERS}]\) ")
_LETTERED = re.compile(rf"\s*\(?([{LETTERS}])(?:\)|[.:]\s)")


def split_docstring(prompt: str) -> tuple[str, str]:
    '''Split a docstring into its text and the asserts below it.

    >>> split_docstring('"""\\nWrite a function that doubles.\\nassert double(2) == 4\\n"""\\n')
    ('Write a function that doubles.', 'assert double(2) == 4')
    '''
    text = prompt.strip().removeprefix('"""').removesuffix('"""').strip()
    words, _, example = re.sub(r"^assert\b", "\0assert", text, count=1, flags=re.MULTILINE).partition("\0")
    return words.strip(), example.strip()


def first_assert(test: str) -> str:
    """
    >>> first_assert("import math\\nassert f(1) == (2,\\n  3)\\nassert f(2) == 3")
    'assert f(1) == (2,\\n  3)'
    """
    try:
        statements = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    asserts = [statement for statement in statements if isinstance(statement, ast.Assert)]
    return (ast.get_source_segment(test, asserts[0]) or "") if asserts else ""
