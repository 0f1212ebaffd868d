"""Rows in the layouts their authors publish -> our fields. All rows here are made up."""

import base64
import json
import os
import pickle
import zlib

import pytest

from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS, as_item
from weakdriven.eval.graders.grading import grade
from weakdriven.eval.hub_rows import MARKS, Hub, called_function, our_fields, read_hub, unpack_tests


def packed(tests) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


HUMANEVAL_PLUS = {
    "task_id": "HumanEval/900",
    "prompt": 'def twice(x):\n    """Twice x."""\n',
    "entry_point": "twice",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}
MBPP_PLUS = {
    "task_id": 900,
    "code": "def helper(x):\n    return x\ndef shared(a, b):\n    return tuple(set(a) & set(b))",
    "prompt": "Write a function to find what two tuples share.",
    "test_list": ["assert set(shared((1, 2), (2, 3))) == set((2,))", "assert shared((1,), (2,)) == ()"],
    "test": "inputs = [[(1, 2), (2, 3)]]\nfor inp in inputs:\n    assert shared(*inp) == (2,)\n",
}
BIGCODEBENCH = {
    "task_id": "BigCodeBench/9000",
    "complete_prompt": 'import json\ndef task_func(x):\n    """x as JSON."""\n',
    "instruct_prompt": "Write x as JSON.\nYou should write self-contained code starting with:\n```\nimport json\n```",
    "canonical_solution": "    return json.dumps(x)",
    "test": "import unittest\nclass TestCases(unittest.TestCase):\n"
    "    def test_one(self):\n        self.assertEqual(task_func([1]), '[1]')",
    "entry_point": "task_func",
    "libs": "['json']",
}
STDIN = {
    "question_content": "Print twice the number.",
    "question_id": "abc900_a",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
    "private_test_cases": packed([{"input": "5\n", "output": "10\n", "testtype": "stdin"}]),
    "metadata": "{}",
}
FUNCTIONAL = STDIN | {
    "question_id": "9000",
    "starter_code": "class Solution:\n    def twice(self, x: int) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "2", "output": "4", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "5", "output": "10", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "twice"}),
}
CASES = {
    "aime2025": [{"id": "7", "problem": "What is 1+1?", "answer": "2"}],
    "amc23": [
        {"id": "3", "question": "What is 1+1?", "answer": "2.0", "url": "u"},
        {"id": 3, "problem": "What is 1+1?", "answer": 2.0, "url": "u"},
    ],
    "gsm8k": [{"question": "What is 1+1?", "answer": "One and one <<1+1=2>>2.\n#### 2"}],
    "math500": [{"problem": "What is 1+1?", "answer": "2", "level": 1, "unique_id": "test/prealgebra/9.json"}],
    "mawps": [{"id": 5, "original_text": "What is 1+1?", "segmented_text": "?", "equation": "x=1+1", "ans": 2.0}],
    "svamp": [{"ID": "chal-900", "Body": "There is 1.", "Question": "One more?", "Answer": "2.0", "Type": "Addition"}],
    "aqua": [{"question": "What is 1+1?", "options": ["A)1", "B)2", "C)3", "D)4", "E)5"], "correct": "B"}],
    "logiqa2": [
        {"id": 12, "answer": 1, "text": "One.", "question": "Which?", "options": ["a", "b", "c", "d"], "type": {}}
    ],
    "reclor": [
        {"id_string": "val_0", "context": "One.", "question": "Which?", "answers": ["a", "b", "c", "d"], "label": 1}
    ],
    "humaneval_plus": [HUMANEVAL_PLUS],
    "mbpp_plus": [MBPP_PLUS],
    "bigcodebench": [BIGCODEBENCH],
    "livecodebench": [STDIN, FUNCTIONAL],
}
ROWS = [pytest.param(name, row, id=f"{name}-{i}") for name, rows in CASES.items() for i, row in enumerate(rows)]


def item(name, row, number=1):
    return as_item(name, our_fields(name, row, number), "here")


@pytest.mark.parametrize("name, row", ROWS)
def test_a_published_row_becomes_an_item_and_a_row_in_our_fields_stays_as_it_is(name, row):
    ours, made = our_fields(name, row, 1), item(name, row)
    assert our_fields(name, ours, 2) == ours
    assert made.id and made.question
    if BENCHMARKS[name].kind == "math":
        assert made.gold == "2" and made.options is None
    elif BENCHMARKS[name].kind == "choice":
        assert made.gold == "B" and len(made.options) == BENCHMARKS[name].options


def test_every_benchmark_but_the_embedded_one_has_a_published_layout():
    assert {*MARKS, "gsm8k"} == set(BENCHMARKS) - {"arithmetic"} == set(CASES)


def test_ids_are_unique_and_name_their_source():
    assert item("gsm8k", CASES["gsm8k"][0], 12).id == "gsm8k-test-0011"
    assert item("math500", CASES["math500"][0]).id == "math500-prealgebra/9"
    assert item("logiqa2", CASES["logiqa2"][0], 3).id == "logiqa2-test-0002-12"
    assert item("mbpp_plus", MBPP_PLUS).id == "Mbpp/900"


