"""`weakdriven data build code|logic`: programs pass their tests in the sandbox; logic files become candidates."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import build_settings, write_rows
from weakdriven.build.build import build
from weakdriven.data.example import Example
from weakdriven.errors import UserError
from weakdriven.eval.graders.candidates import Checks, program_tests, unit_tests_of, verifier
from weakdriven.runs.files import read_jsonl


def am(question, program, case):
    said = f"<think>Easy.</think>\n<answer>\n```python\n{program}\n```\n</answer>"
    asked = {"role": "user", "content": question, "info": {"source": "code", "test_case": case}}
    return {"messages": [asked, {"role": "assistant", "content": said, "info": {}}]}


DOUBLE = "def double(x):\n    return 2 * x"
CASE = {"test_code": "def test_double():\n    assert double(3) == 6", "test_entry_point": "double"}
ROWS = {
    "good": am("Write a function that doubles a number.", DOUBLE, CASE),
    "tests failed": am("Write a function that gives twice its input.", DOUBLE.replace("2", "3"), CASE),
    "no tests": am("Say hello.", "print('hello')", None),
    "bad tests": am("Say goodbye.", DOUBLE, {"test_code": "def test_it(fixture):\n    assert 1"}),
    "no answer": am("Write nothing.", "", CASE),
    "bad structure": {
        "messages": [am("Write plainly.", DOUBLE, CASE)["messages"][0], {"role": "assistant", "content": DOUBLE}]
    },
    "malformed row": {"messages": [{"role": "user", "content": None}]},
    "tests failed, for ever": am("Write a loop.", "def double(x):\n    while True: pass", CASE),
    "tests failed, early exit": am("Write a way out.", "import os\nos._exit(0)", CASE),
    "bad tests, nothing asserted": am("Write in vain.", DOUBLE, {"test_code": "double(1)"}),
    "duplicate exact": am("WRITE A FUNCTION, that doubles a number!", DOUBLE, CASE),
    "overlap near with humaneval_plus": am("Reverse the words of a poem, line by line.", DOUBLE, CASE),
}
"""A row of AM-DeepSeek-R1-Distilled for every reason to drop one."""
DROPPED = {"tests failed": 3, "no tests": 1, "bad tests": 2, "no answer": 1, "bad structure": 1, "malformed row": 2}
DROPPED |= {"duplicate exact": 1, "overlap near with humaneval_plus": 1}


def counts(funnel):
    return {reason: one["rows"] for reason, one in funnel["dropped"].items()}


def test_programs_are_kept_if_they_pass_their_tests(tmp_path):
    path = write_rows(tmp_path / "raw.jsonl", ROWS.values())
    with open(path, "ab") as file:
        file.write(b'{"messages": "\xff\xfe"}\n')
    (tmp_path / "held").mkdir()
    held = {"entry_point": "f", "test": "def check(candidate):\n    assert candidate(1)", "test_style": "check"}
    asked = ["Reverse the words of a poem, line by line.", *(f"Find the number {n} in a list." for n in range(163))]
    items = [{"id": f"h{n}", "prompt": f'def f(x):\n    """{text}"""\n', **held} for n, text in enumerate(asked)]
    write_rows(tmp_path / "held" / "humaneval_plus.jsonl", items)
    settings = {"benchmarks": ["humaneval_plus"], "data_dir": str(tmp_path / "held"), "timeout": 3}
    funnel = build(build_settings("code", path, **settings), tmp_path / "out")
    assert (funnel["in"], funnel["kept"], counts(funnel)) == (len(ROWS) + 1, 1, DROPPED)
    [row] = read_jsonl(tmp_path / "out" / "train.jsonl")
    assert row["domain"] == "code" and row["meta"]["test_case"] == CASE


def test_contests_and_asserts_are_run_too(tmp_path):
    contest = {
        "question": "Print the input twice.",
        "tests": [{"input": "a\n", "output": "aa\n", "testtype": "stdin"}],
        "solution": "```python\nprint(input() * 2)\n```",
    }
    asserts = {
        "prompt": "Write a function that halves.",
        "entry_point": "halve",
        "test": "assert halve(4) == 2",
        "solution": "```python\ndef halve(x):\n    return x // 2\n```",
    }
    path = write_rows(tmp_path / "raw.jsonl", [contest, asserts])
    assert build(build_settings("code", path, style="plain"), tmp_path / "out")["kept"] == 2


CLASS = "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        "


@pytest.mark.parametrize(
    "test, entry_point, style, ending",
    [
        ("assert f(1) == 2", "f", "asserts", "assert f(1) == 2"),
        ("def check(candidate):\n    assert candidate(1) == 2", "f", "check", "== 2"),
        (CLASS + "assert f(1) == 2", "f", "unittest", "== 2"),
        (CLASS + "self.assertEqual(f(1), 2)", "f", "unittest", "2)"),
        (CLASS + "np.testing.assert_allclose(f(1), 2)", "f", "unittest", "2)"),
        (CLASS + "with self.assertRaises(ValueError): f(1)", "f", "unittest", "f(1)"),
        (CLASS + "with pytest.raises(ValueError): f(1)", "f", "unittest", "f(1)"),
        (CLASS + "f(1) == 2 or self.fail('wrong')", "f", "unittest", "wrong')"),
        ("assert True\nassert f(1) == 2", "", "asserts", "== 2"),
        ("if True:\n    assert f(1) == 2", "f", "asserts", "== 2"),
        ("if False:\n    pass\nelse:\n    assert f(1) == 2", "f", "asserts", "== 2"),
        ("try:\n    f(1)\n    assert False\nexcept ValueError: ...", "f", "asserts", "..."),
        ("def test_a():\n    assert f(1)\ndef test_b():\n    assert f(2)", "f", "asserts", "test_a()\ntest_b()\n"),
        ("def verify():\n    assert f(1)", "verify", "asserts", "verify()\n"),
        ("def same(a, b):\n    assert a == b\nsame(f(1), 2)", "f", "asserts", "same(f(1), 2)"),
    ],
)
def test_the_form_of_a_test_is_found(test, entry_point, style, ending):
    item = program_tests("7", test, entry_point)
    assert item["test_style"] == style and item["test"].endswith(ending) and item["entry_point"] == "f"


@pytest.mark.parametrize(
    "test, message",
    [
        ("assert (", "cannot be read"),
        ("f(1)", "asserts nothing"),
        ("def helper():\n    assert f(1)", "asserts nothing"),
        ("def check(candidate):\n    candidate(1)", "asserts nothing"),
        ("def test_f(x):\n    assert f(x)", "need pytest"),
        ("assert True", "asserts nothing"),
        ("f(1)\nassert 1 == 1, 'never'", "asserts nothing"),
        ("assert (f(1) == 2, 'always')", "asserts nothing"),
        ("if 0:\n    assert f(1) == 2", "asserts nothing"),
        ("def same(a, b):\n    assert a == b\nif False:\n    same(f(1), 2)", "asserts nothing"),
        ("def run():\n    assert f(1)\nif __name__ == '__main__':\n    run()", "asserts nothing"),
        ("def check(g):\n    if False:\n        assert g(1) == 1", "asserts nothing"),
        ("def check(g):\n    while False:\n        assert g(1) == 1", "asserts nothing"),
        ("def check(g):\n    assert True", "asserts nothing"),
        (CLASS + "f(1)", "asserts nothing"),
        (CLASS + "assert True", "asserts nothing"),
        (CLASS + "self.assertTrue(True)", "asserts nothing"),
        (CLASS + "if False: self.assertEqual(f(1), 2)", "asserts nothing"),
        ("assert f(1) == " + "+".join(["1"] * 3000), "nested too deeply to read"),
        ("assert f(1) == " + "-" * 20_000 + "1", "nested too deeply to read"),
    ],
)
def test_a_test_that_would_accept_everything_raises_an_error(test, message):
    with pytest.raises(UserError, match=message) as error:
        program_tests("7", test, "f")
    assert str(error.value).count("the test") == 1


def test_what_is_nested_too_deeply_raises_an_error_wherever_that_shows():
    with pytest.raises(UserError, match="nested too deeply to read"):  # it is parsed, and cannot be written again
        program_tests("7", "assert f(1) == " + "+".join(["1"] * 900), "")
    example = Example("7", [{"role": "user", "content": "Double."}], "", meta={"test_case": "[" * 100_000})
    with pytest.raises(UserError, match="nested too deeply to read"):
        unit_tests_of({}, example)


@pytest.mark.parametrize("workers, at_once", [(None, 3), (7, 7)])
def test_one_program_runs_on_each_processor_by_default(monkeypatch, workers, at_once):
    asked = []

    class Threads(ThreadPoolExecutor):
        def __init__(self, max_workers):
            asked.append(max_workers)
            super().__init__(max_workers)

    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 2, 5})
    monkeypatch.setattr("weakdriven.eval.graders.candidates.ThreadPoolExecutor", Threads)
    assert verifier(Checks(workers=workers))([]) == [] and asked == [at_once]


def test_a_list_of_asserts_names_the_function():
    example = Example("7", [{"role": "user", "content": "Double."}], "")
    item = unit_tests_of({"test_list": ["assert double(1) == 2", "assert double(2) == 4"]}, example)
    assert (item["entry_point"], item["test_style"]) == ("double", "asserts")


def test_logic_files_are_merged_without_what_is_held_out(tmp_path):
    words = ["crow", "fox", "hen", "owl", "pig", "rat", "sow", "yak", "ape", "bat", "cat", "dog", "eel"]
    logiqa = [
        {"id": n, "answer": n % 4, "text": " ".join(f"{word}{k}" for k in "abcdefghij"), "type": {}}
        | {"question": "What follows?", "options": [f"{word} {k}" for k in range(4)]}
        for n, word in enumerate(words)
    ]
    reclor = [
        {"id_string": f"train_{n}", "context": " ".join(f"{k}{word}" for k in "abcdefghij"), "question": "Which one?"}
        | {"answers": [f"{word} {k}" for k in range(4)], "label": n % 4}
        for n, word in enumerate(words[:3])
    ]
    reclor[2].pop("label")
    reclor += [reclor[1] | {"label": 7}, reclor[1] | {"answers": "one"}, reclor[1] | {"context": None}, {"label": 1}]
    bad = [
        {"answer": 4},
        {"answer": None},
        {"options": ["one"]},
        {"options": []},
        {"text": 1},
        {"question": "", "text": " "},
    ]
    rows = [*logiqa, logiqa[5], *(logiqa[6] | changed for changed in bad), {"text": 1}]
    raw, other = write_rows(tmp_path / "train.txt", rows), tmp_path / "train.json"
    with open(raw, "a") as file:
        file.write('{"id": 1, "text": \n')
    other.write_text(json.dumps(reclor))
    (tmp_path / "held").mkdir()
    held = [reclor[0] | {"id_string": f"val_{n}", "context": f"Unlike all else {n}."} for n in range(499)]
    (tmp_path / "held" / "reclor.json").write_text(json.dumps([reclor[0] | {"id_string": "val_x"}, *held]))
    asked = build_settings("logic", raw, str(other), benchmarks=["reclor"], data_dir=str(tmp_path / "held"))
    funnel = build(asked, tmp_path / "out")
    expected = {"overlap exact with reclor": 1, "duplicate exact": 1, "no gold": 2, "bad gold": 2, "malformed row": 9}
    assert (funnel["in"], funnel["kept"], counts(funnel)) == (29, 14, expected)
    rows = list(read_jsonl(tmp_path / "out" / "candidates.jsonl"))
    assert rows[1]["id"] == "logiqa2-train-00001" and rows[1]["gold"] == "B" and rows[-1]["id"] == "reclor-train_1"
    assert rows[0]["prompt"][0]["content"].startswith("crowa crowb") and rows[0]["completion"] == ""
