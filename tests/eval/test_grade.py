"""Finding and checking boxed answers."""

import pytest

from weakdriven.eval.grade import Graded, grade_math, last_boxed


@pytest.mark.parametrize(
    "text, found",
    [
        (r"so \boxed{12}.", "12"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\sqrt{\frac{a_{1}}{b}}} and more {}", r"\sqrt{\frac{a_{1}}{b}}"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{1}, then \boxed{2", "1"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{}", ""),
        (r"\boxed{a" + "\n" + "b}", "a\nb"),
        (r"\boxed{1", None),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed", None),
        ("the answer is 12", None),
        ("", None),
    ],
)
def test_the_last_complete_box_is_found(text, found):
    assert last_boxed(text) == found


@pytest.mark.parametrize(
    "answer, gold, correct, why",
    [
        ("12", "12", True, "same text"),
        (" 12 ", "12", True, "spaces do not matter"),
        ("12.0", "12", True, "same number"),
        ("13", "12", False, "another number"),
        ("-12", "12", False, "the sign matters"),
        ("12.0001", "12", False, "close is not equal"),
        (r"\frac{2}{4}", r"\frac{1}{2}", True, "equal fractions"),
        (r"\dfrac12", r"\frac{1}{2}", True, "another way to write a fraction"),
        ("0.5", r"\frac{1}{2}", True, "decimal of a fraction"),
        ("0.333", r"\frac{1}{3}", False, "a rounded fraction"),
        (r"\frac{1}{2}", r"\frac{2}{1}", False, "the reciprocal"),
        ("1,000", "1000", True, "thousands separator"),
        (r"2\sqrt{2}", r"\sqrt{8}", True, "equal roots"),
        (r"\pi", "3.14159", False, "pi is not its decimals"),
        ("1+x", "x+1", True, "terms in another order"),
        ("x^2", "2x", False, "another expression"),
        ("x=5", "5", True, "a solved variable"),
        ("(1, 2)", "(1,2)", True, "pairs with a space"),
        ("(2,1)", "(1,2)", False, "pairs are ordered"),
        (r"\{2,1\}", r"\{1,2\}", True, "sets are not"),
        ("(1,2)", "[1,2]", False, "open and closed intervals"),
        (r"50\%", "50", True, "a percent sign that the gold answer leaves out"),
        (r"50\%", "0.5", True, "percent as a share"),
        (r"50\%", "5", False, "another percentage"),
        (r"5\text{ cm}", "5", True, "a unit that the gold answer leaves out"),
        (r"6\text{ cm}", r"5\text{ cm}", False, "the number decides where units agree"),
        (r"\text{Monday}", "Monday", True, "text in a text box"),
        (r"\text{Monday}", r"\text{Tuesday}", False, "another text"),
        ("", "5", False, "an empty box"),
    ],
)
def test_answers_are_graded_by_value(answer, gold, correct, why):
    graded = grade_math(rf"So the answer is \boxed{{{answer}}}.", gold)
    assert graded.correct is correct, why
    assert graded.answer == answer


@pytest.mark.parametrize("unit", [r"\text{ m}", r"\text{ kg}"])
def test_units_that_differ_are_ignored_because_math_verify_drops_them(unit):
    """A known leniency of the verifier, written down so that a change of it is noticed."""
    assert grade_math(r"\boxed{5\text{ cm}}", "5" + unit) == Graded(True, r"5\text{ cm}", "math-verify")


@pytest.mark.parametrize(
    "text, gold, graded",
    [
        ("It is 12.", "12", Graded(False, None, "no boxed answer")),
        (r"It is \boxed{12", "12", Graded(False, None, "no boxed answer")),
        (r"\boxed{12}, or rather \boxed{13}.", "12", Graded(False, "13", "different value")),
        (r"\boxed{13}, or rather \boxed{12}.", "12", Graded(True, "12", "same text")),
        (r"\boxed{24/2}", "12", Graded(True, "24/2", "math-verify")),
    ],
)
def test_the_verdict_says_what_was_graded_and_why(text, gold, graded):
    assert grade_math(text, gold) == graded


@pytest.mark.parametrize(
    "garbage",
    [
        r"\frac{}{}",
        r"\frac{1}{0}",
        r"\sqrt[",
        r"\left( 1",
        r"\begin{matrix} 1 & 2 \\",
        r"^_^_^",
        "$$$",
        "\\" * 51,
        "5\x00",
        "\U0001f600",
        "9" * 400,
        "x" * 100,
    ],
)
def test_garbage_is_wrong_and_does_not_raise(garbage):
    assert not grade_math(rf"\boxed{{{garbage}}}", "7").correct
    assert not grade_math(r"\boxed{7}", garbage).correct
