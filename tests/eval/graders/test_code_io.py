"""Tests of input and output (LiveCodeBench): how answers are run and compared, and what they cannot forge."""

import json

import pytest

import sandbox_cases
from weakdriven.errors import UserError
from weakdriven.eval.graders.code import extract_code, grade_code, same_output, same_value
from weakdriven.eval.sandbox import run as sandbox

method, isolated = sandbox_cases.method, sandbox_cases.isolated
runs_code = pytest.mark.usefixtures("isolated")

SUM = {
    "id": "sum",
    "test_style": "io",
    "testtype": "stdin",
    "entry_point": "",
    "starter_code": "",
    "tests": [{"input": f"{a} {b}\n", "output": f"{a + b}\n"} for a, b in ((1, 2), (3, 4), (10, -4))],
}
PAIR = {
    "id": "pair",
    "test_style": "io",
    "testtype": "functional",
    "entry_point": "twoSum",
    "starter_code": "class Solution:\n    def twoSum(self, numbers: List[int], target: int) -> List[int]:\n        ",
    "tests": [
        {"input": "[2, 7, 11]\n9", "output": "[0, 1]"},
        {"input": "[3, 2, 4]\n6", "output": "[1, 2]"},
    ],
}
LOOP = (
    "for i, x in enumerate(numbers):\n"
    "            for j in range(i + 1, len(numbers)):\n"
    "                if x + numbers[j] == target:\n"
    "                    return {}\n"
)
READ = "a, b = map(int, input().split())\n"


def solution(value: str) -> str:
    return PAIR["starter_code"] + LOOP.format(value)


def graded(code: str, item=SUM, **limits):
    return grade_code(f"```python\n{code}\n```", item, **{"test_timeout": 30, **limits})


# Programs that read standard input


@runs_code
@pytest.mark.parametrize(
    "code",
    [
        READ + "print(a + b)",
        "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
        "print(sum(map(int, open(0).read().split())))",
        "import os\nos.write(1, str(sum(map(int, os.read(0, 99).split()))).encode())",
        "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
        "import sys\n" + READ + "print(a + b)\nsys.exit(1)",
        "import os, sys\n" + READ + "print(a + b)\nsys.stdout.flush()\nos._exit(0)",
        "from threading import *\ndef main():\n    print(sum(map(int, input().split())))\nThread(target=main).start()",
        "import atexit, io, os, sys\nsys.stdout = io.StringIO()\n"
        "atexit.register(lambda: os.write(1, sys.stdout.getvalue().encode()))\n" + READ + "print(a + b)",
        "def f(n): return n and f(n - 1)\nf(15000)\n" + READ + "print(a + b)",
        "seen = globals().setdefault('seen', [])\nseen.append(1)\nassert len(seen) == 1\n" + READ + "print(a + b)",
        "from __future__ import annotations\nimport numpy as np\nprint(np.array(input().split(), dtype=int).sum())",
        READ + "print(f'{a + b}.000')",
    ],
)
def test_programs_that_read_and_print_pass(code):
    assert graded(code).reason == "tests passed"


@runs_code
@pytest.mark.parametrize(
    "code, reason",
    [
        ("print(3)", "program failed: test 2 of 3: wrong answer '3', expected '7'"),
        (READ + "print(a + b)\nprint(a)", "program failed: test 1 of 3: wrong answer"),
        ("", "no code found"),
        ("print(", "program failed: SyntaxError"),
        (READ + "print(a + b)\n1 / 0", "program failed: test 1 of 3: failed: ZeroDivisionError: division by zero"),
        (READ + "input()", "program failed: test 1 of 3: failed: EOFError"),
        ("def main():\n    print(sum(map(int, input().split())))", "program failed: test 1 of 3: wrong answer ''"),
    ],
)
def test_wrong_programs_fail_and_the_reason_says_where(code, reason):
    result = graded(code)
    assert not result.correct and result.reason.startswith(reason), result.reason


@runs_code
def test_each_test_has_a_time_limit_and_the_first_that_breaks_it_ends_the_rest():
    slow = {**SUM, "tests": SUM["tests"] * 10}
    result = graded(READ + "import time\nif b == 4: time.sleep(99)\nprint(a + b)", slow, test_timeout=5)
    assert result.reason == "program failed: test 2 of 30: timeout"
    stubborn = "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True:\n    try: time.sleep(9)\n"
    result = graded("import time\n" + stubborn + "    except BaseException: pass", test_timeout=0.5)
    assert result.reason == "program failed: test 1 of 3: timeout"


