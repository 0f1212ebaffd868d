r"""Whether a boxed answer has the value of the gold answer.

`judge` runs in a worker process (see `workers.py`), because math-verify can hang and refuses threads.
"""

import re
from functools import lru_cache
from typing import Any

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
from weakdriven.eval.graders.latex import NUMBER_WORDS, as_words, clash, columns_as_tuples, readings, tidy, without_text
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


def judge(gold: str, answer: str) -> str:
    """The verdict of math-verify on two answers; for worker processes only."""
    gold, answer = tidy(gold), tidy(answer)
    words = as_words(gold), as_words(answer)
    if not (words[0] or values(gold)):
        return BAD_GOLD
    if words[1] in NUMBER_WORDS and not words[0]:
        answer, words = str(NUMBER_WORDS.index(words[1])), (None, None)
    if without_text(gold) == without_text(answer) or (words[0] and words[0] == words[1]):
        return VERIFIED
    if words[0] and words[1] and ("\\" in gold + answer or len(words[0]) > 3):
        return DIFFERENT  # math-verify would compare the letters of two words as products
    if clash(gold, answer):
        return DIFFERENT
    pairs = [(a, b) for a in readings(gold, answer) for b in readings(answer, gold)]
    pairs = [columns_as_tuples(*pair) for pair in pairs]
    if any(same_value(*pair) for pair in pairs):
        return VERIFIED
    return DIFFERENT if words[1] or values(answer) else UNREADABLE


def same_value(gold: str, answer: str) -> bool:
    from math_verify import verify

    gold_values, answer_values = values(gold), values(answer)
    if not (gold_values and answer_values) or far_apart(gold_values[0], answer_values[0]):
        return False
    return verify(gold_values, answer_values, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True)


def far_apart(gold: Any, answer: Any) -> bool:
    """Whether two plain numbers differ by more than rounding does.

    It spares most wrong answers the verifier's algebra, and catches small numbers, of which it sees six decimals only.
    """
    try:
        gold, answer = float(gold), float(answer)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return False
    return abs(gold - answer) > max(1e-5 * abs(gold), 1e-12)


@lru_cache(maxsize=4096)
def values(latex: str) -> list[Any]:
    """What math-verify reads in an answer: LaTeX only, boxed first, no bare numbers; nothing where it is undefined."""
    from math_verify import LatexExtractionConfig, parse
    from sympy import nan, zoo

    config = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    found = parse(
        f"\\boxed{{{latex}}}", [config], extraction_mode="first_match", parsing_timeout=0, raise_on_error=True
    )
    if not found or isinstance(found[0], str) or found[0] in (nan, zoo):
        return []
    return found
