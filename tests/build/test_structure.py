"""The form that a completion must have, and the counts of what had it."""

import pytest

from weakdriven.data.example import Example
from weakdriven.data.funnel import EXAMPLES, Funnel
from weakdriven.data.overlap.decontaminate import NGRAM_SHARE, asked_texts, clean, index_items, worst_overlap
from weakdriven.data.overlap.find import HeldItem
from weakdriven.data.structure import has_box, in_style, structure_fault, with_reasoning

GOOD = "<think>1+1 is 2.</think>\n\n<answer>\\boxed{2}</answer>"


@pytest.mark.parametrize(
    "completion, style, fault",
    [
        (GOOD, "tagged", None),
        (f"\n{GOOD}\n", "tagged", None),
        ("2", "tagged", "found 0 <think>"),
        (GOOD + GOOD, "tagged", "found 2 <think>"),
        (GOOD + " Bye.", "tagged", "nothing around them"),
        ("Well. " + GOOD, "tagged", "nothing around them"),
        ("<answer>2</answer><think>1</think>", "tagged", "nothing around them"),
        ("<think>1<answer>2</think></answer>", "tagged", "nothing around them"),
        ("<think> </think><answer>2</answer>", "tagged", "the thought between the markers is empty"),
        ("<think>1</think><answer>\n</answer>", "tagged", "the answer between the markers is empty"),
        ("", "tagged", "found 0 <think>"),
        (GOOD, "tag-free", None),
        ("2", "tag-free", None),
        ("<think>1+1 is", "tag-free", "cut off"),
        ("<think> </think><answer></answer>", "tag-free", "empty"),
        ("2", "plain", None),
        (" ", "plain", "empty"),
    ],
)
def test_a_completion_has_the_form_of_its_style(completion, style, fault):
    found = structure_fault(completion, style)
    assert found is None if fault is None else fault in str(found)


def test_what_is_learned_keeps_tags_only_where_they_are_asked_for():
    assert in_style(GOOD, "tagged") == in_style(GOOD, "plain") == GOOD
    assert in_style(GOOD, "tag-free") == "1+1 is 2.\n\n\\boxed{2}"


def test_a_box_in_the_reasoning_is_no_answer():
    assert has_box(GOOD) and not has_box("<think>\\boxed{2}</think>2") and not has_box("\\boxedtext")


def test_a_funnel_names_the_first_rows_and_survives_json():
    funnel = Funnel()
    for number in range(EXAMPLES + 2):
        funnel.drop("late", str(number), "x" * 999)
    funnel.keep()
    funnel.merge(Funnel(kept=1, dropped={"late": 1, "lost": 1}, first={"late": [{"id": "z", "detail": ""}]}))
    assert (funnel.seen, funnel.kept, funnel.dropped) == (EXAMPLES + 6, 2, {"late": EXAMPLES + 3, "lost": 1})
    assert [one["id"] for one in funnel.first["late"]] == [str(number) for number in range(EXAMPLES)]
    assert Funnel.from_json(funnel.to_json()).to_json() == funnel.to_json()


STOCK = "Which one of the following is most strongly supported by the information in the passage given above?"


@pytest.mark.parametrize("share, kept", [(None, 1), (0.0, 0), (0.2, 1)])
def test_a_stock_phrase_of_logic_is_no_overlap(share, kept):
    held = index_items({"logic": [HeldItem("logiqa2", "1", " ".join(f"w{n}" for n in range(90)) + " " + STOCK)]})
    example = Example("1", [{"role": "user", "content": f"All cats sleep at noon, and so do owls. {STOCK}"}], "")
    shares = NGRAM_SHARE if share is None else {"logic": share}
    overlap = worst_overlap(asked_texts(example), held, shares)
    assert len(list(clean([example], [overlap], "logic", Funnel()))) == kept


def test_a_teacher_that_writes_its_markers_beside_its_reasoning_is_taken_at_its_word():
    text = "<think>a</think><answer>b</answer>"
    assert with_reasoning("r", text, "tagged") == text
    assert with_reasoning("r", "<answer>b</answer>", "tagged") == "<think>r</think>\n<answer>b</answer>"
