"""Read raw rows one at a time from a data file, a folder, an address, a Hub dataset or the embedded set."""

import os
import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from weakdriven.data.demo import VERSION as PROBLEMS_VERSION
from weakdriven.data.demo import demo_rows
from weakdriven.data.rows.formats import ENDINGS, Row, count_file, read_file
from weakdriven.data.rows.hub import commit_of, find_commit, hub_rows
from weakdriven.data.rows.remote import fetch, is_remote
from weakdriven.errors import UserError
from weakdriven.runs.files import digest, file_digest
from weakdriven.runs.redact import without_login

EMBEDDED = "embedded:arithmetic"
CHEAP = 256 << 20
"""Largest text files, in bytes, whose rows are counted just to show their number or the time left."""


def read_rows(path: str, split: str = "train") -> Iterator[Row]:
    """Read rows of the embedded set, a data file, a folder of files, or a Hub dataset."""
    for row in read_each(path, split):
        if isinstance(row, UserError):
            raise row
        yield row


def numbered_rows(path: str, split: str = "train") -> Iterator[tuple[str, int, Row]]:
    """Yield rows with what an error message needs: the source (in a folder, the file) and the row number in it."""
    files = find_files(path)
    several = files is not None and len(files) > 1
    for file in map(str, files) if files and several else [path]:
        for number, row in enumerate(read_rows(file, split), start=1):
            yield file, number, row


def read_each(path: str, split: str = "train", *, start: int = 0) -> Iterator[Row | UserError]:
    """Read as `read_rows` does after skipping `start` rows, but yield errors of single rows and do not raise them.

    Skipped lines of a JSONL file are not parsed. An error of a whole file (a damaged archive) is raised.
    """
    files = find_files(path)
    if files is None:
        rows = demo_rows(split) if path == EMBEDDED else hub_rows(path, split)
        yield from islice(rows, start, None)
    elif len(files) == 1:
        yield from read_file(files[0], start)
    else:
        yield from islice(chain.from_iterable(map(read_file, files)), start, None)


def count_rows(path: str, split: str = "train") -> int:
    """Count the rows that `read_rows` yields, without parsing lines of JSONL."""
    if (files := find_files(path)) is None:
        return len(demo_rows(split) if path == EMBEDDED else hub_rows(path, split))
    return sum(map(count_file, files))


def cheap_count(path: str, split: str = "train") -> int | None:
    """Count rows if that takes only a moment."""
    files = find_files(path) or []
    text = sum(file.stat().st_size for file in files if file.suffix != ".parquet")
    return count_rows(path, split) if text <= CHEAP else None


def find_files(path: str) -> list[Path] | None:
    """Find the data files of a source, downloading an address; None for the embedded set and Hub datasets."""
    if path == EMBEDDED:
        return None
    if is_remote(path):
        file = fetch(path)
        if file.suffix not in ENDINGS:
            raise UserError(f"{without_login(path)} has an unknown ending; expected one of {', '.join(ENDINGS)}.")
        return [file]
    file = Path(os.path.expanduser(path))
    if file.is_file():
        return [file]
    if file.is_dir():
        return files_in(file)
    if file.exists() or path.startswith((".", "/", "~")) or file.suffix in ENDINGS:
        raise UserError(f"{path}: there is no such data file; a relative path starts at the working directory.")
    return None


def files_in(folder: Path) -> list[Path]:
    """List the data files of a folder by name; raise an error for others except README, licence and hidden files."""
    try:
        found = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_")))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}.") from error
    found = [entry for entry in found if entry.is_dir() or entry.stem.upper() not in ("README", "LICENSE", "LICENCE")]
    if others := [entry.name for entry in found if entry.is_dir() or entry.suffix not in ENDINGS]:
        raise UserError(
            f"{folder} has {', '.join(others[:5])}{' and more' if len(others) > 5 else ''}; expected only files that "
            f"end in {', '.join(ENDINGS)}. Move the others out, or give a file instead of the folder."
        )
    if not found:
        raise UserError(f"{folder} has no data file; expected files that end in {', '.join(ENDINGS)}.")
    return found


def data_key(path: str, split: str) -> str:
    """Identify a source's rows by the content of its files, the generator's version, or a Hub dataset's commit."""
    if path == EMBEDDED:
        return f"{path}@{PROBLEMS_VERSION}/{split}"
    if (files := find_files(path)) is None:
        return f"{path}@{commit_of(path)}/{split}"
    try:
        return file_digest(files[0]) if len(files) == 1 else digest([file_digest(file) for file in files])
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def settle_commit(path: str, split: str, key: Any) -> str | None:
    """Choose the commit of a Hub dataset for a run, perhaps from its earlier `key`; None for other sources."""
    if path == EMBEDDED or is_remote(path) or find_files(path):
        return None
    earlier = re.fullmatch(rf"{re.escape(path)}@(\w+)/{re.escape(split)}", str(key))
    return find_commit(path, earlier and earlier[1])
