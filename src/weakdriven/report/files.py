"""Read files of a run, damaged ones too: JSON objects, Parquet columns as arrays, a few of many examples."""

import json
from collections.abc import Iterable, Mapping, Sequence
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


def read_object(path: Path, problems: list[str] | None = None) -> dict[str, Any]:
    """Read the JSON object in a file; empty if the file is missing or damaged, and damage is added to `problems`."""
    return next(iter(_parse([path.read_bytes()] if path.is_file() else [], path, problems)), {})


def read_lines(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Read one JSON object per line; a line torn by a kill is skipped and added to `problems`."""
    if not path.is_file():
        return []
    with path.open("rb") as lines:
        return _parse(filter(bytes.strip, lines), path, problems)


def _parse(texts: Iterable[bytes], path: Path, problems: list[str] | None) -> list[dict[str, Any]]:
    rows = list(map(parse_object, texts))
    whole = [row for row in rows if row]
    if problems is not None and len(whole) < len(rows):
        place = "/".join(path.parts[-3:])
        problems.append(f"{place}: {len(rows) - len(whole)} unreadable JSON object(s) skipped.")
    return whole


def parse_object(text: bytes) -> dict[str, Any]:
    try:
        return mapping(json.loads(text))
    except ValueError:
        return {}


@dataclass(frozen=True)
class Columns:
    """Columns of one file, in the order of the data."""

    ids: Any
    """An Arrow column, because ten million Python strings would take a gigabyte."""
    values: dict[str, np.ndarray]
    """Columns by name, in float64; a missing value is NaN."""

    def ids_of(self, rows: Iterable[int]) -> dict[int, str]:
        wanted = [int(row) for row in rows]
        return dict(zip(wanted, self.ids.take(pa.array(wanted, pa.int64())).to_pylist(), strict=True))


def read_columns(run: Path, file: str, names: Sequence[str]) -> Columns:
    """Read the ids and the named numeric columns of `file`, a path inside the run directory."""
    remedy = f"remove the folder {file.rpartition('/')[0]} and run the recipe again"
    try:
        with parquet.ParquetFile(run / file) as opened:
            values = {name: opened.read([name])[name].cast(pa.float64()).to_numpy() for name in names}
            return Columns(opened.read(["id"])["id"].cast(pa.large_string()), values)
    except FileNotFoundError:
        raise UserError(f"{file} is missing; {remedy}.") from None
    except (OSError, KeyError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise UserError(f"{file} cannot be read as Parquet ({reason}); {remedy}.") from None


def read_examples(run: Path, wanted: Mapping[int, str], *, stage: str = "data") -> dict[int, dict[str, Any]]:
    """Read the examples at the row numbers of `wanted`, by row number; skip a row whose id is not the wanted one.

    Reads the file once, parses only the wanted lines and stops after the last of them.
    """
    path = run / stage / EXAMPLES
    if not wanted or not path.is_file():
        return {}
    with path.open("rb") as lines:
        last = max(wanted) + 1
        found = {row: parse_object(line) for row, line in enumerate(islice(lines, last)) if row in wanted}
    return {row: example for row, example in found.items() if example.get("id") == wanted[row]}
