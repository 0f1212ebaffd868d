"""Training rows that ask a question of a benchmark: left out or an error, because scores on it would mean nothing.

Only the same question is found here, whatever its case, spaces and punctuation. `weakdriven data build` finds nearly
the same ones too (`data/clean.py`), which takes an index that is larger and slower.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from weakdriven.data.clean import question_of
from weakdriven.data.example import Example
from weakdriven.data.fingerprint import exact
from weakdriven.data.overlap import HeldItem
from weakdriven.data.questions import bare
from weakdriven.errors import UserError

NAMED = 5
"""Rows that an error names."""


class Hit(NamedTuple):
    row: str
    benchmark: str
    item: str


class HeldOut:
    """Questions that must not be trained on, by their fingerprints.

    >>> held = HeldOut([HeldItem("gsm8k", "7", "Ann has 3 pens. How many?")])
    >>> held.find(Example("a", [{"role": "user", "content": "ANN has 3 pens; how many"}], "3"))
    Hit(row='a', benchmark='gsm8k', item='7')
    """

    def __init__(self, items: Iterable[HeldItem]) -> None:
        self._items = {print_: item for item in items if (print_ := exact(bare(item.text)))}

    @property
    def key(self) -> str:
        """Changes with the questions."""
        return blake2b(b"".join(sorted(self._items)), digest_size=8).hexdigest()

    def find(self, example: Example) -> Hit | None:
        """The item that all turns of the user together ask, or one of them."""
        asked = [bare(turn["content"]) for turn in example.prompt if turn["role"] == "user"]
        for text in [question_of(example), *(asked if len(asked) > 1 else [])]:
            if item := self._items.get(exact(text) or b""):
                return Hit(example.id, item.benchmark, item.id)
        return None


def keep_out(examples: Iterable[Example], held: HeldOut, found: list[Hit], *, drop: bool) -> Iterator[Example]:
    """The examples that ask none of the questions; those that do are appended to `found`, and an error unless dropped.

    After the first one that is an error the others are only counted, so that an hour of tokenising is not lost on them.
    """
    rows = 0
    for example in examples:
        rows += 1
        if example.completion.strip() and (hit := held.find(example)):  # what has no completion is not learned anyway
            found.append(hit)
        elif drop or not found:
            yield example
    if found and drop and len(found) == rows:
        raise UserError(f"Nothing is left to learn from: {told(found, rows)} Use other rows.")
    if found and not drop:
        raise UserError(
            f"{told(found, rows)} Scores on these items would mean nothing. Make the training set with weakdriven data "
            "build, which leaves such rows and nearly equal ones out; or set data.held_out to drop, which leaves out "
            "these, or to allow, which trains on them."
        )


def told(found: list[Hit], rows: int) -> str:
    named = ", ".join(f"{hit.row!r} ({hit.item} of {hit.benchmark})" for hit in found[:NAMED])
    more = " and more" if len(found) > NAMED else ""
    return f"{len(found)} of {rows} training rows ask a question of a benchmark in eval.benchmarks: {named}{more}."
