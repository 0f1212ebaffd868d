"""Which examples of a set are one problem, which texts of an example are compared, and unique ids."""

import time

import pytest

from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.overlap.decontaminate import NGRAM_SHARE, asked_texts, clean, index_items, worst_overlap
from weakdriven.data.overlap.find import HeldItem


def example(text, gold=None, *, system=None, options=None, id="r"):
    turns = [{"role": "system", "content": system}] if system else []
    meta = {"options": options} if options else {}
    return Example(id, [*turns, {"role": "user", "content": text}], "c", gold=gold, meta=meta)


def kept(examples, domain="math"):
    return [one.id for one in clean(examples, [None] * len(examples), domain, Funnel())]


WHICH = "Which of these numbers is the largest one of all?"


@pytest.mark.parametrize(
    "one, other, repeats",
    [
        (example("Find sin 30 for the triangle", "1/2"), example("Find cos 30 for the triangle", "3/4"), False),
        (example("Find sin 30 for the triangle", "1/2"), example("find sin 30 for the  triangle", " 1/2."), True),
        (example("It costs how much?", "$1,200.00"), example("It costs: how much", "1200"), True),
        (example("It costs how much?"), example("it costs how much"), True),
        (example("Is it?", "-1"), example("Is it?", "1"), False),
        (example(WHICH, "B", options=["1", "7"]), example(WHICH, "A", options=["7", "1"]), True),
        (example(WHICH, "B", options=["one", "ten"]), example(WHICH, "A", options=["ten", "one"]), True),
        (example(WHICH, "B", options=["one", "ten"]), example(WHICH, "B", options=["ten", "one"]), False),
        (example(f"{WHICH}\nA. ten\nB. six", "A"), example(f"{WHICH}\n(A) six\n(B) ten", "B"), True),
        (example(f"{WHICH}\nA. ten\nB. six", "A"), example(f"{WHICH}\nA. five\nB. four", "A"), False),
        (example("Solve it.", system="Ann has 3 pens"), example("Solve it.", system="Bob lost a cat"), False),
        (example("Solve 5 x = 3.", system="Be brief."), example("Solve 5 x = 3", system="Be brief."), True),
    ],
)
def test_two_problems_are_one_only_with_one_answer(one, other, repeats):
    assert len(kept([one, other])) == (1 if repeats else 2)


def test_puzzles_that_say_other_things_in_the_same_words_are_kept():
    said = "On the island Ann says that Bob is a knave and Tom says that Ann is a knight so who of them lies?"
    other = said.replace("Ann", "x").replace("Tom", "Ann").replace("x", "Tom")
    again = said.replace("On the", "On this")
    assert kept([example(said, id="1"), example(other, id="2"), example(again, id="3")], "logic") == ["1", "2"]


def test_every_turn_but_the_assistants_is_compared_and_all_of_them_together():
    said = [("system", "Be brief."), ("user", "Ann has 3 pens."), ("assistant", "So?"), ("user", "How many?")]
    turns = [{"role": role, "content": text} for role, text in said]
    together = "Be brief.\nAnn has 3 pens.\nHow many?"
    assert asked_texts(Example("r", turns, "c")) == ["Be brief.", "Ann has 3 pens.", "How many?", together]
    assert asked_texts(example("How many?")) == ["How many?"]


@pytest.mark.parametrize("system", [None, "Think first. Compute 1 - 2 + 3 - 4 now."])
def test_a_short_item_is_found_in_any_turn(system):
    held = index_items({"math": [HeldItem("math500", "7", "Compute: $1-2+3-4$")]})
    text = "Answer." if system else "Think first. Compute: $1-2+3-4$. Then box it."
    found = worst_overlap(asked_texts(example(text, system=system)), held, NGRAM_SHARE)
    assert found and (found.kind, found.id) == ("ngram", "7")


def test_ids_become_unique_in_a_time_that_grows_with_the_rows():
    rows = [example(f"Row {number}", id="train#2" if number == 1 else "train") for number in range(20_000)]
    start = time.process_time()
    ids = kept(rows)
    assert len(set(ids)) == len(rows) and ids[:4] == ["train", "train#2", "train#3", "train#4"]
    assert time.process_time() - start < 30, "trying all numbers for each row takes minutes"
