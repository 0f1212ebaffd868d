"""The form of completions in each style, so that a model learns a single way to end its answers."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from weakdriven.data.example import Example

MARKERS = ("<think>", "</think>", "<answer>", "</answer>")
_TAGGED = re.compile(r"\s*<think>(?P<thought>.*)</think>\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)
_LETTER = re.compile(r"[Aa]nswer is:?\s*\**\(?[A-J]\b")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
_MARKER = r"""</?(?:think|answer)(?:[ \t]+[\w:-]+[ \t]*=[ \t]*(?:"[^"\n]*"|'[^'\n]*'|[^\s"'<>=]+))*[ \t]*/?>"""
# A line that opens a block with a language ends an unclosed block before it: that block is not code.
_CODE = rf"""
    (?:^|(?<=>))[ \t]*(?P<fence>`{{3,}})[^`\n]*\n
    (?:(?![ \t]*```+[ \t]*\w)[^\n]*\n)*?
    [ \t]*(?P=fence)`*(?=[ \t\r]*(?:$|{_MARKER}))
    | (?<!`)`[^`\n]+`(?!`)
"""
_CODE_OR_MARKER = re.compile(rf"(?P<code>{_CODE})|(?P<marker>{_MARKER})", re.M | re.X)


def in_style(completion: str, style: str) -> str:
    """Return the completion to train on: without markers in style tag-free, else unchanged."""
    return strip_tags(completion) if style == "tag-free" else completion


def with_reasoning(reasoning: str, answer: str, style: str) -> str:
    """Join reasoning and answer from separate fields, with the markers of the style.

    >>> with_reasoning("1+1 is 2", "2", "tagged")
    '<think>1+1 is 2</think>\\n<answer>2</answer>'
    """
    if not reasoning.strip() or "</think>" in answer:  # a teacher may also write the markers itself
        return answer
    if style != "tagged":
        return f"{reasoning.strip()}\n\n{answer}"
    if not any(marker in answer for marker in MARKERS):
        answer = f"<answer>{answer}</answer>"
    return f"<think>{reasoning.strip()}</think>\n{answer}"


def structure_fault(completion: str, style: str) -> str | None:
    """Describe the fault in the form of a completion from its source, or return None.

    Style tagged: one <think>...</think>, then one <answer>...</answer>, both with text, and nothing else. Style
    tag-free: text remains without the markers, and the reasoning is not cut off. Style plain: any text.
    """
    if style == "tagged":
        counts = {marker: completion.count(marker) for marker in MARKERS}
        if set(counts.values()) != {1}:
            found = ", ".join(f"{count} {marker}" for marker, count in counts.items())
            return f"found {found}; expected one of each"
        if (parts := _TAGGED.fullmatch(completion)) is None:
            return "expected <think>...</think> and then <answer>...</answer>, with nothing around them"
        empty = [name for name in ("thought", "answer") if not parts[name].strip()]
        return f"the {' and the '.join(empty)} between the markers is empty" if empty else None
    if style == "tag-free" and "<think>" in completion and "</think>" not in completion:
        return "the reasoning is cut off before </think>"
    return None if in_style(completion, style).strip() else "the completion is empty"


TAG_FREE_ENDS = {"math": ", and the answer in \\boxed{}", "code": "", "logic": ", and 'The answer is (X)'"}


def follows_style(completion: str, domain: str, style: str) -> bool:
    """Return whether a completion follows the system prompt of the domain and style."""
    if style != "tag-free":
        return structure_fault(completion, style) is None
    if any(marker in completion for marker in MARKERS):
        return False
    return has_box(completion) if domain == "math" else domain != "logic" or _LETTER.search(completion) is not None


@dataclass
class StyleShare:
    """How many of the examples with the system prompt of a style follow it."""

    style: str
    examples: int = 0
    following: int = 0
    expected: str = ""

    def add(self, example: Example, domain: str) -> None:
        domain = example.domain or domain
        with_own_prompt = not example.prompt or example.prompt[0]["role"] == "system"  # or plain text, which has none
        if self.style == "plain" or with_own_prompt or not example.completion.strip():
            return
        self.examples += 1
        self.following += follows_style(example.completion, domain, self.style)
        tagged = "one <think>...</think> and then one <answer>...</answer>"
        self.expected = tagged if self.style == "tagged" else f"no <think> or <answer>{TAG_FREE_ENDS[domain]}"

    def fault(self, setting: str = "data.style") -> str:
        """Say why the examples cannot be trained in the style; empty if they can."""
        if 2 * self.following >= self.examples:
            return ""
        return (
            f"{setting} is {self.style}, but the completions do not have the form that its system prompt asks for: "
            f"{self.following:,} of {self.examples:,} ({self.following / self.examples:.0%}) have {self.expected}. A "
            f"model would learn to disobey the prompt; set {setting} to plain to train on the rows as they are, or to "
            "the style that they are written in."
        )


def share_in_style(examples: Iterable[Example], domain: str, style: str) -> StyleShare:
    share = StyleShare(style)
    for example in examples:
        share.add(example, domain)
    return share


def has_box(completion: str) -> bool:
    r"""Return whether there is a \boxed after the reasoning."""
    return _BOX.search(completion.rpartition("</think>")[2]) is not None


def strip_tags(text: str) -> str:
    """Remove <think>, </think>, <answer> and </answer> and keep the text between them.

    A blank line replaces each marker to separate reasoning and answer. Unclosed and nested markers
    and those with attributes are removed too. Markers in code are kept: inside a closed ``` block or `a span` they are
    part of a program or are being discussed. A text without markers is returned unchanged.

    >>> strip_tags("<think>a</think><answer>b</answer>")
    'a\\n\\nb'
    >>> strip_tags("<think>1+1 is 2.</think>\\n\\n<answer>The answer is \\\\boxed{2}</answer>")
    '1+1 is 2.\\n\\nThe answer is \\\\boxed{2}'
    """
    while (stripped := _strip_once(text)) != text:  # removing a marker may pair fences differently
        text = stripped
    return text


def _strip_once(text: str) -> str:
    pieces, start = [], 0
    for found in _CODE_OR_MARKER.finditer(text):
        if found["marker"]:
            pieces.append(text[start : found.start()])
            start = found.end()
    return "\n\n".join(filter(None, map(_trim, [*pieces, text[start:]]))) if pieces else text


def _trim(piece: str) -> str:
    """Strip blank lines at both ends; the first line keeps its indentation unless it directly follows a marker."""
    piece = piece.rstrip()
    blank = re.match(r"\s*\n", piece)
    return piece[blank.end() :] if blank else piece.lstrip()
