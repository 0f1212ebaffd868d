"""Overlaps with held-out items are the same in any number of processes, and those on disk are not looked for again."""

import os

import pytest

from helpers import write_rows
from weakdriven.build import overlaps
from weakdriven.build.overlaps import BLOCK, find_overlaps
from weakdriven.data.overlap.decontaminate import NGRAM_SHARE, index_items, worst_overlap
from weakdriven.data.overlap.find import HeldItem

ITEMS = {
    "math": [
        HeldItem("gsm8k", str(n), f"Ann has {n} red pens, buys 4 more and loses one. How many?") for n in range(9)
    ],
    "logic": [HeldItem("reclor", "a", "All cats sleep at noon, and no owl does, so which of the two is Tom?")],
}
TOTAL = 2 * BLOCK + 7


def asked(number):
    if number % 1000 == 3:
        return f"ANN has {number % 7} red pens; buys 4 more and loses one. How many?"
    return (
        "All cats sleep at noon, and no owl does; so which of the two is Tom" if number == BLOCK else f"Row {number}."
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "kept.jsonl"
    said = ([{"role": "user", "content": asked(number)}] for number in range(TOTAL))
    write_rows(path, ({"id": str(number), "prompt": turns, "completion": "4"} for number, turns in enumerate(said)))
    return path


@pytest.fixture(scope="module")
def expected():
    held = index_items(ITEMS)
    return [worst_overlap([asked(number)], held, NGRAM_SHARE) for number in range(TOTAL)]


def found(rows, folder, items=ITEMS, shares=NGRAM_SHARE, **options):
    return list(find_overlaps(rows, TOTAL, items, shares, folder, **options))


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_any_number_of_processes_finds_the_same(rows, tmp_path, expected, workers):
    done = []
    assert found(rows, tmp_path / "work", workers=workers, on_rows=done.append) == expected
    assert sum(overlap is not None for overlap in expected) == 6 and max(done) >= TOTAL


def test_only_the_blocks_that_are_missing_are_compared_again(rows, tmp_path, expected, monkeypatch):
    found(rows, tmp_path, workers=1)
    [folder] = tmp_path.iterdir()
    (folder / "000001.json").unlink()
    compared = []
    monkeypatch.setattr(overlaps, "worst_overlap", lambda text, *more: compared.append(1) or worst_overlap(text, *more))
    assert found(rows, tmp_path) == expected and len(compared) == BLOCK
    assert found(rows, tmp_path) == expected and len(compared) == BLOCK


def test_other_items_shares_or_rows_are_compared_anew(rows, tmp_path, expected):
    found(rows, tmp_path)
    fewer = found(rows, tmp_path, {"logic": ITEMS["logic"]})
    assert sum(overlap is not None for overlap in fewer) == 1
    assert len(list(tmp_path.iterdir())) == 1
    os.utime(rows, (1, 1))
    assert found(rows, tmp_path) == expected


def test_a_process_that_fails_is_an_error(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(overlaps, "PROCESS", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="exit code 3"):
        found(rows, tmp_path, workers=2)


def test_a_process_whose_parent_is_gone_ends_without_work(rows, tmp_path):
    found(rows, tmp_path, workers=1)
    [folder] = tmp_path.iterdir()
    (folder / "000000.json").unlink()
    overlaps.compare(str(rows), str(folder), "0", "1", parent="1")
    assert not (folder / "000000.json").exists()


def test_no_rows_have_no_overlaps(tmp_path):
    (tmp_path / "kept.jsonl").touch()
    assert list(find_overlaps(tmp_path / "kept.jsonl", 0, ITEMS, NGRAM_SHARE, tmp_path / "work")) == []