@runs_code
def test_large_inputs_and_outputs_go_through():
    numbers = list(range(200_000))
    text = "\n".join(map(str, numbers))
    item = {**SUM, "tests": [{"input": text, "output": text}] * 3}
    assert graded("import sys\nsys.stdout.write(sys.stdin.read())", item).correct
    assert not graded("import sys\nsys.stdout.write(sys.stdin.read()[:-1])", item).correct


def test_unsafe_works_too_and_cleans_up(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserError, match="sandbox"):
        graded(READ + "print(a + b)")
    assert graded(READ + "print(a + b)", unsafe=True).correct
    assert graded("while True: pass", unsafe=True, test_timeout=0.5).reason.endswith("timeout")
    assert list(tmp_path.iterdir()) == []


# What an answer cannot do


@runs_code
def test_an_answer_can_neither_write_its_own_report_nor_leave_it_out():
    report = "'" + '{"ending": "passed", "output": "3"}' + "\\n'"
    write = f"import os\nwith open(f'/proc/{{os.getppid()}}/fd/1', 'w') as report:\n    report.write({report} * 3)"
    for code in (write, "import os; os._exit(0)"):
        result = graded(code)
        assert not result.correct and result.reason.startswith("program "), result.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal; os.kill(-1, signal.SIGKILL)",
        "import os\nos.write(3, b'?')",
        "import decimal, json\njson.loads = lambda *a: 0\nstr.__eq__ = lambda *a: True",
        "class Always(str):\n    def __eq__(self, other): return True\nprint(Always('?'))",
        "import sys\nfor frame in sys._current_frames().values():\n    print(frame.f_back.f_locals.get('expected'))",
        "import os\nopen(f'/proc/{os.getppid()}/fd/1', 'w').write('[' * 10**5 + '\\n')",
        "while True: print('x' * 1000)",
        "import sys\nwhile True: print('x' * 1000, file=sys.stderr)",
        pytest.param(
            "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
            marks=pytest.mark.xdist_group("alone"),
        ),
        "import glob, sys\nfor path in glob.glob('/tmp/**', recursive=True) + ['/proc/self/environ']:\n"
        "    try: print(open(path).read())\n    except OSError: pass",
    ],
)
def test_a_hostile_answer_does_not_pass(code, method, monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: method)
    result = graded(code, test_timeout=1)
    assert not result.correct and result.reason.startswith("program "), result.reason


@pytest.mark.slow
def test_what_is_expected_never_enters_the_sandbox(method, monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: method)
    secret = {**SUM, "tests": [{"input": "", "output": "4815162342"}]}
    search = (
        "import os, re, sys\n"
        "looked = 0\n"
        "for pid in ('self', os.getppid()):\n"
        "    with open(f'/proc/{pid}/maps') as maps, open(f'/proc/{pid}/mem', 'rb') as memory:\n"
        "        for line in maps:\n"
        "            start, end = (int(part, 16) for part in line.split()[0].split('-'))\n"
        "            try: found = memory.seek(start) and memory.read(end - start)\n"
        "            except (OSError, OverflowError, ValueError): continue\n"
        "            looked += len(found or b'')\n"
        "            for one, two in re.findall(rb'(48151)(62342)', found or b''): print(int(one + two)); sys.exit()\n"
        "print('nothing in', looked // 2**20 > 4)\n"
    )
    result = graded(search, secret, test_timeout=60)
    assert result.reason == "program failed: test 1 of 1: wrong answer 'nothing in True', expected '4815162342'"


# Functions


@runs_code
@pytest.mark.parametrize(
    "code, why",
    [
        (solution("[i, j]"), "a method"),
        (solution("(i, j)"), "a tuple for a list"),
        (solution("np.array([i, j])").replace("class", "import numpy as np\nclass"), "an array"),
        (solution("print('debug') or [i, j]"), "what it prints does not count"),
        (solution("[i, j]").replace("class Solution:\n    def", "def").replace("(self, ", "("), "a function"),
        (solution("[i, j]") + "if __name__ == '__main__':\n    1 / 0", "the demonstration is not run"),
    ],
)
def test_functions_are_called_with_one_argument_a_line(code, why):
    assert graded(code, PAIR).reason == "tests passed", why


