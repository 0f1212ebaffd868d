"""Plain files: written atomically, read with checks, hashed, synced to disk."""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from weakdriven.errors import UserError

T = TypeVar("T")
PART = ".part"
"""Suffix of a file's name until the file is complete."""
SEAL = "crc32"
"""Last field of a sealed line: a checksum of the rest of the line."""
LARGE = 1 << 20
"""Minimum size in bytes from which a file's hash is cached."""
_DIGESTS: dict[tuple[int, ...], str] = {}


def digest(value: Any) -> str:
    """Return a hash of any JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def file_digest(path: Path) -> str:
    """Return a hash of a file's content; for an unchanged large file, also under another name, it is cached."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        same = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if same in _DIGESTS:
            return _DIGESTS[same]
        digester = hashlib.sha256()
        while block := file.read(1 << 22):
            digester.update(block)
    result = digester.hexdigest()[:32]
    if found.st_size >= LARGE:
        _DIGESTS[same] = result
    return result


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file that we wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}).") from error


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Return the rows of a finished stage's file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def batches(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """
    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rows = iter(rows)
    while batch := list(islice(rows, size)):
        yield batch


def salvage_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file whose writer may have been killed, and truncate the file at its first damaged line.

    Later lines are removed too, because callers may match rows of two files by position.
    """
    rows, good = [], 0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if (row := _unsealed(line)) is None:
                    break
                rows.append(row)
                good += len(line)
        if good < path.stat().st_size:
            os.truncate(path, good)
    return rows


def _unsealed(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line, or None if the line is incomplete or was changed after it was sealed."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:  # invalid UTF-8 too
        return None
    if not isinstance(row, dict):
        return None
    name, seal = next(reversed(row.items()), ("", None))
    body = {key: value for key, value in row.items() if key != name}
    if name == SEAL or seal == _checksum(body):  # the damage may be in the seal's name
        return body if line == _sealed(body).encode("utf-8", "backslashreplace") else None
    return row


def _sealed(row: dict[str, Any]) -> str:
    return _line({**row, SEAL: _checksum(row)})


def _checksum(row: dict[str, Any]) -> str:
    return f"{zlib.crc32(_line(row).encode('utf-8', 'backslashreplace')):08x}"


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, default=str) + "\n"


def append_jsonl(path: Path, rows: Iterable[dict[str, Any]], *, sealed: bool = False) -> None:
    """Append rows to a file.

    Args:
        sealed: Add a checksum to each row, so that `salvage_jsonl` notices a changed byte.
    """
    # write an unpaired surrogate as its JSON escape, and a date from Parquet as text
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines((_sealed if sealed else _line)(row) for row in rows)


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a file of rows atomically."""
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)
    append_jsonl(part, rows)
    sync(part)
    os.replace(part, path)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    part = path.with_name(path.name + PART)
    part.write_text(text, encoding="utf-8", errors="backslashreplace")
    sync(part)
    os.replace(part, path)


def write_json(path: Path, value: Any) -> None:
    """Write an object as a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def sync_tree(folder: Path) -> None:
    """Sync a file or folder to disk, so that it survives a power cut."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def link(source: str, target: str) -> None:
    """Hard-link a file, or copy it if that is impossible; for shutil.copytree."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # on another disk, on one without hard links, or owned by another user
        shutil.copy2(source, target)


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
