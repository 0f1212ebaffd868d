"""Several sources as one set of examples: which rows, how many of each, in what order, under which ids."""

from collections import Counter

import pytest

from helpers import write_rows
from weakdriven.data.rows.mixture import open_sources
from weakdriven.errors import UserError


def source(path, count, **more):
    return {
        "path": write_rows(path, [{"prompt": f"{i}?", "completion": f"{path.stem} {i}"} for i in range(count)]),
        **more,
    }


def mixed(*sources):
    return list(open_sources(sources))


def by_source(examples):
    return Counter(example.id.partition("/")[0] for example in examples)


def test_without_weights_all_rows_are_used_up_to_each_limit(tmp_path):
    examples = mixed(source(tmp_path / "a.jsonl", 30), source(tmp_path / "b.jsonl", 20, limit=7))
    assert by_source(examples) == {"a": 30, "b": 7}
    assert {one.completion for one in examples if one.id[0] == "b"} == {f"b {i}" for i in range(7)}
    assert {example.id for example in examples} == {f"a/{i}" for i in range(1, 31)} | {f"b/{i}" for i in range(1, 8)}


@pytest.mark.parametrize(
    "weights, expected", [([1, 1], (20, 20)), ([3, 1], (60, 20)), ([0.8, 0.2], (80, 20)), ([9, 1], (90, 10))]
)
def test_weights_are_shares_of_the_largest_mixture_that_repeats_no_row(weights, expected, tmp_path):
    sources = [source(tmp_path / "a.jsonl", 90, weight=weights[0]), source(tmp_path / "b.jsonl", 20, weight=weights[1])]
    examples = mixed(*sources)
    assert by_source(examples) == dict(zip("ab", expected, strict=True))
    assert len({example.completion for example in examples}) == len(examples) == open_sources(sources).count()


def test_rows_are_drawn_and_mixed_the_same_way_each_time_and_neither_is_in_file_order(tmp_path):
    sources = [source(tmp_path / "a.jsonl", 200, weight=1), source(tmp_path / "b.jsonl", 50, weight=1)]
    mixture = open_sources(sources)
    first = list(mixture)
    assert list(mixture) == first == mixed(*sources)
    drawn = [int(one.completion.split()[1]) for one in first if one.id[0] == "a"]
    assert drawn == sorted(drawn) and len(drawn) == 50 and max(drawn) > 150 and drawn[:10] != list(range(10))
    halves = by_source(first[:50]), by_source(first[50:])
    assert all(10 < half["a"] < 40 for half in halves), "the sources are not mixed"


def test_ids_that_repeat_between_sources_stay_distinct_also_under_one_file_name(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_rows(tmp_path / folder / "train.jsonl", [{"id": "x", "prompt": "1?", "completion": folder}])
    paths = [str(tmp_path / folder / "train.jsonl") for folder in ("one", "two")]
    assert {(one.id, one.completion) for one in mixed(*({"path": path} for path in paths))} == {
        ("train/x", "one"),
        ("train-2/x", "two"),
    }


def test_sources_may_have_different_layouts_and_names_of_fields(tmp_path):
    (tmp_path / "t.csv").write_text("input,target,text\n1+1?,2,left out\n")
    chat = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
    examples = mixed(
        {"path": str(tmp_path / "t.csv"), "fields": {"prompt": "input", "completion": "target"}},
        {"path": write_rows(tmp_path / "c.jsonl", [chat])},
        {"path": write_rows(tmp_path / "story.jsonl", [{"body": "Once."}]), "fields": {"text": "body"}},
    )
    found = {one.id: ([turn["content"] for turn in one.prompt], one.completion, one.meta) for one in examples}
    assert found == {"t/1": (["1+1?"], "2", {}), "c/1": (["2+2?"], "4", {}), "story/1": ([], "Once.", {})}


def test_one_source_is_read_as_it_is(tmp_path):
    only = source(tmp_path / "a.jsonl", 3, weight=0.2)
    assert [example.id for example in mixed(only)] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "fields, words",
    [
        (
            {"prompt": "question", "completion": "reply"},
            "names reply, which no row has; found the fields question",
        ),
        ({"promt": "question"}, "names promt, which no known layout has; did you mean prompt?"),
        ({"prompt": "question"}, "there is no completion to train on: found the fields answer, prompt"),
    ],
)
def test_fields_that_are_not_there_are_an_error_naming_those_that_are(fields, words, tmp_path):
    path = write_rows(tmp_path / "b.jsonl", [{"question": "1+1?", "answer": "2"}])
    with pytest.raises(UserError, match=words) as error:
        open_sources([source(tmp_path / "a.jsonl", 3), {"path": path, "fields": fields}])
    assert str(error.value).startswith(path)


def test_a_source_without_rows_is_an_error_naming_it(tmp_path):
    with pytest.raises(UserError, match=r"b\.jsonl: there are no rows to train on"):
        open_sources([source(tmp_path / "a.jsonl", 3), source(tmp_path / "b.jsonl", 0)])


def test_a_weight_too_small_for_one_row_is_an_error_naming_the_source(tmp_path):
    with pytest.raises(UserError, match=r"b\.jsonl has such a small weight"):
        mixed(source(tmp_path / "a.jsonl", 3, weight=1), source(tmp_path / "b.jsonl", 50, weight=0.1))


def test_a_bad_row_is_reported_with_its_source_and_a_row_that_is_not_drawn_is_not_judged(tmp_path):
    bad = write_rows(
        tmp_path / "b.jsonl", [{"prompt": "1?", "completion": "b"}] * 30 + [{"prompt": "1?", "completion": ""}]
    )
    with pytest.raises(UserError, match=r"b\.jsonl, row 31: there is no completion"):
        mixed(source(tmp_path / "a.jsonl", 3), {"path": bad})
    assert by_source(mixed(source(tmp_path / "a.jsonl", 3), {"path": bad, "limit": 30}))["b"] == 30
    assert mixed(source(tmp_path / "a.jsonl", 2, weight=1), {"path": bad, "weight": 1})


def test_a_source_that_loses_rows_while_it_is_read_is_reported(tmp_path):
    sources = [source(tmp_path / "a.jsonl", 3), source(tmp_path / "b.jsonl", 300)]
    mixture = open_sources(sources)
    assert mixture.count() == 303
    source(tmp_path / "b.jsonl", 2)
    with pytest.raises(UserError, match=r"b\.jsonl lost rows while it was read"):
        list(mixture)
