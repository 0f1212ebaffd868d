"""Mix several sources: how many rows of each, which rows, and in what order.

The mixture depends only on the sources and their weights, never on a recipe's seed: all methods and all seeds of a
comparison train on the same rows.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from weakdriven.data.example import Example
from weakdriven.data.rows.formats import ENDINGS
from weakdriven.data.rows.sources import Source, open_source
from weakdriven.errors import UserError

SEED = 0
SEPARATOR = "/"
"""Separates the name of a source from the id of a row."""


def rows_of_each(rows: Sequence[int], weights: Sequence[float] | None) -> list[int]:
    """Count the rows of each source in the largest mixture with these shares that repeats no row; all without weights.

    >>> rows_of_each([1000, 100], [3, 1]), rows_of_each([1000, 1000], [0.9, 0.3]), rows_of_each([5, 7], None)
    ([300, 100], [1000, 333], [5, 7])
    """
    if weights is None:
        return list(rows)
    shares = [Fraction(str(weight)) for weight in weights]  # exact decimals: 0.3 and not the nearest binary fraction
    most = min(count / share for count, share in zip(rows, shares, strict=True))
    return [math.floor(most * share) for share in shares]


def source_names(paths: Sequence[str]) -> list[str]:
    """Make a short name for each source from the end of its path.

    >>> source_names(["a/chats.jsonl.gz", "b/chats.csv", "openai/gsm8k:main", "more/"])
    ['chats', 'chats-2', 'gsm8k:main', 'more']
    """
    endings = "|".join(map(re.escape, ENDINGS))
    names = list[str]()
    for path in paths:
        name = plain = re.sub(rf"(?:{endings})+$", "", re.split(r"[/\\]", path.rstrip("/\\"))[-1]) or "source"
        number = 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


@dataclass(frozen=True)
class Mixture:
    """Examples of several sources in one shuffled order; ids begin with the name of the source.

    Without weights it has all rows; with weights, rows drawn from each source without replacement.
    """

    sources: Sequence[Source]
    weights: Sequence[float] | None = None

    @cached_property
    def names(self) -> list[str]:
        return source_names([source.path for source in self.sources])

    @cached_property
    def rows(self) -> list[int]:
        """Rows of each source, up to its limit."""
        return [source.count() for source in self.sources]

    @cached_property
    def used(self) -> list[int]:
        """Rows of each source in the mixture."""
        used = rows_of_each(self.rows, self.weights)
        for source, count in zip(self.sources, used, strict=True):
            if not count:
                smallest = min(self.rows)
                raise UserError(
                    f"{source.path} has such a small weight that the mixture has none of its rows, because another "
                    f"source has only {smallest:,}; raise its weight, or omit it."
                )
        return used

    @property
    def path(self) -> str:
        return ", ".join(source.path for source in self.sources)

    @property
    def layouts(self) -> list[str]:
        return [source.layout.name for source in self.sources]

    def described(self, count: int | None = None) -> str:
        """Describe the layout and rows of each source, and how many rows are used."""
        lines = [f"{count or sum(self.used):,} rows of {len(self.sources)} sources"]
        for source, rows, used in zip(self.sources, self.rows, self.used, strict=True):
            lines.append(f"{source.path}: {source.described(rows)}, {used:,} used")
        return "\n".join(lines)

    def count(self) -> int:
        return sum(self.used)

    def __iter__(self) -> Iterator[Example]:
        order = np.repeat(np.arange(len(self.sources), dtype=np.uint16), self.used)
        np.random.default_rng(SEED).shuffle(order)
        streams = [self._examples(place) for place in range(len(self.sources))]
        for place in order:
            example = next(streams[place])
            yield replace(example, id=f"{self.names[place]}{SEPARATOR}{example.id}")

    def _examples(self, place: int) -> Iterator[Example]:
        source, rows, used = self.sources[place], self.rows[place], self.used[place]
        if used == rows:
            yield from source
        else:
            drawn = np.zeros(rows, dtype=np.uint8)
            drawn[np.random.default_rng([SEED, place + 1]).permutation(rows)[:used]] = 1
            yield from source.examples(drawn.tobytes())
        raise UserError(f"{source.path} lost rows while it was read; leave it unchanged, and run again.")


def open_sources(sources: Sequence[Mapping[str, Any]], **options: Any) -> Source | Mixture:
    """Open one source as it is, or several as a mixture; each has the arguments of `open_source`, perhaps a weight."""
    opened = [
        open_source(**{name: value for name, value in one.items() if name != "weight"}, **options) for one in sources
    ]
    if len(opened) == 1:
        return opened[0]
    weights = [one["weight"] for one in sources if one.get("weight") is not None]
    return Mixture(opened, weights or None)
