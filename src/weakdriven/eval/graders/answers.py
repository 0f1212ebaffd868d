"""What a completion says at its end: the verdict on it, the part after the thinking block, and its boxes."""

import re
from dataclasses import dataclass

BAD_GOLD, TIMEOUT, FAILED = "bad gold", "timeout", "verifier failed"
NO_BOX, UNFINISHED, EMPTY_BOX = "no boxed answer", "unfinished thinking", "empty box"
UNREADABLE, DIFFERENT, SAME_TEXT, VERIFIED = "unreadable answer", "different value", "same text", "math-verify"


@dataclass(frozen=True)
class Graded:
    correct: bool
    answer: str | None
    reason: str

    @property
    def undecided(self) -> bool:
        """Whether the grader, not the model, is to blame: wrong for an accuracy, left out of preference pairs."""
        return self.reason.startswith((BAD_GOLD, TIMEOUT, FAILED))


@dataclass(frozen=True)
class Box:
    start: int
    end: int
    content: str


BOX_TOKEN = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*(?P<open>\{)?|\\.|[{}]", re.DOTALL)
BARE_BOX = re.compile(r"\s*[^\s${}]+")


def after_thinking(text: str) -> str:
    """The part after the last closed thinking block; an unclosed block, cut at the token budget, says nothing.

    >>> after_thinking("<think>maybe 3</think> 4")
    ' 4'
    >>> after_thinking("<think>maybe 3")
    ''
    """
    return text.rpartition("</think>")[2].partition("<think>")[0]


def boxes(text: str) -> list[Box]:
    r"""Complete boxes in the order in which they open: `\boxed{..}`, `\boxed {..}`, `\fbox{..}` and `\boxed 5`."""
    found: list[Box] = []
    open_braces: list[tuple[int, int] | None] = []  # start of box and of its content; None for an ordinary brace
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
    return sorted((box for box in found if box.end > box.start), key=lambda box: box.start)


def last_boxed(text: str) -> str | None:
    r"""Contents of the last complete \boxed{...}, braces matched.

    >>> last_boxed(r"so \boxed{1}, no: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    found = boxes(text)
    return found[-1].content if found else None


BETWEEN_LISTED = re.compile(r"(?:[\s,;$]|\\[,;()\[\] ]|\\q?quad|and|or|\\text\s*\{\s*(?:and|or)\s*\}|[a-z]\s*=)+")


def listed_boxes(text: str) -> str | None:
    r"""Contents of the last boxes as one list where nothing but separators stands between them.

    >>> listed_boxes(r"It is \boxed{0}. So $x=\boxed{3}$ or $x=\boxed{5}$.")
    '3, 5'
    """
    found = boxes(text)
    first = len(found) - 1
    while first > 0 and BETWEEN_LISTED.fullmatch(text, found[first - 1].end, found[first].start):
        first -= 1
    return ", ".join(box.content for box in found[first:]) if 0 <= first < len(found) - 1 else None