def test_a_gsm8k_answer_is_the_text_after_the_mark_without_commas():
    assert our_fields("gsm8k", {"question": "q", "answer": "#### 3\n#### 1,200"}, 1)["answer"] == "1200"
    with pytest.raises(UserError, match="'answer' is missing"):
        item("gsm8k", {"question": "q", "answer": "no mark, 12"})


def test_svamp_body_and_question_are_two_sentences():
    row = {"ID": "chal-1", "Body": "There is 1", "Question": "One more?", "Answer": 2}
    assert item("svamp", row).question == "There is 1. One more?"


def test_aqua_options_lose_their_letters_once():
    row = CASES["aqua"][0] | {"options": ["A)A) 1", "B) 2", "C)x) y", "D)4", "E)None"]}
    assert our_fields("aqua", row, 1)["options"] == ["A) 1", "2", "x) y", "4", "None"]


@pytest.mark.parametrize("name", ["logiqa2", "reclor"])
def test_a_logic_prompt_has_context_question_and_options(name):
    assert item(name, CASES[name][0]).question == "One.\n\nWhich?\n\n(A) a\n(B) b\n(C) c\n(D) d"


@pytest.mark.parametrize("label", [4, -1, True, "E"])
def test_a_label_that_is_no_option_is_an_error(label):
    with pytest.raises(UserError, match="answer"):
        item("reclor", CASES["reclor"][0] | {"label": label})


@pytest.mark.parametrize(
    "name, row, right, wrong",
    [
        ("humaneval_plus", HUMANEVAL_PLUS, "def twice(x):\n    return 2 * x", "def twice(x):\n    return x"),
        ("mbpp_plus", MBPP_PLUS, MBPP_PLUS["code"], "def shared(a, b):\n    return a"),
        ("bigcodebench", BIGCODEBENCH, BIGCODEBENCH["canonical_solution"], "def task_func(x): 0"),
    ],
)
def test_a_published_code_row_can_be_graded(name, row, right, wrong):
    gold = item(name, row).gold
    limits = {"timeout": 30, "memory_mb": 2048, "unsafe": True}
    assert grade("code", f"```python\n{right}\n```", gold, **limits).correct
    assert not grade("code", f"```python\n{wrong}\n```", gold, **limits).correct


def test_bigcodebench_gives_its_instruction_and_names_its_libraries():
    made = item("bigcodebench", BIGCODEBENCH)
    assert made.question == BIGCODEBENCH["instruct_prompt"]
    assert made.gold["libs"] == ["json"] and made.gold["prompt"] == BIGCODEBENCH["complete_prompt"]


def test_an_mbpp_plus_prompt_names_the_function_that_its_first_assert_calls():
    made = item("mbpp_plus", MBPP_PLUS)
    assert made.gold["entry_point"] == "shared" and made.gold["test_style"] == "asserts"
    assert MBPP_PLUS["test_list"][0] in made.question and MBPP_PLUS["test_list"][1] not in made.question


def test_an_assert_without_code_names_the_first_function_that_is_not_built_in():
    assert called_function("assert sorted(pick([1])) == [1]", "") == "pick"
    assert called_function("assert (", "") == called_function("assert 1 == 1", "") == ""


def test_livecodebench_programs_read_stdin():
    gold = item("livecodebench", STDIN).gold
    assert gold["tests"] == [{"input": "2\n", "output": "4\n"}, {"input": "5\n", "output": "10\n"}]
    assert (gold["test_style"], gold["testtype"], gold["entry_point"]) == ("io", "stdin", "")
    assert item("livecodebench", STDIN).level == "easy"


def test_livecodebench_functions_have_a_name_and_starter_code():
    made = item("livecodebench", FUNCTIONAL)
    assert (made.gold["testtype"], made.gold["entry_point"]) == ("functional", "twice")
    assert made.gold["starter_code"] == FUNCTIONAL["starter_code"] and "class Solution" in made.question


class Evil:
    def __reduce__(self):
        return os.system, ("echo never > never",)


@pytest.mark.parametrize("content", [Evil(), 5])
def test_packed_tests_may_hold_text_only(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpack_tests(base64.b64encode(zlib.compress(pickle.dumps(content))).decode())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["AAAA", "", packed([])[:-8]])
def test_broken_packed_tests_are_an_error(text):
    with pytest.raises(ValueError):
        unpack_tests(text)


def test_a_split_or_one_file_is_read_from_the_hub(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: asked.append((a, k)) or [{"a": 1}])
    assert list(read_hub(Hub("some/set", "v2", "main"))) == [{"a": 1}]
    assert asked == [(("some/set", "main"), {"split": "v2"})]
    (tmp_path / "test.jsonl").write_text('{"a": 2}\n')
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *a, **k: str(tmp_path / a[1]))
    assert list(read_hub(Hub("some/set", file="test.jsonl"))) == [{"a": 2}]


def test_a_hub_that_cannot_be_reached_is_an_error_that_says_what_to_do(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route\nmore")

    monkeypatch.setattr("datasets.load_dataset", fail)
    with pytest.raises(UserError, match=r"some/set cannot be read from the Hub \(no route\).*eval.data_dir"):
        list(read_hub(Hub("some/set")))
