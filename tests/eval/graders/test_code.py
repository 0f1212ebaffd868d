"""Finding the code in an answer, putting the tests behind it, and grading it."""

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sandbox_cases
from weakdriven.errors import UserError
from weakdriven.eval.graders.answers import Graded
from weakdriven.eval.graders.code import assemble, extract_code, grade_code, preamble
from weakdriven.eval.sandbox import run_code

FULL = "def f(x):\n    return x + 1\n"
BODY = "    return x + 1\n"

CHECK = {
    "id": "check",
    "prompt": 'import math\n\ndef helper(x):\n    return math.floor(x)\n\ndef f(x):\n    """Add one."""\n',
    "entry_point": "f",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == 3\n",
    "test_style": "check",
}
ASSERTS = {
    "id": "asserts",
    "prompt": "Add one.",
    "entry_point": "f",
    "test": "assert f(1) == 2\nassert f(2) == 3",
    "test_style": "asserts",
}
UNITTEST = {
    **CHECK,
    "id": "unittest",
    "test": (
        "import unittest\nclass TestCases(unittest.TestCase):\n"
        "    def test_one(self):\n        self.assertEqual(f(1), 2)\n"
        "    def test_two(self):\n        self.assertEqual(f(2), 3)\n"
    ),
    "test_style": "unittest",
}
isolated = sandbox_cases.isolated
runs_code = pytest.mark.usefixtures("isolated")


@pytest.mark.parametrize(
    "text, code, why",
    [
        (f"Sure!\n```python\n{FULL}```\nDone.", FULL, "a fenced block"),
        (f"```Py\n{FULL}```", FULL, "a short tag in capitals"),
        (f"```\n{FULL}```", FULL, "no tag"),
        (f"~~~python\n{FULL}~~~", FULL, "tildes"),
        (f"````python\n{FULL}````", FULL, "four backticks"),
        (f"```python\n{FULL}", FULL, "a fence that is never closed"),
        (f"```python\n{FULL.rstrip()}```\nbye", FULL, "a fence that closes behind the code"),
        (f"```python\n{FULL}```\nUse it:\n```python\nprint(f(1))\n```", FULL, "the last block that defines f"),
        (f"```python\ndef f(x): pass\n```\nNo:\n```python\n{FULL}```", FULL, "the last of two that define f"),
        (f"```bash\npip install x\n```\n```python\n{FULL}```\n```text\n2\n```", FULL, "only Python counts"),
        (f"<think>```python\ndef f(x): pass\n```</think>\n```python\n{FULL}```", FULL, "behind the thinking"),
        (f"```python\ndef f(x): 0\n```</think>\n```python\n{FULL}```", FULL, "the prompt opened the thinking"),
        (f"<think>\n```python\n{FULL}```", None, "cut off while thinking"),
        (f"<answer>\n```python\n{FULL}```\n</answer>\n```python\ndef f(x): 0\n```", FULL, "inside the answer"),
        (f"<answer>\n{FULL}</answer>", "\n" + FULL, "a bare answer"),
        (f"See <answer> below.\n```python\n{FULL}```", FULL, "an answer that is never closed"),
        (BODY, BODY, "a body"),
        (BODY + "\nI hope this helps!\n", BODY + "\n", "prose behind a body is cut"),
        (BODY + "```\nI hope this helps!", BODY, "the fence that the prompt opened is closed"),
        ("return x + 1", "return x + 1", "a body whose first indent is lost"),
        (FULL, FULL, "bare code"),
        ("Here you go:\n" + FULL, FULL, "prose before bare code is cut"),
        (FULL + "\nThat is all, folks.\n", FULL + "\n", "prose behind bare code is cut"),
        ("f = lambda x: x + 1\n", "f = lambda x: x + 1\n", "an assignment defines too"),
        ("```python\nclass f: pass\n```", "class f: pass\n", "a class defines too"),
        ("```python\ndef f(x:\n```", "def f(x:\n", "broken code is still the answer"),
        ("```python\nx = 1\n```", "x = 1\n", "code that defines something else"),
        ("I return to you with no answer.", None, "prose"),
        ("```python\n```", None, "an empty block"),
        ("", None, "nothing"),
    ],
)
def test_the_code_of_an_answer_is_found(text, code, why):
    found = extract_code(text, "f")
    assert (found if found is None else found.lstrip("\n")) == (code if code is None else code.lstrip("\n")), why


def test_a_body_continues_the_prompt_and_a_function_replaces_it():
    assert CHECK["prompt"] + BODY in assemble(CHECK, BODY)
    program = assemble(CHECK, FULL)
    assert "Add one" not in program and "import math" in program and "def helper" in program and FULL in program


def test_a_preamble_keeps_imports_helpers_and_constants_only():
    prompt = '"""Doc."""\nimport os\nLIMIT = 3\n@staticmethod\ndef g():\n    return 1\n\ndef f(x):\n'
    assert " ".join(preamble(prompt, "f").split()) == "import os LIMIT = 3 @staticmethod def g(): return 1"
    assert preamble("Write a function that adds one.", "f") == ""


