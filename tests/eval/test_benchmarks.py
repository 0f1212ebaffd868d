"""Benchmark items: where they come from and what is refused. All rows here are made up."""

import gzip
import json
import os
import venv
from dataclasses import asdict, replace
from typing import get_args

import pytest

from helpers import write_rows
from weakdriven.config.benchmarks import Benchmark
from weakdriven.errors import UserError
from weakdriven.eval import benchmarks
from weakdriven.eval.benchmarks import (
    BENCHMARKS,
    Item,
    benchmark_source,
    benchmarks_named,
    check_items,
    load_items,
    missing_libraries,
)

CHOICE = {"id": "r", "context": "c", "question": "q", "options": ["1", "2", "3", "4"], "answer": "B"}
CODE = {"id": "c", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(f): ...", "test_style": "check"}
CONTEST = {
    "id": "l",
    "question": "Double it.",
    "starter_code": "",
    "tests": [{"input": "1", "output": "2", "testtype": "stdin"}],
    "func_name": "",
    "difficulty": "easy",
}


def rows(count=30):
    return [{"id": i, "question": f"{i}+0?", "answer": i, "level": i % 2} for i in range(count)]


def aime(tmp_path, items):
    write_rows(tmp_path / "aime2025.jsonl", items)
    return load_items("aime2025", str(tmp_path))


def one(name, row, tmp_path, monkeypatch):
    """The item of a benchmark that has this row alone."""
    monkeypatch.setitem(BENCHMARKS, name, replace(BENCHMARKS[name], rows=1))
    write_rows(tmp_path / f"{name}.jsonl", [row])
    return load_items(name, str(tmp_path))[0]


def test_a_recipe_can_name_every_benchmark_and_row_counts_are_the_published_ones():
    assert set(get_args(Benchmark)) == set(BENCHMARKS)
    counts = dict(aime2025=30, math500=500, amc23=40, aqua=254, gsm8k=1319, mawps=238, svamp=1000)
    counts |= dict(humaneval_plus=164, mbpp_plus=378, bigcodebench=1140, livecodebench=400, logiqa2=1572, reclor=500)
    assert {name: entry.rows for name, entry in BENCHMARKS.items() if not entry.embedded} == counts
    budgets = {name: 8192 if name in ("aime2025", "amc23") else 4096 for name in counts}
    assert {name: BENCHMARKS[name].max_new_tokens for name in counts} == budgets


def test_the_embedded_benchmark_needs_no_file():
    items = load_items("arithmetic", None)
    assert len(items) == BENCHMARKS["arithmetic"].rows >= 500
    assert {item.level for item in items} == {"2", "3", "4", "5"}
    check_items("arithmetic", items[:5])


def test_items_are_read_as_text_and_a_level_is_optional(tmp_path):
    items = aime(tmp_path, [*rows()[:-1], {"id": "z", "question": "q", "answer": "0"}])
    assert items[0] == Item("0", "0+0?", "0", None, "0")
    assert items[-1] == Item("z", "q", "0")


@pytest.mark.parametrize("name, row", [("reclor", CHOICE), ("humaneval_plus", CODE), ("livecodebench", CONTEST)])
def test_items_survive_json(name, row, tmp_path, monkeypatch):
    item = one(name, row, tmp_path, monkeypatch)
    assert Item(**json.loads(json.dumps(asdict(item)))) == item


@pytest.mark.parametrize(
    "place", ["gsm8k.jsonl", "gsm8k_test.jsonl.gz", "math/gsm8k.jsonl.gz", "math/gsm8k_test.jsonl"]
)
def test_a_file_is_found_by_either_name_in_the_folder_or_its_domain(place, tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "gsm8k", replace(BENCHMARKS["gsm8k"], rows=30))
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows()).encode()
    path.write_bytes(gzip.compress(text) if place.endswith("gz") else text)
    assert benchmark_source("gsm8k", str(tmp_path)) == str(path)
    assert len(load_items("gsm8k", str(tmp_path))) == 30


