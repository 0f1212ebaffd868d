"""A source as a whole: one layout, unique ids, a limit, read anew each time and never held in memory."""

import tracemalloc

import pytest

from helpers import write_rows
from weakdriven.data.example import Example
from weakdriven.data.rows.files import read_rows
from weakdriven.data.rows.sources import load_examples, open_source
from weakdriven.errors import UserError

ASK = [{"role": "user", "content": "1+1?"}]
SAID = {"role": "assistant", "content": "2"}
GOOD = {"question": "1+1?", "solution": "2"}
PAIR = {"prompt": "1+1?", "completion": "2"}
TALK = {"messages": [*ASK, SAID]}
SHARED = {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]}
ALPACA = {"instruction": "1+1?", "output": "2"}


@pytest.mark.parametrize(
    "good, row",
    [
        (PAIR, {"prompt": "q"}),
        (GOOD, {"question": "q"}),
        (PAIR, {"prompt": "q", "completion": None}),
        (PAIR, {"prompt": "q", "completion": " \n"}),
        (PAIR, {"prompt": "q", "completion": []}),
        (ALPACA, {"instruction": "q", "output": ""}),
        (TALK, {"messages": [*ASK, {"role": "assistant", "content": ""}]}),
        (TALK, {"messages": [SAID, *ASK]}),
        (TALK, {"messages": [*ASK, {"role": "assistant", "content": " "}, *ASK, SAID]}),
        (SHARED, {"conversations": [{"from": "human", "value": "q"}]}),
    ],
)
def test_a_row_without_completion_is_an_error_naming_the_row(good, row, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [good, row])
    words = "row 2: there is no completion to train on.*data.empty_completions=drop"
    with pytest.raises(UserError, match=words) as error:
        load_examples(path)
    assert str(error.value).startswith(path)
    whole, empty = load_examples(path, empty_completions="drop")
    assert whole.completion == "2" and not empty.completion.strip()
    assert empty.prompt[-1]["role"] == "user"


def test_messages_that_end_with_a_question_have_no_completion_and_keep_every_turn(tmp_path):
    turns = [*ASK, SAID, {"role": "user", "content": "2+2?"}]
    path = write_rows(tmp_path / "a.jsonl", [{"messages": turns}])
    [example] = load_examples(path, empty_completions="drop")
    assert (example.prompt, example.completion) == (turns, "")


def test_a_row_without_a_prompt_is_an_error_even_where_completions_may_be_empty(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"messages": [SAID]}])
    with pytest.raises(UserError, match="row 1: the prompt is empty"):
        load_examples(path, empty_completions="drop")


@pytest.mark.parametrize(
    "good, row",
    [
        (GOOD, GOOD | {"question": "half \ud83d"}),
        (GOOD, GOOD | {"solution": "half \ude00"}),
        (GOOD, GOOD | {"options": ["half \ud83d", "b"]}),
        (TALK, {"messages": [*ASK, {"role": "assistant", "content": "half \ud83d"}]}),
        (ALPACA, ALPACA | {"input": "half \ud83d"}),
        (SHARED, {"conversations": [{"from": "human", "value": "half \ud83d"}]}),
    ],
    ids=["prompt", "completion", "options", "messages", "alpaca", "sharegpt"],
)
def test_half_a_surrogate_pair_is_an_error_naming_the_row(good, row, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [good, row])
    with pytest.raises(UserError, match=r"row 2.*: the text contains half a surrogate pair") as error:
        load_examples(path)
    assert str(error.value).startswith(path)


def test_a_whole_surrogate_pair_is_text(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [GOOD | {"solution": "\N{GRINNING FACE}"}])
    assert load_examples(path)[0].completion == "\N{GRINNING FACE}"


@pytest.mark.parametrize("place", [1, 30], ids=["among the first", "far behind them"])
@pytest.mark.parametrize("other, name", [(PAIR, "prompt/completion"), (TALK, "messages"), (ALPACA, "Alpaca")])
def test_mixed_layouts_are_an_error_naming_the_first_row_that_differs(place, other, name, tmp_path):
    rows = [GOOD] * place + [other, GOOD, other]
    with pytest.raises(UserError, match=rf"row {place + 1} has another layout: found {name} ") as error:
        load_examples(write_rows(tmp_path / "a.jsonl", rows))
    assert "rows before it are question/solution; put rows of different layouts into" in str(error.value)


def test_a_row_of_no_layout_among_others_is_an_error_naming_it(tmp_path):
    with pytest.raises(UserError, match=r"row 26: found the fields body; expected messages, prompt and completion"):
        load_examples(write_rows(tmp_path / "a.jsonl", [*[GOOD] * 25, {"body": "a"}]))


@pytest.mark.parametrize("rows", [[{"id": "a"}, {"id": "b"}, {"id": "a"}], [{"id": "3"}, {}, {}]])
def test_duplicate_ids_are_an_error_naming_both_rows(rows, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [GOOD | row for row in rows])
    with pytest.raises(UserError, match=rf"id '{rows[0]['id']}' is in rows 1 and 3"):
        load_examples(path)


@pytest.mark.parametrize("limit, count", [(1, 1), (2, 2), (9, 3), (None, 3)])
def test_the_limit_keeps_the_first_rows(limit, count, tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [GOOD] * 3)
    assert [example.id for example in load_examples(path, limit=limit)] == ["1", "2", "3"][:count]
    assert open_source(path, limit=limit).count() == count


def test_rows_after_the_limit_are_not_judged(tmp_path):
    assert len(load_examples(write_rows(tmp_path / "a.jsonl", [GOOD, {"bad": 1}]), limit=1)) == 1


def test_the_embedded_set_has_both_splits():
    train, test = load_examples("embedded:arithmetic"), list(read_rows("embedded:arithmetic", "test"))
    assert len(train) >= 3000 and len(test) >= 500
    assert not {example.id for example in train} & {row["id"] for row in test}


def test_the_domain_of_the_source_is_that_of_rows_that_name_none(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [GOOD, GOOD | {"domain": "logic"}, GOOD | {"domain": "algebra"}])
    examples = load_examples(path, domain="code")
    assert [example.domain for example in examples] == ["code", "logic", "code"]
    assert [example.meta for example in examples] == [{}, {}, {"domain": "algebra"}]


def test_a_source_is_read_anew_each_time_and_never_held(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"question": f"{i}? " * 5000, "solution": "2"} for i in range(400)])
    source = open_source(path)
    tracemalloc.start()
    assert [sum(1 for _ in source) for _ in range(2)] == [400, 400]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (tmp_path / "a.jsonl").stat().st_size / 10


def test_an_example_is_the_same_after_json(tmp_path):
    turns = [*ASK, SAID, {"role": "user", "content": "2+2?"}]
    whole = Example("a", turns, "4", "4", "logic", "mine", {"level": 3, "options": ["x", "y"]}, True)
    plain = Example("b", ASK, "2")
    path = write_rows(tmp_path / "a.jsonl", [whole.as_row(), plain.as_row()])
    assert load_examples(path) == [whole, plain] == [Example(**row) for row in read_rows(path)]
