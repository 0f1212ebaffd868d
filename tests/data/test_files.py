"""Raw rows of every file type; what cannot be read is an error that names file and line."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import write_rows
from weakdriven.data.example import Example
from weakdriven.data.rows.files import count_rows, find_file, read_rows
from weakdriven.data.rows.layouts import as_example
from weakdriven.data.rows.sources import load_examples
from weakdriven.errors import UserError

GOOD = {"question": "1+1?", "solution": "2"}
LINE = json.dumps(GOOD).encode() + b"\n"


def write_any(path, rows):
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    text = json.dumps(rows, ensure_ascii=False, indent=1) if ".json" in path.suffixes else lines
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".zst":
        with pa.output_stream(str(path), compression="zstd") as sink:
            sink.write(text.encode())
    else:
        path.write_text(text, encoding="utf-8")
    return str(path)


TYPES = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.json", "a.json.gz", "a.parquet", "a.txt"]


@pytest.mark.parametrize("name", TYPES)
def test_every_file_type_gives_the_same_examples(name, tmp_path):
    rows = [{"id": f"é{i}", "question": f"{i}+1?", "solution": str(i + 1), "answer": str(i + 1)} for i in range(600)]
    path = write_any(tmp_path / name, rows)
    assert load_examples(path) == [as_example(row, 1, "") for row in rows]
    assert count_rows(path) == 600


@pytest.mark.parametrize("name", ["none.jsonl", "none.jsonl.gz", "none.jsonl.zst", "none.json", "none.parquet"])
def test_a_missing_file_is_an_error(name, tmp_path):
    for look in (load_examples, count_rows):
        with pytest.raises(UserError, match="there is no such data file"):
            look(str(tmp_path / name))


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_rows(tmp_path / "a.jsonl", [GOOD])
    assert load_examples("~/a.jsonl") == [Example("1", [{"role": "user", "content": "1+1?"}], "2")]
    with pytest.raises(UserError, match=r"^~/b: there is no such data file"):
        load_examples("~/b")


def test_a_relative_name_with_a_data_ending_is_never_looked_up_on_the_hub():
    with pytest.raises(UserError, match=r"^nowhere/train.jsonl: there is no such data file"):
        load_examples("nowhere/train.jsonl")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.jsonl", LINE + b'\n{"question": \n', "line 3 is not JSON"),
        ("a.jsonl", LINE + b"[1]\n", "row 2: expected an object .* found list"),
        ("a.jsonl", LINE + b"null\n", "row 2: expected an object .* found NoneType"),
        ("a.jsonl", LINE + b"[" * 100_000, "line 2 is not JSON"),
        ("a.jsonl", b'\xff{"question": "q"}\n', "line 1 cannot be read"),
        ("a.jsonl", LINE * 3 + b'{"question": "caf\xe9", "solution": "s"}\n', "line 4 cannot be read: .*as UTF-8"),
        ("a.jsonl", LINE.decode().encode("utf-16"), "line 1 cannot be read: .*; save the file as UTF-8"),
        ("a.jsonl", b"", "there is no row to train on"),
        ("a.jsonl", b"\n \n", "there is no row to train on"),
        ("a.jsonl.gz", b"plain text\n", "cannot be read as JSON lines: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(LINE, mtime=0)[:-12], "cannot be read"),
        ("a.jsonl.gz", gzip.compress(b"{}\n", mtime=0)[:10] + b"\xff" * 20, "cannot be read"),
        ("a.jsonl.zst", b"plain text\n", "cannot be read"),
        ("a.json", b"[{]", "line 1 column 3"),
        ("a.json", b'[\n{"question": "q"},\n{"question" 3}]', "Expecting ':' delimiter: line 3"),
        ("a.json", b'[{"question": "q"}', "Expecting ',' delimiter: line 1"),
        ("a.json", b'{"question": "q"}\n{"question": "q"}', r"\.jsonl.*Extra data: line 2"),
        ("a.json", b'[{"a": ' + b"[" * 100_000, "recursion"),
        ("a.json", b'["\xff"]', "cannot be read as a JSON list .*; save the file as UTF-8"),
        ("a.json", b'{"question": "q"}', "expected a list of rows, found dict; rows on lines are .jsonl"),
        ("a.json", b"", "Expecting value: line 1"),
        ("a.json", b'[{"question": "q", "solution": "s"}, 3]', "row 2: expected an object .* found int"),
        ("a.json", b"[]", "there is no row to train on"),
        ("a.json.gz", b"plain", "cannot be read as a JSON list .*: Not a gzipped file"),
        ("a.parquet", b"PAR1", "cannot be read as Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_naming_file_and_place(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        load_examples(str(tmp_path / name))
    assert str(error.value).count(str(tmp_path / name)) == 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_mark_of_utf_8_before_the_text_is_no_mistake(name, tmp_path):
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (b"[" + LINE + b"]" if name == "a.json" else LINE))
    assert list(read_rows(str(tmp_path / name))) == [GOOD]


def test_a_folder_and_a_file_of_another_kind_are_reported_as_such(tmp_path):
    with pytest.raises(UserError, match="is a folder; name a file in it"):
        find_file(str(tmp_path))
    (tmp_path / "a.csv").write_text("question,solution\n1+1?,2\n")
    with pytest.raises(UserError, match=r"a\.csv, line 1 is not JSON: .*; expected JSON lines, or a file that ends in"):
        list(read_rows(str(tmp_path / "a.csv")))
