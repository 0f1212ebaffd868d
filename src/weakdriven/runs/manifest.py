"""Manifests: the size and SHA-256 of each file of a finished stage, and checks that the files still match them.

Sizes are compared whenever a run is planned. Contents are compared by `verify`, and before this process first reads a
stage that an earlier process finished. Damaged files are never repaired or recomputed without being asked, because they
may be the last copy of days of work.
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
"""The model card. We rewrite it and users may edit it, so it is never checked."""

Inventory = dict[str, dict[str, Any]]
"""Maps the path of each file in a folder to its `bytes` and `sha256` (the first 32 digits)."""


def inventory(folder: Path) -> Inventory:
    """Return the inventory of a folder, without its manifest and model card."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in files if path.name not in (MANIFEST, CARD)}
    return {name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for name, path in names.items()}


def damage(folder: Path, files: Inventory, *, contents: bool, spare: Sequence[str] = ()) -> str | None:
    """Return a sentence about the first file that has changed, or None; added files do not count.

    Args:
        contents: Read and hash every file instead of comparing sizes only.
        spare: Folders that may be missing.
    """
    for name, fact in files.items():
        path = folder / name
        if any(name.startswith(f"{place}/") for place in spare):
            continue
        try:
            size = path.stat().st_size
            if size != fact["bytes"]:
                return f"{path} has {size:,} bytes, but had {fact['bytes']:,} when it was finished"
            if contents and file_digest(path) != fact["sha256"]:
                return f"{path} has different content than when it was finished ({size:,} bytes, another SHA-256)"
        except OSError as error:
            return f"{path} cannot be read ({error.strerror}); it had {fact['bytes']:,} bytes when it was finished"
    return None


def files_of(folder: Path) -> Inventory:
    """Return the inventory of a finished stage; empty for stages of versions without inventories."""
    if not (folder / MANIFEST).is_file():
        return {}
    manifest: Any = read_json(folder / MANIFEST)
    files: Any = manifest.get(FILES, {}) if isinstance(manifest, dict) else None
    if not _is_inventory(files):
        raise UserError(f"{folder / MANIFEST} is damaged: its list of files cannot be read. {remedy(folder)}")
    return files


def key_and_files(manifest: bytes) -> tuple[str | None, Inventory | None]:
    """Parse an untrusted manifest; return its key and inventory, or (None, None) if it is invalid or names files
    outside its folder."""
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
    """Return whether the folder has a manifest of ours; other programs also write files of that name."""
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.keys() >= {"stage", "key"}


def refuse_damage(
    folder: Path, files: Inventory | None = None, *, contents: bool = True, spare: Sequence[str] = ()
) -> None:
    """Raise an error if files of a finished stage (default: all) have changed; call it before using them."""
    if found := damage(folder, files_of(folder) if files is None else files, contents=contents, spare=spare):
        raise UserError(f"{found}. {remedy(folder)}")


def refuse_damaged_model(folder: Path) -> None:
    """Do the same for a model that is a finished stage or a snapshot in one; other models have no inventory."""
    if stage := next((place for place in (folder, *folder.parents[:2]) if is_stage(place)), None):
        inside = folder.relative_to(stage)
        refuse_damage(stage, {name: fact for name, fact in files_of(stage).items() if Path(name).parent == inside})


def remedy(folder: Path) -> str:
    return f"Restore the file from a copy, or delete the folder {folder} to have it recomputed."


@contextmanager
def rewriting(folder: Path, *names: str) -> Iterator[dict[str, Any]]:
    """Allow some files of a finished stage to be rewritten in this block; yield its manifest, which may be changed too.

    Inside the block these files have no entry, so they do not count as damaged after a kill. Nothing is done for a
    folder without a manifest, because it is not a stage.
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
