"""Score files: parts that survive a kill, the merge, the facts in a file, and which file another run may use."""

import json
import re
from dataclasses import replace
from pathlib import Path
from threading import Timer

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weakdriven.errors import UserError
from weakdriven.wmss import score_files as home
from weakdriven.wmss.score_files import (
    PART_SCHEMA,
    SCHEMA,
    PartWriter,
    ScoreFacts,
    find_scores,
    merge_parts,
    read_entropies,
    read_facts,
    read_parts,
    read_scores,
    refuse_other_tokens,
    score_files,
    wait_for,
    write_scores,
)

FACTS = ScoreFacts(model="m", rows="r", tokenizer="t", max_length=256, precision="fp32")


def batch(*rows: int, name: str = "id-{}") -> pa.RecordBatch:
    """Scores of some rows, each with numbers of its own; row 3 has no supervised token."""
    none = [row == 3 for row in rows]
    values = [None if nothing else row + 0.25 for row, nothing in zip(rows, none, strict=True)]
    columns = [rows, [name.format(row) for row in rows], [0 if nothing else 5 for nothing in none]]
    columns += [values, values, values, [row % 2 == 0 for row in rows]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, PART_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PART_SCHEMA)


def ids(count: int) -> pa.ChunkedArray:
    return pa.chunked_array([[f"id-{row}" for row in range(count)]])


def write_parts(folder: Path, *batches: pa.RecordBatch) -> None:
    with PartWriter(folder) as parts:
        for one in batches:
            parts.add(one)
            parts.flush()


def names(folder: Path) -> list[str]:
    """Names of parts without the hash of their content before the ending."""
    return sorted(re.sub(r"-[0-9a-f]{16}(?=\.parquet$)", "", path.name) for path in folder.iterdir())


@pytest.fixture
def score_file(tmp_path) -> Path:
    """Of three examples, as a run has it."""
    path = tmp_path / "run/entropy/base/scores.parquet"
    path.parent.mkdir(parents=True)
    write_parts(tmp_path / "parts", batch(0, 1, 2))
    write_scores(path, merge_parts(tmp_path / "parts", ids(3)), FACTS)
    return path


def rewrite(path: Path, **changes) -> Path:
    """The same numbers under other facts, in a run of its own."""
    other = path.parents[3] / "-".join(map(str, changes.values())) / "entropy/base" / path.name
    other.parent.mkdir(parents=True)
    write_scores(other, read_scores(path), replace(FACTS, **changes))
    return other


def test_parts_are_named_after_their_first_row_and_nothing_else_is_left(tmp_path):
    write_parts(tmp_path, batch(4, 2), batch(0), batch(3, 1))
    assert names(tmp_path) == [f"rows-000000000{row}.parquet" for row in (0, 3, 4)]
    assert sorted(read_parts(tmp_path)["row"].to_pylist()) == [0, 1, 2, 3, 4]


def test_batches_are_written_together_at_intervals(tmp_path, monkeypatch):
    clock = iter([0.0, 10.0, 29.0, 31.0, 31.5, 40.0, 50.0])
    monkeypatch.setattr(home.time, "monotonic", lambda: next(clock))
    seen = []
    with PartWriter(tmp_path) as parts:
        for one in (batch(0), batch(1), batch(2), batch(4)):
            parts.add(one)
            seen.append(names(tmp_path))
    assert seen == [[], [], ["rows-0000000000.parquet"], ["rows-0000000000.parquet"]]
    assert [pq.read_metadata(path).num_rows for path in sorted(tmp_path.iterdir())] == [3, 1]


def test_a_scan_that_fails_keeps_what_it_had_scored(tmp_path):
    with pytest.raises(RuntimeError, match="killed"), PartWriter(tmp_path) as parts:
        parts.add(batch(0, 1))
        raise RuntimeError("killed")
    assert read_parts(tmp_path)["row"].to_pylist() == [0, 1]


def test_a_kill_during_a_write_leaves_no_complete_part(tmp_path, monkeypatch):
    def torn(table, path):
        path.write_bytes(b"PAR1 and half of the rest")
        raise KeyboardInterrupt

    monkeypatch.setattr(home.pq, "write_table", torn)
    with pytest.raises(KeyboardInterrupt), PartWriter(tmp_path) as parts:
        parts.add(batch(0))
    monkeypatch.undo()
    assert names(tmp_path) == ["rows-0000000000.parquet.part"] and not len(read_parts(tmp_path))
    write_parts(tmp_path, batch(0))
    assert names(tmp_path) == ["rows-0000000000.parquet"]


