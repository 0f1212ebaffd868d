"""Raw rows of every file type; what cannot be read is an error that names file and line."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import write_rows
from weakdriven.data.example import Example
from weakdriven.data.rows.files import count_rows, data_key, find_files, read_each, read_rows
from weakdriven.data.rows.layouts import as_example
from weakdriven.data.rows.sources import load_examples
from weakdriven.errors import UserError

GOOD = {"question": "1+1?", "solution": "2"}
LINE = json.dumps(GOOD).encode() + b"\n"


def as_table(rows, separator):
    file = io.StringIO()
    table = csv.DictWriter(file, list(rows[0]), delimiter=separator)
    table.writeheader()
    table.writerows(rows)
    return file.getvalue()


def write_any(path, rows):
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    text = json.dumps(rows, ensure_ascii=False, indent=1) if ".json" in path.suffixes else lines
    tables = {".csv": ",", ".tsv": "\t"}
    text = next((as_table(rows, tables[one]) for one in path.suffixes if one in tables), text)
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
TYPES += ["a.csv", "a.csv.gz", "a.csv.zst", "a.tsv", "a.tsv.gz"]


@pytest.mark.parametrize("name", TYPES)
def test_every_file_type_gives_the_same_examples(name, tmp_path):
    odd = 'a "quote", a\ttab and\na line; '
    rows = [{"id": f"é{i}", "question": f"{odd}{i}+1?", "solution": str(i + 1), "answer": "7"} for i in range(600)]
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
        ("a.jsonl", LINE + b'\n{"question": \n', "line 3 is not JSON: Expecting value, column 14"),
        ("a.jsonl", LINE + b"[1]\n", "row 2: expected an object .* found list"),
        ("a.jsonl", LINE + b"null\n", "row 2: expected an object .* found NoneType"),
        ("a.jsonl", LINE + b"[" * 100_000, "line 2 is not JSON"),
        ("a.jsonl", b'\xff{"question": "q"}\n', "line 1 cannot be read"),
        ("a.jsonl", LINE * 3 + b'{"question": "caf\xe9", "solution": "s"}\n', "line 4 cannot be read: .*as UTF-8"),
        ("a.jsonl", LINE.decode().encode("utf-16"), "line 1 cannot be read: .*; save the file as UTF-8"),
        ("a.jsonl", b"", "there are no rows to train on"),
        ("a.jsonl", b"\n \n", "there are no rows to train on"),
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
        ("a.json", b'{"question": "q"}', "expected a list of rows, found dict; one row per line is .jsonl"),
        ("a.json", b"", "Expecting value: line 1"),
        ("a.json", b'[{"question": "q", "solution": "s"}, 3]', "row 2: expected an object .* found int"),
        ("a.json", b"[]", "there are no rows to train on"),
        ("a.json.gz", b"plain", "cannot be read as a JSON list .*: Not a gzipped file"),
        ("a.parquet", b"PAR1", "cannot be read as Parquet"),
        ("a.csv", b"", "there are no rows to train on"),
        ("a.csv", b"question,solution\n", "there are no rows to train on"),
        ("a.csv", b"question,question\n1,2\n", "first line is 'question', 'question'; every field needs a unique"),
        ("a.csv", b'question,solution\n1,"2\n', "cannot be read as CSV .*unexpected end of data"),
        ("a.csv", b'question,solution\n1,"caf\xe9"\n', "cannot be read as CSV .*; save the file as UTF-8"),
        ("a.tsv", b"question\tsolution\n1\n", "line 2: found 1 fields, but the first line names 2"),
        ("a.csv", b"question;solution\n1;2\n", "found the fields question;solution"),
        ("a.csv.gz", b"plain", "cannot be read as CSV .*: Not a gzipped file"),
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


def test_a_file_of_an_unknown_kind_is_read_as_json_lines_and_reported_as_such(tmp_path):
    (tmp_path / "a.xls").write_text("question,solution\n1+1?,2\n")
    with pytest.raises(UserError, match=r"a\.xls, line 1 is not JSON: .*; expected JSON lines, or a file that ends in"):
        list(read_rows(str(tmp_path / "a.xls")))


def test_an_empty_field_of_a_table_is_null_and_a_long_one_is_whole(tmp_path):
    (tmp_path / "a.csv").write_text(f"\ufeffid,question,solution\n,1+1?,{'2' * 200_000}\n\n", encoding="utf-8")
    assert list(read_rows(str(tmp_path / "a.csv"))) == [{"id": None, "question": "1+1?", "solution": "2" * 200_000}]


def test_a_line_of_a_table_with_too_many_fields_is_an_error_of_that_line(tmp_path):
    (tmp_path / "a.csv").write_text("question,solution\n1+1?,2\n1+2?,3, I think\n1+3?,4\n")
    first, second, third = read_each(str(tmp_path / "a.csv"))
    assert (first["solution"], third["solution"]) == ("2", "4")
    assert isinstance(second, UserError) and "a.csv, line 3: found 3 fields, but the first line names 2" in str(second)
    assert list(read_each(str(tmp_path / "a.csv"), start=2)) == [third]


@pytest.fixture
def folder(tmp_path):
    """Three files of different kinds with two rows each, a README and a hidden file."""
    (tmp_path / "set").mkdir()
    for place, name in enumerate(["a.jsonl.gz", "b.csv", "c.parquet"]):
        write_any(tmp_path / "set" / name, [{"question": f"{place}+{i}?", "solution": str(i)} for i in range(2)])
    (tmp_path / "set/README.md").write_text("# Rows\n")
    (tmp_path / "set/.cache").mkdir()
    return tmp_path / "set"


def test_a_folder_is_one_source_whose_files_are_read_by_name(folder):
    asked = ["0+0?", "0+1?", "1+0?", "1+1?", "2+0?", "2+1?"]
    assert [row["question"] for row in read_rows(str(folder))] == asked
    assert [row["question"] for row in read_each(str(folder), start=3)] == asked[3:]
    assert count_rows(str(folder)) == 6
    assert [example.id for example in load_examples(str(folder))] == list("123456")


def test_the_key_of_a_folder_follows_its_contents_and_not_its_place(folder, tmp_path):
    key = data_key(str(folder), "train")
    folder.rename(tmp_path / "moved")
    assert data_key(str(tmp_path / "moved"), "train") == key
    write_any(tmp_path / "moved/b.csv", [GOOD])
    assert data_key(str(tmp_path / "moved"), "train") != key
    alone = write_any(tmp_path / "a.jsonl", [GOOD])
    (tmp_path / "one").mkdir()
    write_any(tmp_path / "one/b.jsonl", [GOOD])
    assert data_key(str(tmp_path / "one"), "train") == data_key(alone, "train")


@pytest.mark.parametrize("name", ["notes.docx", "train.arrow", "more/"])
def test_a_folder_that_holds_something_else_is_an_error_naming_it(name, folder):
    (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("x")
    with pytest.raises(UserError, match=rf"set has {name.strip('/')}; expected only files that end in \.jsonl"):
        find_files(str(folder))


def test_a_folder_without_a_data_file_is_an_error(tmp_path):
    (tmp_path / "README.md").write_text("# Nothing\n")
    with pytest.raises(UserError, match="has no data file"):
        load_examples(str(tmp_path))


def test_a_row_of_a_folder_in_another_layout_is_reported_with_its_file(folder):
    write_any(folder / "d.jsonl", [GOOD, {"prompt": "q", "completion": "c"}])
    with pytest.raises(UserError, match=r"d\.jsonl, row 2 has another layout"):
        load_examples(str(folder))
