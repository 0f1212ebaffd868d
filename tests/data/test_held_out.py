"""Rows that ask a benchmark's question: which are found, what is left, and what the error says."""

import pytest

from weakdriven.data.example import Example
from weakdriven.data.overlap.find import HeldItem
from weakdriven.data.overlap.held_out import HeldOut, Hit, keep_out
from weakdriven.data.questions import code_question, logic_question, math_question
from weakdriven.data.rows.sources import load_examples
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import load_items

PENS = "Ann has 3 pens and buys 1,200 more. How many pens?"
ITEMS = [HeldItem("gsm8k", "g7", PENS), HeldItem("aqua", "a1", math_question("What is x?", ["1", "2"]))]
ITEMS += [
    HeldItem("math500", "m1", "Simplify $\\frac{a}{b}(12,500)\\cdot 3$"),
    HeldItem("math500", "m2", "Simplify $\\sqrt{242}$."),
]
HELD = HeldOut(ITEMS)


def ask(*turns, id="r", completion="7"):
    """Turns of the user, with a reply between two of them."""
    messages = [{"role": "user", "content": turn} for turn in turns for _ in range(2)][:-1]
    messages[1::2] = [{"role": "assistant", "content": "Yes."}] * (len(turns) - 1)
    return Example(id, messages, completion)


@pytest.mark.parametrize(
    "asked, item",
    [
        ([PENS], "g7"),
        (["  ann HAS 3 pens, and buys 1200 more – how many pens"], "g7"),
        (["What is x?"], "a1"),
        ([math_question("What is x?", ["5", "6", "7"])], "a1"),
        (["Hello!", PENS, "Thanks."], "g7"),
        (["Ann has 3 pens", "and buys 1,200 more. How many pens?"], "g7"),
        (["Ann has 4 pens and buys 1,200 more. How many pens?"], None),
        ([f"{PENS} Explain."], "g7"),
        ([f"Return your final answer within \\boxed{{}}. {PENS}\n\nLet's think step by step."], "g7"),
        (["Tell me what is x? Please."], None),
        (["What is x?\nA)5\nB)6\nC)7"], "a1"),
        (["What is x?\nA. 5\n\nB. 6"], "a1"),
        (["What is x?\nA: 5\nB: 6"], "a1"),
        (["What is\u200b x?\n(A) 5\n(B) 6\n\nAnswer with\u200b the letter of one option."], "a1"),
        (["Simplify \\dfrac{a}{b} \\left( 12,\\!500 \\right) \\cdot 3."], "m1"),
        (["I think $\\sqrt{242}$ is odd."], None),
        (["Simplify $\\sqrt{242}$ for me."], "m2"),
        (["?!"], None),
    ],
)
def test_the_same_question_is_found_however_it_is_written(asked, item):
    hit = HELD.find(ask(*asked))
    assert (hit and hit.item) == item


def test_a_question_in_a_system_prompt_is_found():
    turns = [{"role": "system", "content": PENS}, {"role": "user", "content": "Answer it."}]
    assert HELD.find(Example("r", turns, "x")) == Hit("r", "gsm8k", "g7")


def test_a_question_in_plain_text_is_found():
    held = HeldOut([HeldItem("gsm8k", "7", "Ann has 3 pens. How many pens are there?")])
    text = Example("r", [], "Exercise 1: Ann has 3 pens; how many pens are there? Three.")
    assert held.find(text) == Hit("r", "gsm8k", "7") and held.find(Example("r", [], "Ann has pens.")) is None


def test_an_item_counts_only_if_all_of_it_is_there():
    words = [f"w{number}" for number in range(20)]
    held = HeldOut([HeldItem("b", "1", " ".join(words))])
    assert held.find(ask(f"before {' '.join(words)} after")) == Hit("r", "b", "1")
    assert held.find(ask(f"before {' '.join(words[:19])} after")) is None


def test_what_is_said_to_the_user_is_no_question():
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": PENS},
        {"role": "user", "content": "So?"},
    ]
    assert HELD.find(Example("r", said, "x")) is None


@pytest.mark.parametrize(
    "benchmark, question",
    [
        ("humaneval_plus", code_question('def f(x):\n    """Twice x."""\n', "f")),
        ("logiqa2", logic_question("All cats sleep.", "So?", ["a", "b"])),
    ],
)
def test_code_and_logic_are_compared_without_what_all_of_them_share(benchmark, question):
    held = HeldOut([HeldItem(benchmark, "1", question)])
    assert held.find(ask(question)) == Hit("r", benchmark, "1")
    assert held.find(ask(question.replace("(A) a", "(A) other"))) == Hit("r", benchmark, "1")


def test_items_without_a_word_hold_nothing_out():
    assert HeldOut([HeldItem("b", "1", "???")]).find(ask("!")) is None


def test_the_key_is_that_of_the_questions_in_any_order():
    assert HELD.key == HeldOut(ITEMS[::-1]).key != HeldOut(ITEMS[:1]).key


def test_dropped_rows_are_left_out_and_reported():
    found = []
    left = list(keep_out([ask("a", id="1"), ask(PENS, id="2"), ask("b", id="3")], HELD, found, drop=True))
    assert [example.id for example in left] == ["1", "3"] and found == [Hit("2", "gsm8k", "g7")]


def test_an_error_counts_all_rows_names_the_first_and_stops_handing_out_rows():
    rows = [ask("a", id="1"), *(ask(PENS, id=f"p{i}") for i in range(6)), ask("b", id="9")]
    handed = []
    with pytest.raises(UserError) as error:
        handed += keep_out(rows, HELD, [], drop=False)
    text = str(error.value)
    assert text.startswith("6 of 8 training rows contain a question of a benchmark in eval.benchmarks: 'p0' (g7 of g")
    assert "'p4'" in text and "'p5'" not in text and "weakdriven data build" in text and "data.held_out" in text
    generated = keep_out(rows, HELD, [], drop=False)
    assert next(generated).id == "1"
    with pytest.raises(UserError):
        next(generated)


def test_nothing_left_is_an_error_also_where_rows_are_dropped():
    with pytest.raises(UserError, match=r"Nothing is left to train on: 1 of 1 training rows contain .*'r' \(g7 of g"):
        list(keep_out([ask(PENS)], HELD, [], drop=True))


def test_a_row_without_a_completion_is_nobodys_error():
    assert len(list(keep_out([ask(PENS, completion=" ")], HELD, [], drop=False))) == 1


def test_no_problem_of_the_demo_is_in_its_test_set():
    held = HeldOut(HeldItem("arithmetic", item.id, item.question) for item in load_items("arithmetic", None))
    examples = load_examples("embedded:arithmetic")
    assert len(list(keep_out(examples, held, [], drop=False))) == len(examples) == 3200
