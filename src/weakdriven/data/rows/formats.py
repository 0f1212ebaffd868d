"""Read the rows of one data file: JSON lines, a JSON list, CSV, TSV (each also .gz or .zst) or Parquet.

Rows are read one at a time: only a JSON list must fit in memory.
"""

import codecs
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from weakdriven.errors import UserError

TABLES = {".csv": ",", ".tsv": "\t"}
"""Field separators by file ending."""
ENDINGS = (".jsonl", ".json", *TABLES, ".gz", ".zst", ".parquet")
FIELD_LIMIT = 1 << 30
"""Maximum of characters in a field of a table; Python's default of 131,072 is shorter than many completions."""
Row = dict[str, Any]


def kind(file: Path) -> str:
    """Return the ending that decides how a file is read; unknown endings mean JSON lines.

    >>> kind(Path("a.csv.gz")), kind(Path("a.parquet")), kind(Path("a.txt"))
    ('.csv', '.parquet', '.jsonl')
    """
    ending = Path(file.stem).suffix if file.suffix in (".gz", ".zst") else file.suffix
    return ending if ending in ENDINGS else ".jsonl"


def read_file(file: Path, start: int = 0) -> Iterator[Row | UserError]:
    """Read the rows after the first `start`, but yield errors of single rows and do not raise them.

    Skipped lines of JSONL are not parsed. An error of the whole file (a damaged archive) is raised.
    """
    if kind(file) == ".jsonl":
        for number, line in islice(_numbered_lines(file), start, None):
            try:
                yield _json_line(line, file, number)
            except UserError as error:
                yield error
    elif kind(file) in TABLES:
        yield from islice(_table(file), start, None)
    else:
        yield from islice(_parquet(file) if kind(file) == ".parquet" else _json_list(file), start, None)


def count_file(file: Path) -> int:
    """Count rows without parsing lines of JSONL."""
    if kind(file) == ".jsonl":
        return sum(1 for _ in _numbered_lines(file))
    if kind(file) == ".parquet":
        import pyarrow.parquet as pq

        with _readable(file, "Parquet"):
            return pq.ParquetFile(file).metadata.num_rows
    return sum(1 for _ in read_file(file))


def _open(file: Path) -> IO[bytes]:
    if file.suffix == ".gz":
        return gzip.open(file, "rb")  # pyright: ignore[reportReturnType]
    if file.suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.input_stream(str(file), compression="zstd"))  # pyright: ignore
    return file.open("rb")


@contextmanager
def _readable(file: Path, kind: str) -> Iterator[None]:
    """Add the file's name to errors of the disk, an archive or a parser; Arrow's own errors are ValueErrors."""
    try:
        yield
    except UserError:  # a ValueError that already names the file
        raise
    except (OSError, ValueError, EOFError, zlib.error, csv.Error, RecursionError) as error:
        advice = "; save the file as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise UserError(f"{file} cannot be read as {kind}: {error}{advice}.") from None


def _numbered_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers."""
    with _readable(file, "JSON lines"), _open(file) as lines:
        for number, line in enumerate(lines, start=1):
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if line.strip():
                yield number, line


def _json_line(line: bytes, file: Path, number: int) -> Row:
    try:
        row = json.loads(line.decode().rstrip("\r\n"))
    except UnicodeDecodeError as error:
        raise UserError(f"{file}, line {number} cannot be read: {error}; save the file as UTF-8.") from None
    except (ValueError, RecursionError) as error:
        expected = f"; expected JSON lines, or a file that ends in {', '.join(ENDINGS)}"
        unknown = "" if file.suffix in ENDINGS else expected
        # json counts lines from the start of this line
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise UserError(f"{file}, line {number} is not JSON: {reason}{unknown}.") from None
    return _object(row, file, number)


def _json_list(file: Path) -> Iterator[Row]:
    with _readable(file, "a JSON list (for one row per line, use .jsonl)"), _open(file) as data:
        rows = json.loads(data.read().decode("utf-8-sig"))
    if not isinstance(rows, list):
        raise UserError(f"{file}: expected a list of rows, found {type(rows).__name__}; one row per line is .jsonl.")
    return (_object(row, file, number) for number, row in enumerate(rows, start=1))


def _object(row: Any, file: Path, number: int) -> Row:
    if not isinstance(row, dict):
        raise UserError(f"{file}, row {number}: expected an object with named fields, found {type(row).__name__}.")
    return row


def _table(file: Path) -> Iterator[Row | UserError]:
    """Read CSV or TSV whose first line names the fields; all values are strings, and empty ones are null."""
    csv.field_size_limit(max(csv.field_size_limit(), FIELD_LIMIT))
    expected = f"{kind(file)[1:].upper()} with the names of its fields in the first line"
    with (
        _readable(file, expected),
        _open(file) as data,
        io.TextIOWrapper(data, encoding="utf-8-sig", newline="") as lines,
    ):
        table = csv.reader(lines, delimiter=TABLES[kind(file)], strict=True)
        names = next(table, [])
        if len({*names} - {""}) < len(names):
            found = ", ".join(map(repr, names))
            raise ValueError(f"its first line is {found}; every field needs a unique name")
        for values in filter(None, table):
            if len(values) == len(names):
                yield {name: value or None for name, value in zip(names, values, strict=True)}
            else:
                yield UserError(
                    f"{file}, line {table.line_num}: found {len(values)} fields, but the first line names "
                    f"{len(names)}; quote texts that contain the separator, quotes or line breaks."
                )


def _parquet(file: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    with _readable(file, "Parquet"):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=256):
            yield from batch.to_pylist()
