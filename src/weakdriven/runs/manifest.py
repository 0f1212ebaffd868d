"""Whether a finished folder still holds what was put there: size and SHA-256 of each file, kept in its manifest.

Sizes are looked at whenever a run is planned, contents before a stage that an earlier process finished is first read
and by `verify`. A damaged file is never repaired or computed again on our own account: it may be the last copy of days
of work.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from weakdriven.errors import UserError
from weakdriven.runs.files import file_digest, read_json, write_json

MANIFEST, FILES = "manifest.json", "files"
CARD = "README.md"
"""Ours to rewrite and a user's to edit, so it is never checked."""

Inventory = dict[str, dict[str, Any]]
"""Of each file, by its path in the folder: `bytes` and `sha256` (its first 32 digits)."""


def inventory(folder: Path) -> Inventory:
    """What a folder holds, but for its manifest and model card."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in files if path.name not in (MANIFEST, CARD)}
    return {name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for name, path in names.items()}


def damage(folder: Path, files: Inventory, *, contents: bool, spare: Sequence[str] = ()) -> str | None:
    """The first file that is not as it was, in words; files that were added are no damage.

    Args:
        contents: Read and hash every file; otherwise only sizes are compared.
        spare: Folders that may be gone.
    """
    for name, fact in files.items():
        path = folder / name
        if any(name.startswith(f"{place}/") for place in spare):
            continue
        try:
            size = path.stat().st_size
            if size != fact["bytes"]:
                return f"{path} has {size:,} bytes and had {fact['bytes']:,} when it was finished"
            if contents and file_digest(path) != fact["sha256"]:
                return f"{path} has other content than when it was finished ({size:,} bytes, another SHA-256)"
        except OSError as error:
            return f"{path} cannot be read ({error.strerror}), and had {fact['bytes']:,} bytes when it was finished"
    return None


def files_of(folder: Path) -> Inventory:
    """The inventory of a finished stage; empty for one that is from before there were inventories."""
    if not (folder / MANIFEST).is_file():
        return {}
    manifest: Any = read_json(folder / MANIFEST)
    found = manifest.get(FILES, {}) if isinstance(manifest, dict) else {}
    entries = found.values() if isinstance(found, dict) else [None]
    if not all(isinstance(entry, dict) and entry.keys() >= {"bytes", "sha256"} for entry in entries):
        raise UserError(f"{folder / MANIFEST} is damaged: its list of files cannot be read. {remedy(folder)}")
    return found


def key_and_files(manifest: bytes) -> tuple[str | None, Inventory | None]:
    """What a manifest that somebody else may have written says, or nothing if a file lies outside its folder."""
    try:
        found = json.loads(manifest)
        key, files = found["key"], found[FILES]
        paths = [PurePosixPath(name) for name, entry in files.items() if entry.keys() >= {"bytes", "sha256"}]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None
    inside = not any(path.is_absolute() or ".." in path.parts for path in paths)
    return (key, files) if inside and len(paths) == len(files) else (None, None)


def is_stage(folder: Path) -> bool:
    """Whether the manifest there is one of ours, and not what another program calls so."""
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.keys() >= {"stage", "key"}


def refuse_damage(folder: Path, *, contents: bool = True, spare: Sequence[str] = ()) -> None:
    """Stop before something is made from a finished stage that is no longer what it was."""
    if found := damage(folder, files_of(folder), contents=contents, spare=spare):
        raise UserError(f"{found}. {remedy(folder)}")


def refuse_damaged_model(folder: Path) -> None:
    """The same for a model that is a finished stage of a run or a snapshot inside one; other models have no list."""
    stage = next((place for place in (folder, *folder.parents[:2]) if is_stage(place)), None)
    if stage is None:
        return
    inside = folder.relative_to(stage)
    files = {name: fact for name, fact in files_of(stage).items() if Path(name).parent == inside}
    if found := damage(stage, files, contents=True):
        raise UserError(f"{found}. {remedy(stage)}")


def remedy(folder: Path) -> str:
    return f"Restore the file from a copy, or delete the folder {folder} to have it computed again."


@contextmanager
def rewriting(folder: Path, *names: str) -> Iterator[dict[str, Any]]:
    """Within it some files of a finished stage may be written anew; gives its manifest, to be changed as well.

    A kill in between leaves them without an entry, so that nothing is taken for damage. A folder without a manifest is
    no stage, and whoever writes there need not tell anyone.
    """
    if not (folder / MANIFEST).is_file():
        yield {}
        return
    refuse_damage(folder)
    manifest = read_json(folder / MANIFEST)
    known = manifest.get(FILES)
    if known is not None:
        left = {name: fact for name, fact in known.items() if name not in names}
        write_json(folder / MANIFEST, manifest | {FILES: left})
    yield manifest
    if known is not None:
        manifest[FILES] = inventory(folder)
    write_json(folder / MANIFEST, manifest)
