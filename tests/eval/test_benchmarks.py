"""Benchmark items: where they come from and what is refused."""

import gzip
import json
from typing import get_args

import pytest

from helpers import write_rows
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS, Item, load_items
from weakdriven.recipe import Benchmark


def rows(count=30):
    return [{"id": i, "question": f"{i}+0?", "answer": i, "level": i % 2} for i in range(count)]


def aime(tmp_path, items):
    write_rows(tmp_path / "aime2025.jsonl", items)
    return load_items("aime2025", str(tmp_path))


def test_a_recipe_can_name_exactly_the_benchmarks_there_are():
    assert set(get_args(Benchmark)) == set(BENCHMARKS)


@pytest.mark.parametrize(
    "name, count", [("aime2025", 30), ("amc23", 40), ("gsm8k", 1319), ("math500", 500), ("mawps", 238), ("svamp", 1000)]
)
def test_row_counts_are_the_published_ones(name, count):
    assert BENCHMARKS[name].rows == count


def test_the_embedded_benchmark_needs_no_folder():
    items = load_items("arithmetic", None)
    assert len(items) == BENCHMARKS["arithmetic"].rows >= 500
    assert {item.level for item in items} == {"2", "3", "4", "5"}


def test_items_are_read_as_text_and_a_level_is_optional(tmp_path):
    items = aime(tmp_path, [*rows()[:-1], {"id": "z", "question": "q", "answer": "0"}])
    assert items[0] == Item("0", "0+0?", "0", "0")
    assert items[-1] == Item("z", "q", "0", None)


def test_a_compressed_file_is_found_too(tmp_path):
    text = "".join(json.dumps(row) + "\n" for row in rows())
    (tmp_path / "aime2025.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert len(load_items("aime2025", str(tmp_path))) == 30


def test_no_folder_is_an_error_that_names_the_setting():
    with pytest.raises(UserError, match=r"aime2025 needs eval.data_dir, a folder that holds aime2025.jsonl"):
        load_items("aime2025", None)


def test_a_missing_file_is_an_error_that_names_folder_and_file(tmp_path):
    with pytest.raises(UserError, match=r"there is no aime2025.jsonl or aime2025.jsonl.gz in eval.data_dir=") as error:
        load_items("aime2025", str(tmp_path))
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("key", ["id", "question", "answer"])
@pytest.mark.parametrize("change", [lambda row, key: row.pop(key), lambda row, key: row.update({key: None})])
def test_a_missing_field_is_an_error_naming_row_and_field(key, change, tmp_path):
    items = rows()
    change(items[4], key)
    with pytest.raises(UserError, match=rf"aime2025.jsonl, row 5: the field '{key}' is missing"):
        aime(tmp_path, items)


@pytest.mark.parametrize("count", [0, 29, 31])
def test_a_wrong_number_of_rows_is_an_error(count, tmp_path):
    with pytest.raises(UserError, match=rf"holds {count} items, but aime2025 has 30"):
        aime(tmp_path, rows(count))


def test_a_repeated_id_is_an_error(tmp_path):
    with pytest.raises(UserError, match="holds an id twice"):
        aime(tmp_path, [*rows(29), {"id": "3", "question": "q", "answer": "1"}])
