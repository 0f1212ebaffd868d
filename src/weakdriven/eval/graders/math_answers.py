"""Whether a boxed answer has the value of the gold answer: plain text and whole numbers here, the rest in a worker."""

import re

from weakdriven.eval.graders.answers import (
    BAD_GOLD,
    DIFFERENT,
    EMPTY_BOX,
    NO_BOX,
    SAME_TEXT,
    UNFINISHED,
    UNREADABLE,
    VERIFIED,
    Graded,
    after_thinking,
    last_boxed,
    listed_boxes,
)
from weakdriven.eval.graders.workers import ask

LONGEST_ANSWER = 1000
"""Characters; a longer box is a derivation, not an answer, and its parser takes minutes."""
INTEGER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)")


def grade_math(text: str, gold: str, *, timeout: float = 10.0) -> Graded:
    r"""Whether the last boxed answer after the thinking block equals `gold`; no box is wrong.

    >>> grade_math(r"The answer is \boxed{0.5}.", r"\frac{1}{2}").correct
    True
    """
    final = after_thinking(text)
    answer = last_boxed(final)
    if answer is None:
        return Graded(False, None, UNFINISHED if "<think>" in text and "</think>" not in text else NO_BOX)
    reason = equality(gold, answer, timeout=timeout)
    if reason == DIFFERENT and (several := listed_boxes(final)):
        listed = equality(gold, several, timeout=timeout)
        if listed in (SAME_TEXT, VERIFIED):
            return Graded(True, several, listed)
    return Graded(reason in (SAME_TEXT, VERIFIED), answer, reason)


def equality(gold: str, answer: str, *, timeout: float) -> str:
    """The reason of a verdict on two answers; asks a worker only where plain text and whole numbers do not decide."""
    gold, answer = gold.strip(), answer.strip()
    if not gold:
        return BAD_GOLD
    if not answer:
        return EMPTY_BOX
    if answer == gold:
        return SAME_TEXT
    if INTEGER.fullmatch(gold) and INTEGER.fullmatch(answer) and max(len(gold), len(answer)) < LONGEST_ANSWER:
        return VERIFIED if int(gold.replace(",", "")) == int(answer.replace(",", "")) else DIFFERENT
    if len(answer) > LONGEST_ANSWER:
        return UNREADABLE
    return ask(gold, answer, timeout=timeout)


def readable(gold: str, *, timeout: float) -> bool:
    """Whether a gold answer can be graded against; a timeout or a failing parser is no."""
    gold = gold.strip()
    return bool(gold) and (bool(INTEGER.fullmatch(gold)) or ask(gold, gold, timeout=timeout) == VERIFIED)
