"""Reasoning without its <think> and <answer> markers, for models that are not trained to write them, such as Gemma."""

import re

_MARKER = r"""</?(?:think|answer)(?:[ \t]+[\w:-]+[ \t]*=[ \t]*(?:"[^"\n]*"|'[^'\n]*'|[^\s"'<>=]+))*[ \t]*/?>"""
# A line that opens a block with a language ends one that was left open: such a block is not code.
_CODE = rf"""
    (?:^|(?<=>))[ \t]*(?P<fence>`{{3,}})[^`\n]*\n
    (?:(?![ \t]*```+[ \t]*\w)[^\n]*\n)*?
    [ \t]*(?P=fence)`*(?=[ \t\r]*(?:$|{_MARKER}))
    | (?<!`)`[^`\n]+`(?!`)
"""
_CODE_OR_MARKER = re.compile(rf"(?P<code>{_CODE})|(?P<marker>{_MARKER})", re.M | re.X)


def strip_tags(text: str) -> str:
    """Remove <think>, </think>, <answer> and </answer> and keep the text between them.

    A blank line replaces each marker, so that the reasoning does not run into the answer. Unclosed and nested markers
    and those with attributes are removed too. Markers in code are kept: inside a closed ``` block or `a span` they are
    part of a program or are being discussed. A text without markers is returned unchanged.

    >>> strip_tags("<think>a</think><answer>b</answer>")
    'a\\n\\nb'
    >>> strip_tags("<think>1+1 is 2.</think>\\n\\n<answer>The answer is \\\\boxed{2}</answer>")
    '1+1 is 2.\\n\\nThe answer is \\\\boxed{2}'
    """
    while (stripped := _strip_once(text)) != text:  # without a marker, fences may pair up differently
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
