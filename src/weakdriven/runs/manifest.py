"""Whether a finished folder still holds what was put there: its manifest lists the size and SHA-256 of each file.

Sizes are compared whenever a run is planned, contents before this process first reads a stage that an earlier one
finished, and by `verify`. We never repair or recompute a damaged file on our own: it may be the last copy of days of
work.
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
"""We rewrite it and a user may edit it, so it is never checked."""

Inventory = dict[str, dict[str, Any]]
"""Path of each file inside the folder to its `bytes` and `sha256` (the first 32 digits)."""


def inventory(folder: Path) -> Inventory:
    """The files of a folder, except its manifest and model card."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in files if path.name not in (MANIFEST, CARD)}
    return {name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for name, path in names.items()}


def damage(folder: Path, files: Inventory, *, contents: bool, spare: Sequence[str] = ()) -> str | None:
    """A sentence about the first file that has changed, or None; added files are no damage.

    Args:
        contents: Read and hash every file; otherwise only sizes are compared.
        spare: Folders that may be missing.
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
    """The inventory of a finished stage; empty for a stage from before there were inventories."""
    if not (folder / MANIFEST).is_file():
        return {}
    manifest: Any = read_json(folder / MANIFEST)
    files: Any = manifest.get(FILES, {}) if isinstance(manifest, dict) else None
    if not _is_inventory(files):
        raise UserError(f"{folder / MANIFEST} is damaged: its list of files cannot be read. {remedy(folder)}")
    return files


def key_and_files(manifest: bytes) -> tuple[str | None, Inventory | None]:
    """Key and inventory in a manifest from outside; (None, None) if it is invalid or names files outside its folder."""
    try:
        found = json.loads(manifest)
        key, files = found["key"], found[FILES]
    except (ValueError, KeyError, TypeError):
        return None, None
    if not _is_inventory(files) or any(path.is_absolute() or ".." in path.parts for path in map(PurePosixPath, files)):
        return None, None
    return key, files


def _is_inventory(files: Any) -> bool:
    return isinstance(files, dict) and all(
        isinstance(entry, dict) and entry.keys() >= {"bytes", "sha256"} for entry in files.values()
    )


def is_stage(folder: Path) -> bool:
    """Whether the folder has a manifest of ours; other programs use that name too."""
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.keys() >= {"stage", "key"}


def refuse_damage(
    folder: Path, files: Inventory | None = None, *, contents: bool = True, spare: Sequence[str] = ()
) -> None:
    """Raise an error if files of a finished stage (unset: all) have changed, before anything is made from them."""
    if found := damage(folder, files_of(folder) if files is None else files, contents=contents, spare=spare):
        raise UserError(f"{found}. {remedy(folder)}")


def refuse_damaged_model(folder: Path) -> None:
    """The same for a model that is a finished stage or a snapshot in one; other models have no inventory."""
    if stage := next((place for place in (folder, *folder.parents[:2]) if is_stage(place)), None):
        inside = folder.relative_to(stage)
        refuse_damage(stage, {name: fact for name, fact in files_of(stage).items() if Path(name).parent == inside})


def remedy(folder: Path) -> str:
    return f"Restore the file from a copy, or delete the folder {folder} to have it computed again."


@contextmanager
def rewriting(folder: Path, *names: str) -> Iterator[dict[str, Any]]:
    """Rewrite some files of a finished stage inside this block; yields its manifest, which may be changed too.

    After a kill inside the block these files have no entry, so they do not count as damaged. A folder without a
    manifest is no stage and needs no care.
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
