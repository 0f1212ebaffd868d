"""Which rows are taken out for validation, and rows that are in both sets."""

import pytest

from weakdriven.data.example import Example
from weakdriven.data.validation import is_taken, refuse_rows_in_both
from weakdriven.errors import UserError


def row(number, *, completion="4", system="", **more):
    turns = [{"role": "system", "content": system}] * bool(system)
    turns.append({"role": "user", "content": f"What is {number} + 2?"})
    return Example(str(more.pop("id", number)), turns, completion, **more)


def taken(rows, share):
    return {one.id for one in rows if is_taken(one, share)}


def test_a_larger_share_takes_the_same_rows_and_more_and_about_as_many_as_it_says():
    rows = [row(number) for number in range(2000)]
    small, large = taken(rows, 0.05), taken(rows, 0.3)
    assert small < large and 60 < len(small) < 140 and 520 < len(large) < 680


def test_rows_that_are_added_moved_or_renamed_change_nothing_for_the_others():
    rows = [row(number) for number in range(300)]
    more = [row(number) for number in range(299, -200, -1)]
    assert taken(rows, 0.2) == taken(more, 0.2) & {one.id for one in rows}
    renamed = [row(number, id=f"x{number}", gold="4", source="new") for number in range(300)]
    assert {one.removeprefix("x") for one in taken(renamed, 0.2)} == taken(rows, 0.2)


def test_rows_with_one_prompt_are_on_one_side_whatever_their_completion_and_system_prompt():
    for number in range(50):
        same = [row(number), row(number, completion="five"), row(number, system="Be brief.")]
        assert len({is_taken(one, 0.5) for one in same}) == 1


def test_rows_without_a_prompt_are_told_apart_by_their_text():
    rows = [Example(str(number), [], f"Story {number}") for number in range(400)]
    assert 10 < len(taken(rows, 0.1)) < 80


def test_the_rows_in_both_sets_are_counted_and_named():
    training = [row(number, id=f"t{number}") for number in range(20)]
    refuse_rows_in_both([row(3, completion="another"), row(99)], training, "val.jsonl")
    with pytest.raises(UserError, match=r"^2 rows of data.validation are training rows.* '3' .*'t3'"):
        refuse_rows_in_both([row(3), row(99), row(7)], training, "val.jsonl")
