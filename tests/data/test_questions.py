"""The wording of user messages."""

import pytest

from weakdriven.data.questions import bare, code_question, contest_question, logic_question, math_question

COMPLETE = 'from math import pi\n\n\ndef area(r: float) -> float:\n    """Area of a circle."""\n'
ENGLISH = '"""\nWrite a function that adds one.\nassert add_one(3) == 4\n"""\n'


def test_a_math_question_without_options_is_asked_as_it_is():
    assert math_question("  What is 1+1?\n") == "What is 1+1?"


def test_options_are_lettered_and_a_letter_is_asked_for():
    asked = math_question("What is 1+1?", ["1", " 2", "3"])
    assert asked == "What is 1+1?\n\n(A) 1\n(B) 2\n(C) 3\n\nAnswer with the letter of one option."


def test_a_logic_question_has_context_question_and_options():
    asked = logic_question("It rains.", "What follows?", ["Wet.", "Dry.", "Cold.", "Hot."])
    assert asked == "It rains.\n\nWhat follows?\n\n(A) Wet.\n(B) Dry.\n(C) Cold.\n(D) Hot."


def test_a_function_that_has_begun_is_to_be_completed():
    asked = code_question(COMPLETE, "area")
    assert asked.startswith("Complete this Python program")
    assert asked.endswith(f"```python\n{COMPLETE.strip()}\n```")


def test_an_english_docstring_is_asked_in_words_with_its_assert():
    asked = code_question(ENGLISH, "add_one")
    assert asked == (
        "Write a function that adds one.\n\nThe code must pass this test:\n\n```python\nassert add_one(3) == 4\n```"
    )


def test_english_without_an_assert_shows_the_first_one_of_the_test():
    test = "import math\nassert add_one(\n    1) == 2\nassert add_one(2) == 3"
    assert "```python\nassert add_one(\n    1) == 2\n```" in code_question("Add one.", "add_one", test)


def test_without_any_assert_the_function_is_at_least_named():
    assert code_question("Add one.", "add_one", "def check(f): ...") == "Add one.\n\nName the function `add_one`."
    assert "`add_one`" in code_question("Add one.", "add_one", "this is not Python")


def test_a_longer_name_is_not_the_function_asked_for():
    assert not code_question("def area_of(r):\n", "area").startswith("Complete")


def test_a_contest_problem_reads_stdin_or_uses_its_starter_code():
    assert "stdin" in contest_question("Sum the numbers.") and "stdout" in contest_question("Sum the numbers.")
    starter = "class Solution:\n    def total(self, a: List[int]) -> int:\n        "
    asked = contest_question("Sum the numbers.", starter)
    assert "stdin" not in asked and asked.endswith(f"```python\n{starter.strip()}\n```")


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (math_question("What is 1+1?", ["1", "2"]), "What is 1+1?"),
        (math_question("Which of (A) and (B)\nis right?"), "Which of (A) and (B)\nis right?"),
        (logic_question("It rains.", "What follows?", ["Wet.", "Dry.", "Cold."]), "It rains.\n\nWhat follows?"),
        (code_question(COMPLETE, "area"), COMPLETE.strip()),
        (code_question(ENGLISH, "add_one"), "Write a function that adds one.\nassert add_one(3) == 4"),
        (code_question("Add one.", "add_one"), "Add one."),
        (contest_question("Sort a list."), "Sort a list."),
        (contest_question("Sort a list.", "class Solution:"), "Sort a list.\nclass Solution:"),
    ],
)
def test_a_bare_problem_has_none_of_the_words_added_here(asked, text):
    assert bare(asked).split() == text.split()
