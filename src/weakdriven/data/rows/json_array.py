"""Reads one large JSON list row by row, so that the file need not fit in memory."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

BLOCK = 1 << 20
"""Approximate characters of a block of text."""
NEAR_THE_END = 16
"""If a block ends within a row, the decoder fails within this distance of its end, or at an unterminated string."""
SPACE = re.compile(r"[ \t\r\n]*")
FOUND = {"{": "dict", '"': "str", "": "nothing"}


class NotJson(ValueError):
    """Names the line and the reason."""


class JsonArray:
    """
    >>> list(JsonArray(['[{"a"', ": 1}, ", '{"a": [2]}]']))
    [{'a': 1}, {'a': [2]}]
    >>> list(JsonArray(['[{"a": 1},', '\\n {"a" 2}]']))
    Traceback (most recent call last):
    weakdriven.data.rows.json_array.NotJson: line 2: Expecting ':' delimiter
    """

    def __init__(self, blocks: Iterable[str]) -> None:
        self.blocks = iter(blocks)
        self.text, self.at, self.line = "", 0, 1
        self.decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[Any]:
        if (first := self.mark()) != "[":
            hint = "; a file with one object on each line has to be called .jsonl" if first == "{" else ""
            raise NotJson(f"line {self.line}: expected a list of rows, found {FOUND.get(first, first)}{hint}")
        self.at += 1
        if self.mark() == "]":
            self.at += 1
        else:
            yield self.value()
            while self.next_of_list():
                yield self.value()
        if self.mark():
            raise self.wrong("there is more text after the list")

    def value(self) -> Any:
        while True:
            self.mark()
            try:
                value, self.at = self.decode(self.text, self.at)
                return value
            except RecursionError:
                raise self.wrong("the row is nested too deeply") from None
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self.text) - NEAR_THE_END
                if not (cut and self.more()):
                    self.at = error.pos
                    raise self.wrong(error.msg) from None

    def next_of_list(self) -> bool:
        if (mark := self.mark()) not in (",", "]"):
            raise self.wrong(f"expected a comma or the end of the list, found {mark or 'the end of the file'}")
        self.at += 1
        return mark == ","

    def mark(self) -> str:
        """The next character that is not a space, or nothing at the end."""
        while True:
            self.at = SPACE.match(self.text, self.at).end()  # pyright: ignore[reportOptionalMemberAccess]
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def more(self) -> bool:
        """Drop what was decoded and read on; read more each time, because an incomplete row is decoded again."""
        rest = self.text[self.at :]
        self.line += self.text.count("\n", 0, self.at)
        fresh = "".join(islice(self.blocks, 1 + len(rest) // BLOCK))
        self.text, self.at = rest + fresh, 0
        return bool(fresh)

    def wrong(self, what: str) -> NotJson:
        line = self.line + self.text.count("\n", 0, self.at)
        return NotJson(f"line {line}: {what}")
