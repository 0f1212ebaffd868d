"""Find the answer of a completion (after its thinking block, in its boxes) and compare it with the gold answer."""

import re
from dataclasses import dataclass

from weakdriven.eval.graders.workers import FAILED, TIMEOUT, ask

BAD_GOLD, NO_BOX, UNFINISHED, EMPTY_BOX = "bad gold", "no boxed answer", "unfinished thinking", "empty box"
UNREADABLE, DIFFERENT, SAME_TEXT, VERIFIED = "unreadable answer", "different value", "same text", "math-verify"
NO_ANSWER, DIFFERENT_TEXT = "no answer", "different text"
LONGEST_ANSWER = 1000
"""Characters; longer boxes are derivations and not answers, and parsing them takes minutes."""
INTEGER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)")


@dataclass(frozen=True)
class Graded:
    correct: bool
    answer: str | None
    reason: str

    @property
    def undecided(self) -> bool:
        """Whether the grader is to blame and not the model: counts as wrong, but is left out of preference pairs."""
        return self.reason.startswith((BAD_GOLD, TIMEOUT, FAILED))


@dataclass(frozen=True)
class Box:
    start: int
    end: int
    content: str


BOX_TOKEN = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*(?P<open>\{)?|\\.|[{}]", re.DOTALL)
BARE_BOX = re.compile(r"\s*[^\s${}]+")


def after_thinking(text: str) -> str:
    """Return the text after the last closed thinking block; empty if the token limit cut the thinking."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def unfinished(text: str) -> bool:
    return "<think>" in text and "</think>" not in text


def boxes(text: str) -> list[Box]:
    r"""Find complete boxes in order of their beginnings: `\boxed{..}`, `\boxed {..}`, `\fbox{..}` and `\boxed 5`."""
    found: list[Box] = []
    open_braces: list[tuple[int, int] | None] = []  # starts of a box and its content; None for an ordinary brace
    for token in BOX_TOKEN.finditer(text):
        if token["open"]:
            open_braces.append((token.start(), token.end()))
        elif token[0].startswith(("\\boxed", "\\fbox")):
            if bare := BARE_BOX.match(text, token.end()):
                found.append(Box(token.start(), bare.end(), re.split(r"\\[)\]]", bare[0])[0].strip().rstrip(".,;:")))
        elif token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}" and open_braces and (box := open_braces.pop()):
            found.append(Box(box[0], token.end(), text[box[1] : token.start()]))
    return sorted(found, key=lambda box: box.start)


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete \boxed{...}, with matched braces."""
    found = boxes(text)
    return found[-1].content if found else None


BETWEEN_LISTED = re.compile(r"(?:[\s,;$]|\\[,;()\[\] ]|\\q?quad|and|or|\\text\s*\{\s*(?:and|or)\s*\}|[a-z]\s*=)+")


def listed_boxes(text: str) -> str | None:
    r"""Return the contents of the last boxes as one list if only separators are between them.

    >>> listed_boxes(r"It is \boxed{0}. So $x=\boxed{3}$ or $x=\boxed{5}$.")
    '3, 5'
    """
    found = boxes(text)
    first = len(found) - 1
    while first > 0 and BETWEEN_LISTED.fullmatch(text, found[first - 1].end, found[first].start):
        first -= 1
    return ", ".join(box.content for box in found[first:]) if 0 <= first < len(found) - 1 else None


FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s?/\s?\d+)?(?!\w)%?")
WORD = re.compile(r"(?<!\\)(?<![A-Za-z])[A-Za-z]{2,}")


BARE_LATEX = re.compile(r"\\[a-zA-Z]+\s*[{\d].*")


def last_value(text: str) -> str | None:
    r"""Return the value of a text without a box: its last formula, its last line if that has no words, or last number.

    >>> last_value("So $x = 3$ it is."), last_value("It costs\n1,200 / 4"), last_value("12 of 30 pens.")
    ('x = 3', '1,200 / 4', '30')
    """
    formulas = ["".join(found) for found in FORMULA.findall(text)]
    last = (text.strip().splitlines() or [""])[-1].strip().rstrip(".")
    bare = BARE_LATEX.search(last)
    for value in (*formulas[::-1], bare[0] if bare else "", last):
        if any(map(str.isalnum, value)) and not WORD.search(value):
            return value.strip()
    numbers = NUMBER.findall(text)
    return numbers[-1] if numbers else None


def grade_math(text: str, gold: str, *, timeout: float = 10.0, boxed: bool = True) -> Graded:
    r"""Compare the last boxed answer after the thinking block with `gold`.

    Args:
        boxed: A reply without a box is wrong; if False, it is read by `last_value`.

    >>> grade_math(r"The answer is \boxed{0.5}.", r"\frac{1}{2}").correct
    True
    """
    final = after_thinking(text)
    answer = last_boxed(final)
    if answer is None and not boxed:
        answer = last_value(final)
    if answer is None:
        return Graded(False, None, UNFINISHED if unfinished(text) else NO_BOX if boxed else NO_ANSWER)
    reason = equality(gold, answer, timeout=timeout)
    if reason == DIFFERENT and (several := listed_boxes(final)):
        listed = equality(gold, several, timeout=timeout)
        if listed in (SAME_TEXT, VERIFIED):
            answer, reason = several, listed
    return Graded(reason in (SAME_TEXT, VERIFIED), answer, reason)


def equality(gold: str, answer: str, *, timeout: float) -> str:
    """Return the reason of a verdict on two answers; ask a worker only if text and whole numbers do not decide."""
    gold, answer = gold.strip(), answer.strip()
    if not gold:
        return BAD_GOLD
    if not answer:
        return EMPTY_BOX
    if answer == gold:
        return SAME_TEXT
    if INTEGER.fullmatch(gold) and INTEGER.fullmatch(answer) and max(len(gold), len(answer)) < LONGEST_ANSWER:
        return VERIFIED if int(gold.replace(",", "")) == int(answer.replace(",", "")) else DIFFERENT
    return UNREADABLE if len(answer) > LONGEST_ANSWER else ask(gold, answer, timeout=timeout)


def readable(gold: str, *, timeout: float) -> bool:
    """Return whether answers can be graded against `gold`; False if the parser fails or takes too long."""
    gold = gold.strip()
    return bool(gold) and (bool(INTEGER.fullmatch(gold)) or ask(gold, gold, timeout=timeout) == VERIFIED)
