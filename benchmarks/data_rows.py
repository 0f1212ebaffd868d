"""Synthetic rows for benchmarks/data.py: questions with the word frequencies of a language, and answers like R1's."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from weakdriven.data.overlap.find import HeldItem

WORDS = 40
VOCABULARY = [f"w{number:x}".translate(str.maketrans("0123456789", "ghijklmnop")) for number in range(50_000)]
WEIGHTS = [1 / (rank + 10) for rank in range(len(VOCABULARY))]
WRONG = 0.15
"""Share of math rows with a wrong boxed answer."""
REWRITTEN = 0.5
"""Share of right answers, except whole numbers, that are written differently from the gold."""


def make_questions(count: int, items: int) -> tuple[list[str], list[HeldItem]]:
    """Make questions of 40 words; four of five have three numbers, the fifth has none and differs only in its words.

    One in twenty is a copy, one in twenty a near copy, one in a hundred a held-out item.
    """
    rng = random.Random(0)
    drawn = iter(rng.choices(VOCABULARY, WEIGHTS, k=WORDS * (count + items)))

    def text(number: int) -> str:
        words = [next(drawn) for _ in range(WORDS)]
        for place in range(3 if number % 5 else 0):
            words[10 * place] = str(rng.randint(1, 200))
        return " ".join(words)

    held = [HeldItem("made-up", str(number), text(number)) for number in range(items)]
    rows = [text(number) for number in range(count)]
    for number in range(count // 20, count):
        if number % 20 == 7:
            rows[number] = rows[rng.randrange(number)].upper()
        elif number % 20 == 13:
            rows[number] = rows[rng.randrange(number)] + " once more"
        elif number % 100 == 50:
            rows[number] = rng.choice(held).text
    return rows, held


def math_rows(count: int, questions: list[str], seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yield rows like those of AM-DeepSeek-R1-Distilled: 500 to 4,000 characters of reasoning, one boxed answer."""
    rng = random.Random(seed)
    filling = " ".join(rng.choices(VOCABULARY, WEIGHTS, k=20_000))
    kinds, weights = zip(*ANSWERS, strict=True)
    for number in range(count):
        (make,) = rng.choices(kinds, weights)
        gold, otherwise, wrong = make(rng)
        answer = gold
        if rng.random() < WRONG:
            answer = wrong
        elif rng.random() < REWRITTEN:
            answer = otherwise
        start, length = rng.randrange(len(filling) - 4000), rng.randint(400, 3800)
        thought = f"{filling[start : start + length]}, so $x = {gold}$. Wait, let me check that again."
        said = (
            f"<think>\n{thought}\n</think>\n<answer>\nTherefore the answer is\n\\[\n\\boxed{{{answer}}}\n\\]\n</answer>"
        )
        info = {"source": "made-up", "reference_answer": gold, "test_case": None}
        yield {
            "messages": [
                {"role": "user", "content": questions[number % len(questions)], "info": info},
                {"role": "assistant", "content": said, "info": {"source": "r1"}},
            ]
        }


Answers = tuple[str, str, str]
"""The gold, the same value written differently, another value."""


def whole(rng: random.Random) -> Answers:
    number = rng.choice([rng.randint(-20, 100), rng.randint(100, 2_000_000)])
    return str(number), rng.choice([f"{number:,}", f"x={number}", f"{number}\\text{{ cm}}"]), str(number + 1)


def same_whole(rng: random.Random) -> Answers:
    gold, _, wrong = whole(rng)
    return gold, gold, wrong


def decimal(rng: random.Random) -> Answers:
    number = rng.randint(1, 99_999) / 100
    return f"{number:.2f}", rng.choice([f"{number}0", f"\\${number:.2f}", f"{number:.2f}\\%"]), f"{number + 0.1:.2f}"


def fraction(rng: random.Random) -> Answers:
    over, under = rng.randint(1, 400), rng.choice([3, 7, 8, 11, 13, 16, 25, 60])
    others = [f"\\dfrac{{{over}}}{{{under}}}", f"{over}/{under}", f"\\frac{{{2 * over}}}{{{2 * under}}}"]
    return f"\\frac{{{over}}}{{{under}}}", rng.choice(others), f"\\frac{{{over + 1}}}{{{under}}}"


def root(rng: random.Random) -> Answers:
    a, b, c = rng.randint(1, 30), rng.randint(2, 30), rng.choice([2, 3, 5, 7, 11, 13])
    return f"{a}+{b}\\sqrt{{{c}}}", f"{b}\\sqrt{{{c}}} + {a}", f"{a}-{b}\\sqrt{{{c}}}"


def multiple_of_pi(rng: random.Random) -> Answers:
    a, b = rng.randint(1, 200), rng.choice([2, 3, 4, 6])
    return f"\\frac{{{a}\\pi}}{{{b}}}", f"\\frac{{{a}}}{{{b}}}\\pi", f"\\frac{{{a}\\pi}}{{{b + 1}}}"


def polynomial(rng: random.Random) -> Answers:
    a, b, c = (rng.randint(2, 60) for _ in range(3))
    return f"{a}x^2 + {b}x - {c}", f"-{c}+{b}x+{a}x^{{2}}", f"{a}x^2 - {b}x - {c}"


def equation(rng: random.Random) -> Answers:
    a, b = rng.randint(2, 90), rng.randint(1, 90)
    return f"y = {a}x + {b}", f"{a}x + {b}", f"y = {a}x - {b}"


def interval(rng: random.Random) -> Answers:
    a, b = rng.randint(-200, 0), rng.randint(1, 200)
    return f"[{a}, {b})", f"\\left[{a},{b}\\right)", f"({a}, {b}]"


def point(rng: random.Random) -> Answers:
    a, b, c = (rng.randint(-60, 60) for _ in range(3))
    return f"({a}, {b}, {c})", f"\\left({a},\\,{b},\\,{c}\\right)", f"({a}, {c + 1}, {b})"


def several(rng: random.Random) -> Answers:
    a, b = rng.randint(-90, 0), rng.randint(1, 90)
    return f"{a}, {b}", f"{b}, {a}", f"{a}, {b + 1}"


def words(rng: random.Random) -> Answers:
    letter, other = rng.sample("ABCDE", 2)
    return letter, f"\\text{{({letter})}}", other


ANSWERS: list[tuple[Callable[[random.Random], Answers], int]] = [
    (same_whole, 35),
    (whole, 10),
    (decimal, 8),
    (fraction, 16),
    (root, 6),
    (multiple_of_pi, 4),
    (polynomial, 5),
    (equation, 3),
    (interval, 3),
    (point, 4),
    (several, 3),
    (words, 3),
]
"""Kinds of answers and their percentages: about those of MATH, with fewer whole numbers."""