def test_the_folder_itself_comes_before_that_of_the_domain(tmp_path):
    (tmp_path / "math").mkdir()
    for place in ("math/gsm8k.jsonl", "gsm8k_test.jsonl"):
        (tmp_path / place).write_text("")
    assert benchmark_source("gsm8k", str(tmp_path)).endswith(f"{tmp_path.name}/gsm8k_test.jsonl")


def test_a_json_array_as_the_authors_ship_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "reclor", replace(BENCHMARKS["reclor"], rows=1))
    row = {"id_string": "val_0", "context": "c", "question": "q", "answers": ["1", "2", "3", "4"], "label": 3}
    (tmp_path / "reclor.json").write_text(json.dumps([row]))
    assert load_items("reclor", str(tmp_path))[0].gold == "D"


def test_without_a_folder_items_come_from_the_hub(monkeypatch):
    asked = []
    published = [{"id": str(i), "problem": f"{i}?", "answer": str(i)} for i in range(30)]
    monkeypatch.setattr(benchmarks, "read_hub", lambda hub: asked.append(hub.id) or iter(published))
    assert benchmark_source("aime2025", None) == "math-ai/aime25"
    assert load_items("aime2025", None)[4] == Item("aime2025-4", "4?", "4") and asked == ["math-ai/aime25"]


@pytest.mark.parametrize(
    "name, files, place",
    [
        ("mawps", "mawps.jsonl or mawps_test.jsonl", "MWPToolkit"),
        ("reclor", "reclor.jsonl", "whyu.me/reclor"),
    ],
)
def test_a_missing_file_is_an_error_that_says_where_it_comes_from(name, files, place, tmp_path):
    with pytest.raises(UserError, match=f"{name} needs --data-dir .*eval.data_dir.*{place}"):
        load_items(name, None)
    with pytest.raises(UserError, match=f"no {files}.*{place}"):
        load_items(name, str(tmp_path))


def test_an_unknown_name_is_an_error_with_the_nearest_and_all():
    with pytest.raises(UserError, match=r"no benchmark 'math-500'\. Did you mean math500\? Known benchmarks: .*reclor"):
        benchmarks_named("gsm8k, math-500")


@pytest.mark.parametrize(
    "items, words",
    [
        ([*rows(29), {"id": "x", "question": " ", "answer": "1"}], "row 30: the field 'question' is missing"),
        ([*rows(29), {"id": "x", "question": "q", "answer": None}], "row 30: the field 'answer' is missing"),
        ([*rows(29), {"question": "q", "answer": "1"}], "row 30: the field 'id' is missing"),
        ([*rows(29), {"id": "x", "question": "\ud800", "answer": "1"}], "row 30: .*surrogate"),
        ([*rows(29), {"id": "3", "question": "q", "answer": "1"}], "id '3' is in rows 4 and 30"),
        (rows(29), "has 29 items, but aime2025 has 30"),
        (rows(31), "has 31 items, but aime2025 has 30"),
    ],
)
def test_a_bad_file_is_an_error_that_says_where(items, words, tmp_path):
    with pytest.raises(UserError, match=words):
        aime(tmp_path, items)


def io_test(given):
    return {"input": given, "output": "2", "testtype": "functional"}


BAD = [
    ("reclor", CHOICE | {"options": ["1", "2", "3"]}, "expected 4 options with text"),
    ("reclor", CHOICE | {"options": ["1", "2", "3", " "]}, "expected 4 options with text"),
    ("reclor", CHOICE | {"answer": "E"}, "the answer is 'E'; expected a letter from A to D"),
    ("reclor", CHOICE | {"context": ""}, "the field 'context' is missing"),
    ("aqua", CHOICE, "expected 5 options"),
    ("humaneval_plus", CODE | {"entry_point": None}, "the field 'entry_point' is missing"),
    ("livecodebench", CONTEST | {"tests": []}, "expected objects with input and output"),
    ("livecodebench", CONTEST | {"tests": [io_test(1)]}, "input and output as text"),
    ("livecodebench", CONTEST | {"tests": [{"input": "1", "output": "2"}]}, "tests of a row must all be stdin"),
    ("livecodebench", CONTEST | {"tests": [*CONTEST["tests"], io_test("1")]}, "found functional, stdin"),
    ("livecodebench", CONTEST | {"tests": [io_test("1")]}, "the field 'func_name' is missing"),
    ("livecodebench", {"question_content": "q", "private_test_cases": "AAAA"}, "the private tests cannot be unpacked"),
    ("bigcodebench", {"complete_prompt": "p", "libs": "[nonsense("}, "not in a published layout"),
]


