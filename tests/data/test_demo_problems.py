"""The embedded task: sizes, no leakage, correct arithmetic."""

import re
from collections import Counter

import pytest

from weakdriven.data.demo import LARGEST, LEVELS, Step, demo_problems, demo_rows
from weakdriven.models.load import EMBEDDED, locate_model

TRAIN, TEST = demo_problems("train"), demo_problems("test")
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)\.")
CALCULATE = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}


def each_problem(test):
    return pytest.mark.parametrize("problems", [TRAIN, TEST], ids=["train", "test"])(test)


def test_there_are_enough_problems():
    assert len(TRAIN) >= 3000
    assert len(TEST) >= 500


def test_no_problem_has_a_twin_in_either_split():
    numbers = [(problem.start, problem.steps) for problem in TRAIN + TEST]
    assert len(set(numbers)) == len(numbers)


def test_no_question_of_the_test_set_is_in_the_training_set():
    assert not {problem.question for problem in TRAIN} & {problem.question for problem in TEST}


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_same_seed_gives_the_same_problems_and_another_seed_others(split):
    assert demo_problems(split) == (TRAIN if split == "train" else TEST)
    assert demo_problems(split, seed=7) != demo_problems(split)


@each_problem
def test_every_solution_is_a_chain_of_true_equations_that_ends_in_the_boxed_answer(problems):
    for problem in problems:
        equations = [(int(a), sign, int(b), int(c)) for a, sign, b, c in EQUATION.findall(problem.solution)]
        assert EQUATION.sub("", problem.solution).strip() == f"The answer is \\boxed{{{equations[-1][3]}}}."
        running = int(re.search(r" has (\d+) ", problem.question).group(1))
        for (a, sign, b, c), following in zip(equations, [*equations[1:], None], strict=True):
            assert CALCULATE[sign](a, b) == c, problem.solution  # true division, so only exact ones pass
            groups = sign == "*" and following in [(running, "+", c, running + c), (running, "-", c, running - c)]
            if not groups:  # they are counted before they are added or taken
                assert a == running, problem.solution
                running = c
        assert running == equations[-1][3] == problem.answer


@each_problem
def test_no_value_leaves_the_allowed_range(problems):
    for problem in problems:
        numbers = [problem.start, *map(int, re.findall(r"\d+", problem.solution))]
        assert all(1 <= number <= LARGEST for number in numbers)


@each_problem
def test_levels_are_equally_frequent_and_count_the_calculations(problems):
    assert Counter(problem.level for problem in problems) == {level: len(problems) // 4 for level in (2, 3, 4, 5)}
    assert LEVELS == (2, 3, 4, 5)
    assert all(problem.level == len(EQUATION.findall(problem.solution)) for problem in problems)


@each_problem
def test_every_number_of_the_story_is_in_its_question(problems):
    for problem in problems:
        told = Counter(int(n) for n in re.findall(r"\d+", problem.question))
        meant = [problem.start, *(n for step in problem.steps for n in (step.amount, step.size) if n)]
        assert told == Counter(meant)


@pytest.mark.parametrize(
    "step, after",
    [
        (Step("add", 5), 17),
        (Step("take", 5), 7),
        (Step("times", 5), 60),
        (Step("share", 4), 3),
        (Step("add_groups", 2, 3), 18),
        (Step("take_groups", 2, 3), 6),
    ],
)
def test_each_kind_of_step_does_what_it_says(step, after):
    assert step.apply(12) == after


@pytest.mark.parametrize("split, problems", [("train", TRAIN), ("test", TEST)])
def test_rows_hold_the_problems_with_unique_ids(split, problems):
    rows = demo_rows(split)
    assert len({row["id"] for row in rows}) == len(rows) == len(problems)
    assert all(
        row["answer"] == str(p.answer) and row["level"] == p.level for row, p in zip(rows, problems, strict=True)
    )
    assert [(row["question"], row["solution"]) for row in rows] == [(p.question, p.solution) for p in problems]


def test_the_embedded_model_is_small_enough_to_ship():
    folder = locate_model(EMBEDDED)
    assert 0 < sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 12e6
