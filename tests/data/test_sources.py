"""Rows of every form and file type become examples; what cannot is an error that says where."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import write_rows
from weakdriven.data.sources import Example, as_example, load_examples, read_rows
from weakdriven.errors import UserError

ASK = [{"role": "user", "content": "1+1?"}]
SYSTEM = {"role": "system", "content": "Be brief."}
GOOD = {"question": "1+1?", "solution": "2"}


@pytest.mark.parametrize(
    "row, prompt",
    [
        ({"messages": [*ASK, {"role": "assistant", "content": "2"}]}, ASK),
        ({"messages": [SYSTEM, *ASK, {"role": "assistant", "content": "2"}]}, [SYSTEM, *ASK]),
        ({"prompt": "1+1?", "completion": "2"}, ASK),
        ({"prompt": ASK, "completion": "2"}, ASK),
        ({"prompt": [SYSTEM, *ASK], "completion": [{"role": "assistant", "content": "2"}]}, [SYSTEM, *ASK]),
        ({"question": "1+1?", "solution": "2"}, ASK),
    ],
    ids=["messages", "messages with system", "texts", "prompt messages", "both messages", "question"],
)
def test_each_form_of_row_becomes_the_same_example(row, prompt):
    assert as_example(row, 4, "f") == Example("4", prompt, "2")


@pytest.mark.parametrize("given, kept", [({"id": "a"}, "a"), ({"id": 0}, "0"), ({}, "4"), ({"id": None}, "4")])
def test_the_id_is_the_given_one_or_else_the_row_number(given, kept):
    assert as_example(GOOD | given, 4, "f").id == kept


@pytest.mark.parametrize("key", ["answer", "gold", "reference_answer"])
@pytest.mark.parametrize("value, kept", [("2", "2"), (0, "0"), (None, None)])
def test_the_gold_answer_is_kept_as_text(key, value, kept):
    example = as_example(GOOD | {key: value}, 1, "f")
    assert (example.gold, example.meta) == (kept, {})


def test_fields_without_a_meaning_of_their_own_are_kept_as_meta():
    example = as_example(GOOD | {"level": 3, "source": "x", "id": "a", "answer": "2"}, 1, "f")
    assert example.meta == {"level": 3, "source": "x"}
    assert example.as_row() == {"id": "a", "prompt": ASK, "completion": "2", "gold": "2", "meta": example.meta}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q"},
        {"question": "q"},
        {"prompt": "q", "completion": None},
        {"prompt": "q", "completion": " \n"},
        {"prompt": "q", "completion": []},
        {"messages": [*ASK, {"role": "assistant", "content": ""}]},
        {"messages": [{"role": "assistant", "content": "2"}, *ASK]},
    ],
)
def test_a_row_without_completion_is_an_error_naming_the_row(row, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [GOOD, row])
    words = "row 2: there is no completion to learn from.*data.empty_completions=drop"
    with pytest.raises(UserError, match=words) as error:
        load_examples(path)
    assert str(error.value).startswith(path)
    good, empty = load_examples(path, empty_completions="drop")
    assert good.completion == "2" and not empty.completion.strip()
    assert empty.prompt[-1]["role"] == "user"


def test_messages_that_end_with_a_question_have_no_completion_and_keep_every_turn(tmp_path):
    turns = [*ASK, {"role": "assistant", "content": "2"}, {"role": "user", "content": "2+2?"}]
    path = write_rows(tmp_path / "a.jsonl", [{"messages": turns}])
    [example] = load_examples(path, empty_completions="drop")
    assert (example.prompt, example.completion) == (turns, "")


def test_a_row_without_a_prompt_is_an_error_even_where_completions_may_be_empty(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"messages": [{"role": "assistant", "content": "2"}]}])
    with pytest.raises(UserError, match="row 1: the prompt is empty"):
        load_examples(path, empty_completions="drop")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": []},
        {"prompt": [], "completion": "2"},
        {"prompt": "", "completion": "2"},
        {"messages": [{"role": "assistant", "content": "2"}]},
    ],
)
def test_a_row_without_prompt_is_an_error_naming_the_row(row):
    with pytest.raises(UserError, match="f, row 3: the prompt is empty"):
        as_example(row, 3, "f")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": None},
        {"prompt": None, "completion": "2"},
        {"prompt": [{"role": "user", "content": 5}], "completion": "2"},
        {"prompt": "q", "completion": 7},
    ],
)
def test_a_row_that_is_not_text_is_an_error_naming_the_row(row):
    with pytest.raises(UserError, match="f, row 3: expected text or messages with role and content, found"):
        as_example(row, 3, "f")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": "hello"},
        {"messages": [*ASK, "2"]},
        {"messages": {"role": "user"}},
        {"prompt": 5, "completion": "2"},
        {"prompt": [{"content": "1+1?"}], "completion": "2"},
        {"prompt": "1+1?", "completion": ["2"]},
    ],
    ids=str,
)
def test_a_row_of_the_wrong_shape_is_an_error_naming_the_row(row):
    with pytest.raises(UserError, match="f, row 3"):
        as_example(row, 3, "f")


@pytest.mark.parametrize(
    "row",
    [
        GOOD | {"question": "half \ud83d"},
        GOOD | {"solution": "half \ude00"},
        {"messages": [*ASK, {"role": "assistant", "content": "half \ud83d"}]},
        {"messages": [{"role": "half \ud83d", "content": "1+1?"}, {"role": "assistant", "content": "2"}]},
    ],
    ids=["prompt", "completion", "messages", "role"],
)
def test_half_a_surrogate_pair_is_an_error_naming_the_row(row, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [GOOD, row])
    with pytest.raises(UserError, match="row 2: the text holds half a surrogate pair") as error:
        load_examples(path)
    assert str(error.value).startswith(path)


def test_a_whole_surrogate_pair_is_text(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [GOOD | {"solution": "\N{GRINNING FACE}"}])
    assert load_examples(path)[0].completion == "\N{GRINNING FACE}"


def test_unknown_fields_are_an_error_that_lists_them_and_what_is_expected():
    with pytest.raises(UserError, match=r"f, row 3: found the fields text, label; expected messages, prompt and"):
        as_example({"text": "a", "label": 1}, 3, "f")


@pytest.mark.parametrize("name", ["none.jsonl", "none.jsonl.gz", "none.json", "none.parquet", "."])
def test_a_missing_file_is_an_error(name, tmp_path):
    with pytest.raises(UserError, match="there is no such data file"):
        load_examples(str(tmp_path / name))


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_rows(tmp_path / "a.jsonl", [GOOD])
    assert load_examples("~/a.jsonl") == [Example("1", ASK, "2")]
    with pytest.raises(UserError, match=r"^~/b: there is no such data file"):
        load_examples("~/b")


def test_a_relative_name_with_a_data_ending_is_never_looked_up_on_the_hub():
    with pytest.raises(UserError, match=r"^nowhere/train.jsonl: there is no such data file"):
        load_examples("nowhere/train.jsonl")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.jsonl", b'{"question": "q", "solution": "s"}\n\n{"question": \n', "line 3 is not JSON"),
        ("a.jsonl", b'{"question": "q", "solution": "s"}\n[1]\n', "row 2: expected an object .* found list"),
        ("a.jsonl", b'\xff{"question": "q"}\n', "line 1 cannot be read"),
        ("a.jsonl", b"", "there is no row to train on"),
        ("a.jsonl", b"\n \n", "there is no row to train on"),
        ("a.jsonl.gz", b"plain text\n", "cannot be read: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(json.dumps(GOOD).encode(), mtime=0)[:-12], "cannot be read"),
        ("a.jsonl.gz", gzip.compress(b"{}\n", mtime=0)[:10] + b"\xff" * 20, "cannot be read"),
        ("a.json", b"[{]", "cannot be read as JSON"),
        ("a.json", b'["\xff"]', "cannot be read as JSON"),
        ("a.json", b'{"question": "q"}', "expected a list of rows, found dict"),
        ("a.json", b'[{"question": "q", "solution": "s"}, 3]', "row 2: expected an object .* found int"),
        ("a.json", b"[]", "there is no row to train on"),
        ("a.parquet", b"PAR1", "neither a readable data file nor"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_naming_file_and_place(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        load_examples(str(tmp_path / name))
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize("rows", [[{"id": "a"}, {"id": "b"}, {"id": "a"}], [{"id": "3"}, {}, {}]])
def test_duplicate_ids_are_an_error_naming_both_rows(rows, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [GOOD | row for row in rows])
    with pytest.raises(UserError, match=rf"id '{rows[0]['id']}' stands in rows 1 and 3"):
        load_examples(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.parquet"])
def test_every_file_type_gives_the_same_examples(name, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [{"id": f"é{i}", "question": f"{i}+1?", "solution": str(i + 1), "answer": str(i + 1)} for i in range(5)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path = tmp_path / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(json.dumps(rows) if name.endswith(".json") else lines, encoding="utf-8")
    assert load_examples(str(path)) == [as_example(row, 1, "") for row in rows]


@pytest.mark.parametrize("limit, count", [(1, 1), (2, 2), (9, 3), (None, 3)])
def test_the_limit_keeps_the_first_rows(limit, count, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [GOOD] * 3)
    assert [example.id for example in load_examples(path, limit=limit)] == ["1", "2", "3"][:count]


def test_rows_after_the_limit_are_not_judged(tmp_path):
    assert len(load_examples(write_rows(tmp_path / "a.jsonl", [GOOD, {"bad": 1}]), limit=1)) == 1


def test_the_embedded_set_has_both_splits():
    train, test = load_examples("embedded:arithmetic"), list(read_rows("embedded:arithmetic", "test"))
    assert len(train) >= 3000 and len(test) >= 500
    assert not {example.id for example in train} & {row["id"] for row in test}


@pytest.mark.parametrize(
    "completion",
    [
        [{"role": "user", "content": "2"}],
        [{"role": "assistant", "content": "2"}, {"role": "assistant", "content": "3"}],
    ],
)
def test_a_completion_of_another_form_is_an_error_and_not_an_empty_one(completion, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"prompt": "1+1?", "completion": completion}])
    with pytest.raises(UserError, match="row 1: the completion has to be one message of the assistant"):
        load_examples(path, empty_completions="drop")
