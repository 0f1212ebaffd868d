"""Graders of short texts: `exact` and `contains`.

Both read the reply after its thinking block, or the text between its last `<answer>` and `</answer>`. Case and white
space are ignored: texts are compared case-folded, in Unicode's NFKC form, with one space between words.
"""

import re
import unicodedata

from weakdriven.eval.graders.answers import (
    BAD_GOLD,
    DIFFERENT_TEXT,
    NO_ANSWER,
    SAME_TEXT,
    UNFINISHED,
    Graded,
    after_thinking,
    unfinished,
)

CONTAINED, NOT_CONTAINED = "contains the answer", "does not contain the answer"
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def plain_text(text: str) -> str:
    """
    >>> plain_text("  On\\nSaturday ")
    'on saturday'
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def final_text(reply: str) -> str:
    """Return the answer of a reply, without its thinking."""
    final = after_thinking(reply)
    return (ANSWER.findall(final) or [final])[-1].strip()


def grade_text(reply: str, gold: str, *, contains: bool = False) -> Graded:
    """Compare a reply with the answer; with `contains`, look for the answer anywhere as whole words.

    >>> [grade_text(reply, "saturday").correct for reply in ("Saturday ", "On Saturday.")]
    [True, False]
    >>> [grade_text(reply, "no", contains=True).correct for reply in ("No, sorry.", "Note it.")]
    [True, False]
    """
    wanted, answer = plain_text(gold), final_text(reply)
    if not wanted:
        return Graded(False, answer or None, BAD_GOLD)
    if not answer:
        return Graded(False, None, UNFINISHED if unfinished(reply) else NO_ANSWER)
    said = plain_text(answer)
    if not contains:
        return Graded(said == wanted, answer, SAME_TEXT if said == wanted else DIFFERENT_TEXT)
    found = re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", said) is not None
    return Graded(found, answer, CONTAINED if found else NOT_CONTAINED)
