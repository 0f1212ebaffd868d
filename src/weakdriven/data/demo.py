"""Multi-step arithmetic word problems with worked solutions, generated from a seed: the task of the demo.

A problem is a list of operations on a running number. Its wording is chosen independently of its numbers, and no two
problems have the same operations with the same numbers, so no test item is a reworded training problem.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle

LEVELS = (2, 3, 4, 5)
"""Difficulty of a problem: the number of calculations in its solution."""
TRAIN_ITEMS, TEST_ITEMS = 3200, 512
VERSION = 1
"""Raised when the generated problems change, so that finished runs are redone."""
LARGEST = 150

NAMES = ("Mia", "Tom", "Lena", "Ravi", "Noah", "Sara", "Omar", "Ana")
SIGNS = {"add": "+", "add_groups": "+", "take": "-", "take_groups": "-", "times": "*", "share": "/"}
THINGS = ("apples", "books", "coins", "stamps", "shells", "cards", "pens", "marbles")


@dataclass(frozen=True)
class Step:
    """One event of the story; `kind` is one of SIGNS."""

    kind: str
    amount: int
    size: int = 0

    @property
    def calculations(self) -> int:
        return 2 if self.size else 1

    def apply(self, value: int) -> int:
        amount = self.amount * (self.size or 1)
        results = {"+": value + amount, "-": value - amount, "*": value * amount, "/": value // amount}
        return results[SIGNS[self.kind]]


@dataclass(frozen=True)
class Problem:
    start: int
    steps: tuple[Step, ...]
    name: str
    thing: str
    wording: int

    @property
    def level(self) -> int:
        return sum(step.calculations for step in self.steps)

    @property
    def answer(self) -> int:
        value = self.start
        for step in self.steps:
            value = step.apply(value)
        return value

    @property
    def question(self) -> str:
        events = [f"{self.name} has {self.start} {self.thing}."]
        events += [self.event(i, step) for i, step in enumerate(self.steps)]
        return " ".join([*events, f"How many {self.thing} does {self.name} have now?"])

    def event(self, i: int, step: Step) -> str:
        a, b, thing, who = step.amount, step.size, self.thing, self.name if i == 0 else "Then " + self.name
        choices = {
            "add": (f"{who} buys {a} more.", f"{who} finds {a} {thing}.", f"{who} gets {a} {thing} from a friend."),
            "take": (f"{who} gives away {a}.", f"{who} loses {a} {thing}.", f"{who} sells {a} {thing}."),
            "times": (f"{who} trades and has {a} times as many.", f"{who} wins and has {a} times as many {thing}."),
            "share": (f"{who} shares them among {a} boxes and keeps one box.", f"{who} keeps one of {a} equal parts."),
            "add_groups": (f"{who} buys {a} bags of {b} {thing}.", f"{who} gets {a} boxes with {b} {thing} each."),
            "take_groups": (
                f"{who} gives {b} {thing} to each of {a} friends.",
                f"{who} sells {a} bags of {b} {thing}.",
            ),
        }[step.kind]
        return choices[(self.wording >> i) % len(choices)]

    @property
    def equations(self) -> list[str]:
        value, lines = self.start, []
        for step in self.steps:
            a, b, after = step.amount, step.size, step.apply(value)
            if step.size:
                lines.append(f"{a} * {b} = {a * b}.")
            lines.append(f"{value} {SIGNS[step.kind]} {a * (b or 1)} = {after}.")
            value = after
        return lines

    @property
    def solution(self) -> str:
        return " ".join([*self.equations, f"The answer is \\boxed{{{self.answer}}}."])


def random_problem(rng: random.Random, level: int) -> Problem:
    """Draw a problem that needs `level` calculations and whose numbers stay in 1..LARGEST."""
    value = start = rng.randint(3, 60)
    steps: list[Step] = []
    left = level
    while left:
        step = _random_step(rng, value, left)
        steps.append(step)
        value, left = step.apply(value), left - step.calculations
    return Problem(start, tuple(steps), rng.choice(NAMES), rng.choice(THINGS), rng.getrandbits(16))


def _random_step(rng: random.Random, value: int, left: int) -> Step:
    while True:
        kind = rng.choice(("add", "take", "times", "share") + (("add_groups", "take_groups") if left > 1 else ()))
        amount, size = rng.randint(2, 9), 0
        if kind in ("add", "take"):
            amount = rng.randint(2, 40)
        elif kind.endswith("groups"):
            size = rng.randint(2, 12)
        if kind == "share" and value % amount:
            continue
        step = Step(kind, amount, size)
        if 1 <= step.apply(value) <= LARGEST:
            return step


def problem_stream(seed: int) -> Iterator[Problem]:
    """Yield endless problems, cycling through the levels, without repeating numbers and operations."""
    rng, seen = random.Random(seed), set()
    for level in cycle(LEVELS):
        problem = random_problem(rng, level)
        while (problem.start, problem.steps) in seen:
            problem = random_problem(rng, level)
        seen.add((problem.start, problem.steps))
        yield problem


def demo_problems(split: str, seed: int = 42) -> list[Problem]:
    """Return the demo's `train` or `test` problems; both are from one stream, so no problem is in both."""
    stream = problem_stream(seed)
    test = [next(stream) for _ in range(TEST_ITEMS)]
    return test if split == "test" else [next(stream) for _ in range(TRAIN_ITEMS)]


def demo_rows(split: str) -> list[dict]:
    """Return the problems of a split as rows with the fields of JSONL files."""
    return [dict(row) for row in _rows_once(split)]


@cache  # because a run reads them several times
def _rows_once(split: str) -> list[dict]:
    return [
        {
            "id": f"arithmetic-{split}-{i}",
            "question": problem.question,
            "solution": problem.solution,
            "answer": str(problem.answer),
            "level": problem.level,
        }
        for i, problem in enumerate(demo_problems(split))
    ]
