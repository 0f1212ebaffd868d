"""Raw rows of a data file or a Hub dataset, one at a time: only a JSON list has to fit in memory."""

import codecs
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from weakdriven.data.demo import VERSION as PROBLEMS_VERSION
from weakdriven.data.demo import demo_rows
from weakdriven.data.rows.hub import commit_of, find_commit, hub_rows
from weakdriven.data.rows.remote import fetch, is_remote
from weakdriven.errors import UserError
from weakdriven.runs.files import file_digest
from weakdriven.runs.redact import without_login

EMBEDDED = "embedded:arithmetic"
ENDINGS = (".jsonl", ".json", ".gz", ".zst", ".parquet")
CHEAP = 256 << 20
"""Largest text file, in bytes, whose rows are counted only to show their number or the time left."""
Row = dict[str, Any]


def read_rows(path: str, split: str = "train") -> Iterator[Row]:
    """Rows of the embedded set, a JSONL, JSON or Parquet file (the first two also .gz or .zst), or a Hub dataset."""
    for row in read_each(path, split):
        if isinstance(row, UserError):
            raise row
        yield row


def read_each(path: str, split: str = "train", *, start: int = 0) -> Iterator[Row | UserError]:
    """As `read_rows` after skipping `start` rows; a line that is not a row gives its error instead of raising it.

    Skipped lines of JSONL are not parsed. An error of the whole file (a damaged archive) is raised.
    """
    file = None if path == EMBEDDED else find_file(path)
    if file is None:
        rows = demo_rows(split) if path == EMBEDDED else hub_rows(path, split)
        yield from islice(rows, start, None)
    elif file.suffix == ".parquet" or _inner_ending(file) == ".json":
        yield from islice(_parquet(file) if file.suffix == ".parquet" else _json_list(file), start, None)
    else:
        lines = ((number, line) for number, line in enumerate(_lines(file), start=1) if line.strip())
        for number, line in islice(lines, start, None):
            try:
                yield _json_line(line, file, number)
            except UserError as error:
                yield error


def count_rows(path: str, split: str = "train") -> int:
    """Number of rows that `read_rows` gives, without parsing lines of JSONL."""
    if path == EMBEDDED:
        return len(demo_rows(split))
    if (file := find_file(path)) is None:
        return len(hub_rows(path, split))
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        with _readable(file, "Parquet"):
            return pq.ParquetFile(file).metadata.num_rows
    if _inner_ending(file) == ".json":
        return sum(1 for _ in _json_list(file))
    return sum(1 for line in _lines(file) if line.strip())


def cheap_count(path: str, split: str = "train") -> int | None:
    """Number of rows if counting them takes a moment."""
    file = None if path == EMBEDDED else find_file(path)
    cheap = file is None or file.suffix == ".parquet" or file.stat().st_size <= CHEAP
    return count_rows(path, split) if cheap else None


def find_file(path: str) -> Path | None:
    """The file of a source, downloaded if it is an address; None for a dataset on the Hub."""
    if is_remote(path):
        file = fetch(path)
        if file.suffix not in ENDINGS:
            raise UserError(f"{without_login(path)} has an unknown ending; expected one of {', '.join(ENDINGS)}.")
        return file
    file = Path(os.path.expanduser(path))
    if file.is_file():
        return file
    if file.is_dir():
        raise UserError(f"{path} is a folder; name a file in it.")
    if file.exists() or path.startswith((".", "/", "~")) or file.suffix in ENDINGS:
        raise UserError(
            f"{path}: there is no such data file; a relative path is looked up from where the command is started."
        )
    return None


def data_key(path: str, split: str) -> str:
    """Identity of a source's rows: a file's content, the generator's version, or a Hub dataset's commit."""
    if path == EMBEDDED:
        return f"{path}@{PROBLEMS_VERSION}/{split}"
    if file := find_file(path):
        try:
            return file_digest(file)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    return f"{path}@{commit_of(path)}/{split}"


def settle_commit(path: str, split: str, key: Any) -> str | None:
    """The commit of a Hub dataset for a run, whose earlier `key` of these rows may name one; None for other sources."""
    if path == EMBEDDED or is_remote(path) or find_file(path):
        return None
    earlier = re.fullmatch(rf"{re.escape(path)}@(\w+)/{re.escape(split)}", str(key))
    return find_commit(path, earlier and earlier[1])


def _inner_ending(file: Path) -> str:
    return Path(file.stem).suffix if file.suffix in (".gz", ".zst") else file.suffix


def _open(file: Path) -> IO[bytes]:
    if file.suffix == ".gz":
        return gzip.open(file, "rb")  # pyright: ignore[reportReturnType]
    if file.suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.input_stream(str(file), compression="zstd"))  # pyright: ignore
    return file.open("rb")


@contextmanager
def _readable(file: Path, kind: str) -> Iterator[None]:
    """Name the file in an error of the disk, an archive or a parser; Arrow's own errors are ValueErrors."""
    try:
        yield
    except (OSError, ValueError, EOFError, zlib.error, RecursionError) as error:
        advice = "; save the file as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise UserError(f"{file} cannot be read as {kind}: {error}{advice}.") from None


def _lines(file: Path) -> Iterator[bytes]:
    with _readable(file, "JSON lines"), _open(file) as lines:
        for number, line in enumerate(lines):
            yield line if number else line.removeprefix(codecs.BOM_UTF8)


def _json_line(line: bytes, file: Path, number: int) -> Row:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{file}, line {number} cannot be read: {error}; save the file as UTF-8.") from None
    except (ValueError, RecursionError) as error:
        expected = f"; expected JSON lines, or a file that ends in {', '.join(ENDINGS)}"
        unknown = "" if file.suffix in ENDINGS else expected
        raise UserError(f"{file}, line {number} is not JSON: {error}{unknown}.") from None
    return _object(row, file, number)


def _json_list(file: Path) -> Iterator[Row]:
    with _readable(file, "a JSON list (rows on lines of their own are .jsonl)"), _open(file) as data:
        rows = json.loads(data.read().decode("utf-8-sig"))
    if not isinstance(rows, list):
        raise UserError(f"{file}: expected a list of rows, found {type(rows).__name__}; rows on lines are .jsonl.")
    return (_object(row, file, number) for number, row in enumerate(rows, start=1))


def _object(row: Any, file: Path, number: int) -> Row:
    if not isinstance(row, dict):
        raise UserError(f"{file}, row {number}: expected an object with named fields, found {type(row).__name__}.")
    return row


def _parquet(file: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    with _readable(file, "Parquet"):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=256):
            yield from batch.to_pylist()
