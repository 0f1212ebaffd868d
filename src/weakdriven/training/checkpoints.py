"""Checkpoints of a training phase: verified after writing, then marked; training resumes from the newest intact one.

Trainer writes a folder file by file, resumes from the highest number even if files are missing, and deletes older ones
before it knows that the new one can be read. So a checkpoint counts only with our mark, which lists its files and is
written last, and older ones are deleted after that.
"""

import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import read_json, sync_tree, write_json
from weakdriven.runs.manifest import FILES, damage, inventory

COMPLETE = "complete"
"""The mark of a checkpoint: its step and the size and hash of each of its files."""
KEPT = 2
"""Checkpoints that stay on disk; a third is written before the older one is deleted."""
HEADER = 8
"""Bytes that hold the length of a safetensors header."""


def step_of(folder: Path) -> int:
    """Checkpoints are ordered by step and never by time: a clock may be set back."""
    return int(folder.name.split("-")[1])


def checkpoints(folder: Path) -> list[Path]:
    """Every checkpoint, intact or not, newest first."""
    found = (path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name))
    return sorted(found, key=step_of, reverse=True)


def seal(checkpoint: Path) -> None:
    """Sync a checkpoint to disk, verify it, mark it as complete, and remove those older than the last two."""
    sync_tree(checkpoint)
    if found := unreadable(checkpoint):
        raise UserError(
            f"{found} right after it was written, so the disk may be failing; run the same command again to resume "
            "from the checkpoint before, or give an --output on another disk."
        )
    write_json(checkpoint / COMPLETE, {"step": step_of(checkpoint), FILES: inventory(checkpoint)})
    marked = [path for path in checkpoints(checkpoint.parent) if (path / COMPLETE).is_file()]
    for old in marked[KEPT:]:
        (old / COMPLETE).unlink()  # a kill during the removal must not leave a mark on half a checkpoint
        shutil.rmtree(old)


def whats_wrong(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be used, or None. A mark of an older version lists no files, so only they are checked."""
    try:
        mark: Any = json.loads((checkpoint / COMPLETE).read_text(encoding="utf-8"))
        files = mark[FILES] if isinstance(mark, dict) else {}
        return damage(checkpoint, files, contents=True) or unreadable(checkpoint)
    except FileNotFoundError:
        return f"{checkpoint} was not written to its end"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the mark of {checkpoint} cannot be read ({type(error).__name__})"


def unreadable(folder: Path) -> str | None:
    """A sentence about the first file that its own format shows to be incomplete, or None."""
    for path in sorted(folder.rglob("*")):
        try:
            if path.suffix == ".safetensors":
                _check_tensors(path)
            elif path.suffix in (".pt", ".pth", ".bin") and zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    if bad := archive.testzip():
                        raise ValueError(f"checksum of {bad}")
            elif path.suffix in (".pt", ".pth"):
                raise ValueError("no archive")
            elif path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            return f"{path} is not whole ({error})"
    return None


def _check_tensors(path: Path) -> None:
    """The header is readable, and its tensors end where the file does."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER), "little")
        if not 0 < length <= path.stat().st_size - HEADER:
            raise ValueError(f"a header of {length:,} bytes")
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    if HEADER + length + max(ends, default=0) != path.stat().st_size:
        raise ValueError(f"{path.stat().st_size:,} bytes, not {HEADER + length + max(ends, default=0):,}")


def last_complete_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is marked and unchanged since, or None."""
    return next((path for path in checkpoints(folder) if whats_wrong(path) is None), None)


def usable_checkpoint(folder: Path, progress: Progress) -> Path | None:
    """The same; newer ones are removed, and a note is written for every marked one that is damaged."""
    damaged, found = False, None
    for path in checkpoints(folder):
        wrong = whats_wrong(path)
        if wrong is None:
            found = path
            break
        if (path / COMPLETE).is_file():
            damaged = True
            progress.note(f"{path.name} is damaged and not used: {wrong}")
        shutil.rmtree(path)
    if damaged:
        progress.note(f"training resumes from {found.name}" if found else "no checkpoint is left; training starts over")
    return found


def tokens_so_far(checkpoint: Path) -> int:
    """Tokens read when the checkpoint was written, as far as they were logged."""
    history = read_json(checkpoint / "trainer_state.json").get("log_history", [])
    return int(next((row["num_tokens"] for row in reversed(history) if "num_tokens" in row), 0))


def remove_unmarked(folder: Path) -> None:
    """Remove what a failed attempt was writing, to free its space."""
    for path in checkpoints(folder):
        if not (path / COMPLETE).is_file():
            shutil.rmtree(path, ignore_errors=True)