@runs_code
@pytest.mark.parametrize(
    "code, reason",
    [
        (solution("[j, i]"), "test 1 of 2: wrong answer '[1, 0]', expected '[0, 1]'"),
        (solution("{i, j}"), "TypeError: the answer returned a set, which is not a JSON value"),
        (solution("exit()"), "test 1 of 2: failed: SystemExit"),
        ("class Solution:\n    def other(self): pass", "NameError: the answer does not define twoSum"),
        (
            "class Any(list):\n    def __eq__(self, other): return True\ndef twoSum(*_): return Any()",
            "wrong answer '[]'",
        ),
        ("import os\nos._exit(0)\ndef twoSum(*_): pass", "test 1 of 2: wrong answer ''"),
        ("import json\njson.dumps = lambda *a, **k: '[0, 1]'\ndef twoSum(*_): pass", "test 2 of 2: wrong answer"),
    ],
)
def test_functions_that_return_something_else_fail(code, reason):
    result = graded(code, PAIR)
    assert not result.correct and reason in result.reason, result.reason


@runs_code
def test_a_body_continues_the_starter_code():
    assert grade_code("        " + LOOP.format("[i, j]"), PAIR).correct


# The comparison


@pytest.mark.parametrize(
    "got, want, same",
    [
        ("1 2  \r\n 3\n\n", "1 2\n3", True),
        ("1.50", "1.5", True),
        ("1e3 2", "1000 2.0", True),
        ("0.1", "0.10000000001", False),
        ("50000000000000000", "50000000000000001", False),
        ("a  b", "a b", False),
        ("yes", "YES", False),
        ("1\n2", "1 2", False),
        ("1\n\n2", "1\n2", False),
        ("nan", "nan", True),
        ("sNaN 1", "sNaN  1", False),
        ("", "", True),
        ("", "0", False),
        ("1e999999999", "1", False),
        ("1" * 10**5 + ".0", "1" * 10**5, True),
    ],
)
def test_outputs_are_compared_line_by_line_as_text_or_numbers(got, want, same):
    assert same_output(got, want) is same


@pytest.mark.parametrize(
    "got, want, same",
    [
        ("[1, [2, 3]]", [1, [2, 3]], True),
        ("2", 2.0, True),
        ("1", True, True),
        ("0.30000000000000004", 0.3, False),
        ('"a"', "a", True),
        ("null", None, True),
        ("", None, False),
        ("[" * 10**5, [], False),
        ("9" * 10**5, 9, False),
        ("NaN", float("nan"), False),
    ],
)
def test_values_are_compared_as_json(got, want, same):
    assert same_value(got, want) is same


# Finding the program


PROGRAM = READ + "print(a + b)\n"


@pytest.mark.parametrize(
    "text, code, why",
    [
        (f"```python\n{PROGRAM}```", PROGRAM, "a block"),
        (f"```python\nprint(0)\n```\nBetter:\n```python\n{PROGRAM}```\nPrints:\n```\n3\n```", PROGRAM, "the last one"),
        (f"```\n{PROGRAM}```\nPrints:\n```\n3\n```", PROGRAM, "an output is no program"),
        (PROGRAM, PROGRAM, "a bare program"),
        (f"{PROGRAM}```\nIt adds.", PROGRAM, "the prompt had opened the fence"),
        (f"<think>```python\nprint(0)\n```</think>```python\n{PROGRAM}```", PROGRAM, "behind the thinking"),
        ("```python\nprint(\n```", "print(\n", "broken code is still the answer"),
        ("I do not know.", None, "prose"),
        ("Sorry", None, "prose that compiles"),
        ("", None, "nothing"),
    ],
)
def test_the_program_of_an_answer_is_found(text, code, why):
    assert extract_code(text, "") == code, why


def test_items_that_cannot_be_graded_are_errors():
    answer = f"```python\n{PROGRAM}```"
    with pytest.raises(UserError, match=r"sum: 0 tests"):
        grade_code(answer, {**SUM, "tests": []})
    with pytest.raises(UserError, match=r"'file'; expected stdin or functional"):
        grade_code(answer, {**SUM, "testtype": "file"})
    with pytest.raises(UserError, match=r"pair: a functional test has text that is not JSON"):
        grade_code(answer, {**PAIR, "tests": [{"input": "x", "output": json.dumps(1)}]})
