"""Drop training rows that contain a benchmark's question, or raise an error: scores on it would mean nothing.

A question is found if all of it is in the row, with any text around it and any case, spaces and punctuation.
`weakdriven data build` also finds near copies and parts of questions (`decontaminate.py`).
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from weakdriven.data.example import Example
from weakdriven.data.overlap.decontaminate import asked_texts
from weakdriven.data.overlap.find import Held, HeldItem, Rules
from weakdriven.data.overlap.fingerprint import fingerprint
from weakdriven.data.questions import bare
from weakdriven.errors import UserError

NAMED = 5
"""Maximum of rows that an error lists."""
VERSION = b"2"
"""Raised when other rows are found, so that earlier runs are compared again."""


class Hit(NamedTuple):
    row: str
    benchmark: str
    item: str


class HeldOut:
    """Index of questions that must not be trained on.

    >>> held = HeldOut([HeldItem("gsm8k", "7", "Ann has 3 pens. How many?")])
    >>> held.find(Example("a", [{"role": "user", "content": "Think. ANN has 3 pens; how many? Explain."}], "3"))
    Hit(row='a', benchmark='gsm8k', item='7')
    """

    def __init__(self, items: Iterable[HeldItem]) -> None:
        bare_items = [item._replace(text=bare(item.text)) for item in items]
        self._prints = {fingerprint(item.text).exact for item in bare_items}
        self._held = Held(bare_items, Rules(short_items=True))

    @property
    def key(self) -> str:
        """Changes with the questions."""
        return blake2b(VERSION + b"".join(sorted(self._prints)), digest_size=8).hexdigest()

    def find(self, example: Example) -> Hit | None:
        """Find the item that is in a user or system turn, or in all of them joined."""
        for text in asked_texts(example):
            if found := self._held.contained(text):
                return Hit(example.id, found.benchmark, found.id)
        return None


def keep_out(examples: Iterable[Example], held: HeldOut, found: list[Hit], *, drop: bool) -> Iterator[Example]:
    """Yield the examples without held-out questions; collect the others in `found`, and raise an error unless `drop`.

    After the first error, rows are only counted and no longer yielded, to save tokenizing.
    """
    rows = 0
    for example in examples:
        rows += 1
        if example.completion.strip() and (hit := held.find(example)):  # rows without a completion are not trained on
            found.append(hit)
        elif drop or not found:
            yield example
    if found and drop and len(found) == rows:
        raise UserError(f"Nothing is left to train on: {message(found, rows)} Use other rows.")
    if found and not drop:
        raise UserError(
            f"{message(found, rows)} Scores on these items would mean nothing. Build the training set with weakdriven "
            "data build, which drops such rows and near copies; or set data.held_out to drop, which drops "
            "these rows, or to allow, which trains on them."
        )


def message(found: list[Hit], rows: int) -> str:
    named = ", ".join(f"{hit.row!r} ({hit.item} of {hit.benchmark})" for hit in found[:NAMED])
    more = " and more" if len(found) > NAMED else ""
    return f"{len(found)} of {rows} training rows contain a question of a benchmark in eval.benchmarks: {named}{more}."
