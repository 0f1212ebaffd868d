"""Files of a run, read with care: JSON objects, Parquet columns as arrays, a few examples out of ten million."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from weakdriven.errors import UserError
from weakdriven.report.format import mapping
from weakdriven.runs.directory import EXAMPLES


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or holds something else."""
    try:
        return parse_object(path.read_bytes())
    except OSError:
        return {}


def parse_object(text: str | bytes) -> dict[str, Any]:
    """
    >>> parse_object('{"a": 1}'), parse_object("[1]"), parse_object('{"a":')
    ({'a': 1}, {}, {})
    """
    try:
        return mapping(json.loads(text))
    except ValueError:
        return {}


@dataclass(frozen=True)
class Columns:
    """Columns of one file, in the order of the data."""

    ids: Any
    """An Arrow column: ten million Python strings would take a gigabyte."""
    values: dict[str, np.ndarray]
    """Name to float64 column; what is missing in a row is NaN."""

    def ids_of(self, rows: Iterable[int]) -> dict[int, str]:
        wanted = [int(row) for row in rows]
        return dict(zip(wanted, self.ids.take(pa.array(wanted, pa.int64())).to_pylist(), strict=True))


def read_columns(run: Path, file: str, names: Sequence[str]) -> Columns:
    """The ids and the named number columns of `file`, a path inside the run directory."""
    with _opened(run, file, ("id", *names)) as table_file:
        values = {name: table_file.read([name])[name].cast(pa.float64()).to_numpy() for name in names}
        return Columns(table_file.read(["id"])["id"].cast(pa.large_string()), values)


def read_row(run: Path, file: str, names: Sequence[str], row: int) -> dict[str, float]:
    """One row of the named number columns, from the only part of the file that holds it."""
    with _opened(run, file, names) as table_file:
        group, metadata = 0, table_file.metadata
        while row >= (rows := metadata.row_group(group).num_rows):
            group, row = group + 1, row - rows
        table = table_file.read_row_group(group, list(names)).slice(row, 1)
        return {name: float(table[name].cast(pa.float64()).to_numpy()[0]) for name in names}


@contextmanager
def _opened(run: Path, file: str, names: Sequence[str]) -> Iterator[Any]:
    remedy = f"remove the folder {file.rpartition('/')[0]} and run the recipe again"
    try:
        with parquet.ParquetFile(run / file) as table_file:
            have = table_file.schema_arrow.names
            if lacking := [name for name in names if name not in have]:
                raise UserError(f"{file} holds {', '.join(have)}, not {', '.join(lacking)}; {remedy}.")
            yield table_file
    except FileNotFoundError:
        raise UserError(f"{file} is missing; {remedy}.") from None
    except (OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise UserError(f"{file} cannot be read as Parquet ({reason}); {remedy}.") from None


def read_examples(run: Path, wanted: Mapping[int, str], *, stage: str = "data") -> dict[int, dict[str, Any]]:
    """Row number to example, for the wanted rows whose line in the data has the wanted id.

    One pass that parses no other line and stops after the last wanted one; a row that is not found is left out.
    """
    found: dict[int, dict[str, Any]] = {}
    path = run / stage / EXAMPLES
    if not wanted or not path.is_file():
        return found
    with path.open("rb") as lines:
        for row, line in enumerate(islice(lines, max(wanted) + 1)):
            if row in wanted and (example := parse_object(line)).get("id") == wanted[row]:
                found[row] = example
    return found
