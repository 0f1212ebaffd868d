"""Read a data source as Examples: its rows (`files.py`) in the layout of the first ones (`layouts.py`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from weakdriven.data.example import Example
from weakdriven.data.rows.files import count_rows, numbered_rows
from weakdriven.data.rows.layouts import Layout, as_example, check_fields, detect, renamed
from weakdriven.errors import UserError

FIRST_ROWS = 20
"""Rows from which the layout is detected."""


@dataclass(frozen=True)
class Source:
    """Examples that are read anew in each iteration; only their ids stay in memory."""

    path: str
    split: str
    limit: int | None
    domain: str
    empty_completions: str
    layout: Layout
    fields: Mapping[str, str] = field(default_factory=dict)
    """Maps fields of a layout to the fields of the source that they are read from."""

    def __iter__(self) -> Iterator[Example]:
        return self.examples()

    def examples(self, drawn: Sequence[int] | None = None) -> Iterator[Example]:
        """Read all examples, or those marked with 1 in `drawn`; the other rows are not checked."""
        seen: dict[str, int] = {}
        rows = islice(numbered_rows(self.path, self.split), self.limit)
        for count, (file, number, row) in enumerate(rows, start=1):
            if drawn is not None and not drawn[count - 1]:
                continue
            row = renamed(row, self.fields) if self.fields else row
            self.layout.refuse_other(row, f"{file}, row {number}")
            row = {**row, "id": count} if row.get("id") is None else row
            needs_completion = self.empty_completions != "drop"
            example = as_example(row, number, file, needs_completion=needs_completion, domain=self.domain)
            if (first := seen.setdefault(example.id, count)) != count:
                raise UserError(f"{self.path}: id {example.id!r} is in rows {first} and {count}; ids must be unique.")
            yield example

    @property
    def layouts(self) -> list[str]:
        return [self.layout.name]

    def described(self, count: int | None) -> str:
        """Describe the layout, and the number of rows if known."""
        many = "" if count is None else f", {count:,} rows"
        return f"layout {self.layout.name} (fields {', '.join(self.layout.fields)}){many}"

    def count(self) -> int:
        """Count the examples by reading all."""
        rows = count_rows(self.path, self.split)
        return rows if self.limit is None else min(rows, self.limit)


def open_source(
    path: str,
    split: str = "train",
    limit: int | None = None,
    *,
    fields: Mapping[str, str] | None = None,
    domain: str = "",
    empty_completions: str = "error",
) -> Source:
    """Detect the layout of a source from its first rows; the others are not read yet.

    Args:
        fields: Maps fields of a layout to the fields of the source that they are read from.
        domain: Domain of rows without one: math, code or logic.
        empty_completions: With `drop`, rows without a completion become examples with an empty one, which the caller
            counts; else they raise an error.
    """
    first = list(islice(numbered_rows(path, split), FIRST_ROWS if limit is None else min(limit, FIRST_ROWS)))
    places = [f"{file}, row {number}" for file, number, _ in first]
    rows = [row for *_, row in first]
    if fields and rows:
        check_fields(fields, rows, path)
        rows = [renamed(row, fields) for row in rows]
    layout = detect(rows, path, needs_completion=empty_completions != "drop", places=places)
    return Source(path, split, limit, domain, empty_completions, layout, fields or {})


def load_examples(path: str, split: str = "train", limit: int | None = None, **options: Any) -> list[Example]:
    """Load all examples of a source; raise an error for an empty source or a repeated id."""
    return list(open_source(path, split, limit, **options))