@pytest.mark.parametrize("name, row, words", BAD)
def test_a_bad_row_is_an_error_that_names_file_and_row(name, row, words, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=words) as error:
        one(name, row, tmp_path, monkeypatch)
    assert str(error.value).count(f"{name}.jsonl, row 1") == 1


def test_a_gold_letter_may_be_lower_case(tmp_path, monkeypatch):
    assert one("reclor", CHOICE | {"answer": " b"}, tmp_path, monkeypatch).gold == "B"


def test_a_contest_item_is_what_the_grader_reads(tmp_path, monkeypatch):
    item = one("livecodebench", CONTEST, tmp_path, monkeypatch)
    assert item.gold == {
        "id": "l",
        "prompt": "Double it.",
        "entry_point": "",
        "test": "",
        "test_style": "io",
        "testtype": "stdin",
        "tests": [{"input": "1", "output": "2"}],
        "starter_code": "",
    }


def test_a_gold_answer_that_the_grader_cannot_read_is_an_error():
    items = [Item("a", "q", "12"), Item("b", "q", "\\boxed{}")]
    with pytest.raises(UserError, match=r"gold answers of 1 items \(first: b"):
        check_items("math500", items)
    check_items("math500", items[:1])


def test_libraries_that_are_not_installed_are_named_with_the_number_of_items():
    def item(name, libs, test="import unittest"):
        return Item(name, "q", CODE | {"id": name, "libs": libs, "test": test})

    there = item("there", ["json", "numpy"])
    absent = [item("x", ["no_such_a", "json"]), item("y", ["no_such_a"], "from no_such_b.c import d"), there]
    assert missing_libraries([there, item("no python", ["json"], "import (")]) == {}
    assert missing_libraries(absent) == {"no_such_a": ["x", "y"], "no_such_b": ["y"]}
    check_items("bigcodebench", [there])
    with pytest.raises(UserError, match=r"2 of 3 items need libraries .*no_such_a, no_such_b\. Install them"):
        check_items("bigcodebench", absent)


DATA = os.environ.get("WEAKDRIVEN_DATA")
NOT_THERE = {"livecodebench", "reclor"}


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="WEAKDRIVEN_DATA does not name a folder with the benchmarks' files")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_published_files_load_and_their_golds_can_be_read(name):
    try:
        benchmark_source(name, DATA)
    except UserError as error:
        assert name in NOT_THERE, error
        pytest.skip(str(error))
    items = load_items(name, DATA)
    assert len(items) == BENCHMARKS[name].rows
    if not missing_libraries(items):
        check_items(name, items)


def test_libraries_are_looked_for_in_the_interpreter_that_runs_the_code(tmp_path):
    python = tmp_path / "bin" / "python"
    venv.create(tmp_path, with_pip=False)
    site = next(tmp_path.glob("lib/python*/site-packages"))
    (site / "only_in_there.py").write_text("")
    gold = {"libs": ["only_in_there", "nowhere_at_all"], "test": ""}
    items = [Item("a", "?", gold)]
    assert set(missing_libraries(items)) == {"only_in_there", "nowhere_at_all"}
    assert missing_libraries(items, str(python)) == {"nowhere_at_all": ["a"]}
    with pytest.raises(UserError, match="not a working Python interpreter"):
        missing_libraries(items, str(tmp_path / "no-python"))