@pytest.mark.parametrize("damage", ["empty", "cut", "one bit"])
def test_a_part_that_cannot_be_read_is_removed_so_that_its_rows_are_scored_again(damage, tmp_path):
    write_parts(tmp_path, batch(0, 1), batch(2))
    torn = next(tmp_path.glob("rows-0000000000-*.parquet"))
    whole = torn.read_bytes()
    flipped = whole[:100] + bytes([whole[100] ^ 4]) + whole[101:]  # in a score: the file can still be read
    found = {"empty": b"", "cut": whole[: len(whole) // 2], "one bit": flipped}
    torn.write_bytes(found[damage])
    assert read_parts(tmp_path)["row"].to_pylist() == [2]
    assert names(tmp_path) == ["rows-0000000002.parquet"]


def test_a_folder_without_parts_holds_no_rows(tmp_path):
    assert read_parts(tmp_path / "nowhere").schema == PART_SCHEMA


def test_parts_are_merged_in_the_order_of_the_data(tmp_path):
    write_parts(tmp_path, batch(4, 2), batch(3), batch(0, 1))
    merged = merge_parts(tmp_path, ids(5))
    assert merged.schema == SCHEMA
    assert merged["id"].to_pylist() == ids(5).to_pylist()
    assert merged["entropy"].to_pylist() == [0.25, 1.25, 2.25, None, 4.25]
    assert merged["tokens"].to_pylist() == [5, 5, 5, 0, 5]


@pytest.mark.parametrize(
    "batches, rows, words",
    [
        ([batch(0, 2)], 3, r"1 of 3 examples were not scored exactly once \(first: row 1, 0 times\)"),
        ([batch(1), batch(0, 1)], 2, r"1 of 2 examples .* \(first: row 1, 2 times\)"),
        ([], 2, r"2 of 2 examples .* \(first: row 0, 0 times\)"),
        ([batch(0, 1, 2)], 2, "scores of other data"),
        ([batch(0, 1, name="other-{}")], 2, "scores of other data"),
        ([batch(0, name="id-1"), batch(1, name="id-0")], 2, "scores of other data"),
    ],
    ids=["missing", "twice", "none", "too many", "other ids", "swapped ids"],
)
def test_a_merge_that_would_lose_or_double_an_example_is_an_error(batches, rows, words, tmp_path):
    write_parts(tmp_path, *batches)
    with pytest.raises(UserError, match=rf"{tmp_path}: .*({words}).*remove that folder and run again"):
        merge_parts(tmp_path, ids(rows))


def test_entropies_of_other_data_are_an_error(score_file):
    assert read_entropies(score_file, ids(3)).tolist() == [0.25, 1.25, 2.25]
    for other in (ids(2), pa.chunked_array([["id-1", "id-0", "id-2"]])):
        with pytest.raises(UserError, match=f"{score_file} holds scores of other data; remove its folder"):
            read_entropies(score_file, other)


def test_a_score_file_keeps_its_numbers_and_its_facts(score_file, tmp_path):
    assert read_facts(score_file) == FACTS
    assert read_scores(score_file) == merge_parts(tmp_path / "parts", ids(3))
    assert json.loads(pq.read_schema(score_file).metadata[b"weakdriven.scores"])["max_length"] == 256


@pytest.mark.parametrize("damage", ["text", "cut", "missing", "other columns"])
def test_a_score_file_that_cannot_be_read_is_an_error_naming_it(damage, score_file):
    if damage == "missing":
        score_file.unlink()
    elif damage == "other columns":
        pq.write_table(pa.table({"id": ["a"]}), score_file)
    else:
        score_file.write_bytes(b"not Parquet" if damage == "text" else score_file.read_bytes()[:-20])
    with pytest.raises(UserError, match=rf"{score_file} cannot be read as a score file \(.*score again"):
        read_scores(score_file)
    with pytest.raises(UserError, match=rf"{score_file} is not a score file .*remove it from selection.reuse"):
        read_facts(score_file)


def test_scores_of_an_older_version_are_not_reused(score_file):
    write_scores(score_file, read_scores(score_file), replace(FACTS, version=1))
    with pytest.raises(UserError, match=r"is of version 1, but this package uses version 2"):
        read_facts(score_file)


def test_a_process_waits_for_files_that_others_write(tmp_path):
    Timer(0.3, (tmp_path / "late").touch).start()
    wait_for(tmp_path, ["late"])
    assert (tmp_path / "late").exists()
    wait_for(tmp_path, ["never"], seconds=0.1)


def test_a_table_without_facts_has_scores_but_no_facts(score_file):
    table = read_scores(score_file).replace_schema_metadata(None)
    pq.write_table(table, score_file)
    assert read_scores(score_file) == table
    with pytest.raises(UserError, match="is not a score file"):
        read_facts(score_file)


def found_in(place) -> list[Path]:
    return [path for path, _ in score_files([str(place)])]


def test_a_place_is_a_score_file_its_folder_or_a_run(score_file):
    run = score_file.parents[2]
    for place in (score_file, score_file.parent, run):
        assert found_in(place) == [score_file]
    other = run / "entropy/sft/scores.parquet"
    other.parent.mkdir()
    other.write_bytes(score_file.read_bytes())
    assert found_in(run) == [score_file, other]


def test_a_place_in_the_home_folder_can_be_named(score_file, monkeypatch):
    monkeypatch.setenv("HOME", str(score_file.parents[3]))
    assert found_in("~/run") == [score_file]


@pytest.mark.parametrize(
    "make",
    [
        lambda place: None,
        lambda place: place.mkdir(),
        lambda place: (place.mkdir(), (place / "run.json").write_text("{}")),
    ],
    ids=["missing", "empty folder", "young run"],
)
def test_a_place_without_scores_is_an_error(make, tmp_path):
    make(tmp_path / "place")
    words = rf"selection.reuse: there are no score files in {tmp_path}/place; give a run directory"
    with pytest.raises(UserError, match=words):
        found_in(tmp_path / "place")


def test_scores_of_other_tokens_are_an_error_with_both_values_and_a_way_out(score_file):
    place = [str(score_file)]
    refuse_other_tokens(place, tokenizer="t", max_length=256)
    with pytest.raises(UserError, match=r"another tokenizer or chat template; change that, or remove it"):
        refuse_other_tokens(place, tokenizer="u", max_length=256)
    with pytest.raises(UserError, match=r"max_length=256, and this recipe has 128; change that, or remove"):
        refuse_other_tokens(place, tokenizer="t", max_length=128)


def test_every_place_is_looked_at_for_other_tokens(score_file):
    places = [str(score_file), str(rewrite(score_file, max_length=128))]
    with pytest.raises(UserError, match="max_length=128, and this recipe has 256"):
        refuse_other_tokens(places, tokenizer="t", max_length=256)


def test_the_file_with_the_same_facts_is_found_among_others(score_file):
    other, precise = rewrite(score_file, model="n"), rewrite(score_file, precision="bf16")
    places = [str(path.parents[2]) for path in (other, precise, score_file)]
    assert find_scores(places, FACTS) == score_file
    assert find_scores(places[:1], FACTS) is None
    assert find_scores([], FACTS) is None
    assert find_scores(places, replace(FACTS, model="n")) == other


@pytest.mark.parametrize(
    "change, words",
    [({"rows": "s"}, "with other rows"), ({"precision": "bf16"}, r"with other precision \(bf16, not fp32\)")],
)
def test_scores_of_the_same_model_that_do_not_fit_are_an_error(change, words, score_file):
    place = rewrite(score_file, **change)
    with pytest.raises(UserError, match=rf"selection.reuse: {place} holds scores of the same model {words}; .*remove"):
        find_scores([str(place)], FACTS)


def test_a_merge_restores_the_order_of_many_rows(tmp_path):
    order = np.random.default_rng(0).permutation([row for row in range(500) if row != 3])
    write_parts(tmp_path, *(batch(*rows) for rows in np.array_split(order, 10)), batch(3))
    entropy = merge_parts(tmp_path, ids(500))["entropy"].to_pylist()
    assert [value for value in entropy if value is not None] == [row + 0.25 for row in range(500) if row != 3]
