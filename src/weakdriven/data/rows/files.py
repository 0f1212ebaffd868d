"""Raw rows of a source, one at a time: a data file, a folder of them, an address, a Hub dataset or the embedded set."""

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
"""Largest text files, in bytes, whose rows are counted only to show their number or the time left."""


def read_rows(path: str, split: str = "train") -> Iterator[Row]:
    """Rows of the embedded set, a data file, a folder of them, or a Hub dataset."""
    for row in read_each(path, split):
        if isinstance(row, UserError):
            raise row
        yield row


def numbered_rows(path: str, split: str = "train") -> Iterator[tuple[str, int, Row]]:
    """The rows with what an error names: the source (of a folder, the file) and the number of the row in it."""
    files = find_files(path)
    several = files is not None and len(files) > 1
    for file in map(str, files) if files and several else [path]:
        for number, row in enumerate(read_rows(file, split), start=1):
            yield file, number, row


def read_each(path: str, split: str = "train", *, start: int = 0) -> Iterator[Row | UserError]:
    """As `read_rows` after skipping `start` rows; a line that is not a row gives its error instead of raising it.

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
    """Number of rows that `read_rows` gives, without parsing lines of JSONL."""
    if (files := find_files(path)) is None:
        return len(demo_rows(split) if path == EMBEDDED else hub_rows(path, split))
    return sum(map(count_file, files))


def cheap_count(path: str, split: str = "train") -> int | None:
    """Number of rows if counting them takes a moment."""
    files = find_files(path) or []
    text = sum(file.stat().st_size for file in files if file.suffix != ".parquet")
    return count_rows(path, split) if text <= CHEAP else None


def find_files(path: str) -> list[Path] | None:
    """The data files of a source, downloaded if it is an address; None if it has none: embedded, or on the Hub."""
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
        raise UserError(
            f"{path}: there is no such data file; a relative path is looked up from where the command is started."
        )
    return None


def files_in(folder: Path) -> list[Path]:
    """The data files of a folder, by name; anything else in it but a README, a licence and hidden files is an error."""
    try:
        found = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_")))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}.") from error
    found = [entry for entry in found if entry.is_dir() or entry.stem.upper() not in ("README", "LICENSE", "LICENCE")]
    if others := [entry.name for entry in found if entry.is_dir() or entry.suffix not in ENDINGS]:
        raise UserError(
            f"{folder} holds {', '.join(others[:5])}{' and more' if len(others) > 5 else ''}; expected only files that "
            f"end in {', '.join(ENDINGS)}. Move the others out, or name a file instead of the folder."
        )
    if not found:
        raise UserError(f"{folder} is a folder without a data file; expected files that end in {', '.join(ENDINGS)}.")
    return found


def data_key(path: str, split: str) -> str:
    """Identity of a source's rows: its files' content, the generator's version, or a Hub dataset's commit."""
    if path == EMBEDDED:
        return f"{path}@{PROBLEMS_VERSION}/{split}"
    if (files := find_files(path)) is None:
        return f"{path}@{commit_of(path)}/{split}"
    try:
        return file_digest(files[0]) if len(files) == 1 else digest([file_digest(file) for file in files])
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def settle_commit(path: str, split: str, key: Any) -> str | None:
    """The commit of a Hub dataset for a run, whose earlier `key` of these rows may name one; None for other sources."""
    if path == EMBEDDED or is_remote(path) or find_files(path):
        return None
    earlier = re.fullmatch(rf"{re.escape(path)}@(\w+)/{re.escape(split)}", str(key))
    return find_commit(path, earlier and earlier[1])