def test_future_imports_come_first():
    program = assemble(CHECK, "from __future__ import annotations\n" + FULL)
    assert program.startswith("from __future__ import annotations\n") and program.count("__future__") == 1
    compile(program, "program", "exec")


def test_an_unknown_style_is_an_error():
    with pytest.raises(UserError, match="'doctest'; expected check"):
        assemble({**CHECK, "test_style": "doctest"}, FULL)
    with pytest.raises(UserError, match="io is graded without a program"):
        assemble({**CHECK, "test_style": "io"}, FULL)
    with pytest.raises(UserError, match="defines no class"):
        assemble({**UNITTEST, "test": "x = 1"}, FULL)


LOOP = "```python\ndef f(x):\n    while True: pass\n```"


@runs_code
@pytest.mark.parametrize("item", [CHECK, ASSERTS, UNITTEST], ids=lambda item: item["id"])
@pytest.mark.parametrize(
    "text, correct, reason",
    [
        (f"```python\n{FULL}```", True, "tests passed"),
        ("```python\ndef f(x):\n    return 2\n```", False, "program failed"),
        ("```python\ndef g(x):\n    return x + 1\n```", False, "program failed"),
        pytest.param("```python\ndef f(x:\n```", False, "program failed: SyntaxError", marks=pytest.mark.slow),
        pytest.param("```python\ndef f(x):\n    raise SystemExit(0)\n```", False, "program ", marks=pytest.mark.slow),
        pytest.param(LOOP, False, "program timeout", marks=pytest.mark.slow),
        (f"```python\n{FULL}if __name__ == '__main__':\n    print(f(int(input())))\n```", True, "tests passed"),
    ],
)
def test_answers_are_graded_by_running_the_tests(item, text, correct, reason):
    graded = grade_code(text, item, timeout=1 if text == LOOP else 60)
    assert graded.correct is correct and graded.reason.startswith(reason), graded
    assert not graded.undecided, "a program's failure is the model's"


def test_an_answer_without_code_is_wrong():
    assert grade_code("No idea.", CHECK) == Graded(False, None, "no code found")


@runs_code
@pytest.mark.parametrize("item", [CHECK, UNITTEST], ids=lambda item: item["id"])
@pytest.mark.parametrize("text", [BODY, "return x + 1", "```python\ny = x\nreturn y + 1\n```"])
def test_bodies_are_graded_too(item, text):
    assert grade_code(text, item).correct


@runs_code
@pytest.mark.parametrize(
    "code, test, reason",
    [
        ("import unittest\ndef f(x): raise unittest.SkipTest", UNITTEST["test"], "a test failed or was skipped"),
        ("import unittest\nclass TestCases(unittest.TestCase): pass\ndef f(x): return 0", UNITTEST["test"], "failed"),
        (
            "import unittest\n" + FULL + "class Mine(unittest.TestCase):\n    def test(self): 1 / 0\n",
            UNITTEST["test"],
            "",
        ),
        (FULL, "import unittest\nclass TestCases(unittest.TestCase):\n    pass\n", "no test ran"),
    ],
)
def test_unittest_counts_the_tests_of_the_item_and_no_others(code, test, reason):
    graded = grade_code(f"```python\n{code}\n```", {**UNITTEST, "test": test})
    assert graded.correct is (reason == "") and (reason or "passed") in graded.reason


def test_a_failure_of_the_sandbox_is_no_verdict(monkeypatch):
    monkeypatch.setattr("weakdriven.eval.sandbox.run.isolation", lambda: "none")
    with pytest.raises(UserError, match="sandbox"):
        grade_code(FULL, CHECK)


@pytest.mark.slow
@runs_code
@pytest.mark.skipif(
    "WEAKDRIVEN_DATA" not in os.environ, reason="set WEAKDRIVEN_DATA to the folder that holds code/*.jsonl.gz"
)
@pytest.mark.parametrize("name, count", [("humaneval_plus", 164), ("mbpp_plus", 378), ("bigcodebench", 291)])
def test_canonical_solutions_pass_and_wrong_ones_fail(name, count):
    with gzip.open(Path(os.environ["WEAKDRIVEN_DATA"]) / "code" / f"{name}.jsonl.gz", "rt") as file:
        items = [item for item in map(json.loads, file) if item.get("stdlib_verified", True)]
    assert len(items) == count
    wrong = [f"```python\ndef {item['entry_point']}(*args, **kwargs):\n    return None\n```" for item in items]
    right = [item["canonical_solution"] for item in items]
    for texts, expected in ((right, True), (wrong, False)):
        programs = (
            assemble(item, extract_code(text, item["entry_point"]) or "")
            for item, text in zip(items, texts, strict=True)
        )
        with ThreadPoolExecutor(2) as threads:
            results = list(threads.map(lambda program: run_code(program, timeout=120, memory_mb=4096), programs))
        slowest = max(range(count), key=lambda index: results[index].seconds)
        print(f"{name}, {expected}: slowest {items[slowest]['id']} {results[slowest].seconds:.0f} s")
        odd = {items[i]["id"]: result.status for i, result in enumerate(results) if result.passed is not expected}
        assert not odd
