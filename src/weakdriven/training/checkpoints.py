"""Checkpoints of a training phase: verified after writing, then marked; training resumes from the newest intact one.

Trainer resumes from the highest step even if files are missing, and deletes older checkpoints before it knows that the
new one can be read. Here a checkpoint counts only once it is marked, and older ones are deleted after that.
"""

import json
import shutil
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from weakdriven.errors import UserError
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import read_json, sync_tree, write_json
from weakdriven.runs.manifest import FILES, damage, inventory

COMPLETE = "complete"
"""File that marks a checkpoint as complete: its step, and the size and hash of each of its files."""
KEPT = 2
"""Checkpoints to keep; a third one is written before the oldest is deleted."""


def step_of(folder: Path) -> int:
    """Return a checkpoint's step; checkpoints are ordered by step and not by time, as a clock may be set back."""
    return int(folder.name.split("-")[1])


def checkpoints(folder: Path) -> list[Path]:
    """List all checkpoints, intact or not, newest first."""
    return sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True)


def seal(checkpoint: Path) -> None:
    """Sync a checkpoint to disk, verify it, mark it as complete, and remove those older than the last two."""
    sync_tree(checkpoint)
    if found := unreadable(checkpoint):
        raise UserError(
            f"{found} right after it was written, so the disk may be failing; run the same command again to resume "
            "from the previous checkpoint, or give an --output on another disk."
        )
    write_json(checkpoint / COMPLETE, {"step": step_of(checkpoint), FILES: inventory(checkpoint)})
    marked = [path for path in checkpoints(checkpoint.parent) if (path / COMPLETE).is_file()]
    for old in marked[KEPT:]:
        (old / COMPLETE).unlink()  # a kill during the removal must not leave a mark on half a checkpoint
        shutil.rmtree(old)


def whats_wrong(checkpoint: Path) -> str | None:
    """Say why a checkpoint cannot be used, or return None."""
    try:
        mark = json.loads((checkpoint / COMPLETE).read_text(encoding="utf-8"))
        return damage(checkpoint, mark[FILES], contents=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the mark of {checkpoint} cannot be read ({type(error).__name__})"


def unreadable(folder: Path) -> str | None:
    """Name the first file that is incomplete according to its own format, or return None."""
    for path in sorted(folder.rglob("*")):
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):  # checks the header and the file's length
                    pass
            elif path.suffix in (".pt", ".pth", ".bin"):
                with zipfile.ZipFile(path) as archive:
                    if bad := archive.testzip():
                        raise ValueError(f"checksum of {bad}")
        except (ValueError, zipfile.BadZipFile, SafetensorError) as error:
            return f"{path} is incomplete ({error})"
    return None


def last_complete_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that is marked and unchanged since, or None."""
    return next((path for path in checkpoints(folder) if whats_wrong(path) is None), None)


def resume_step(work: Path) -> str | None:
    """Say from which step training in a stage's work folder would resume, judging by the marks alone."""
    marked = next((path for path in checkpoints(work / "checkpoints") if (path / COMPLETE).is_file()), None)
    if marked is None:
        return None
    return f"from step {step_of(marked)} of {read_json(marked / 'trainer_state.json')['max_steps']}"


def usable_checkpoint(folder: Path, progress: Progress) -> Path | None:
    """Return the newest intact checkpoint; remove newer ones, with a note for each marked one that is damaged."""
    found = last_complete_checkpoint(folder)
    then = f"training resumes from {found.name}" if found else "no checkpoint is left; training starts over"
    for path in checkpoints(folder):
        if path == found:
            break
        if (path / COMPLETE).is_file():
            progress.note(f"{path.name} is damaged and not used: {whats_wrong(path)}; {then}")
        shutil.rmtree(path, ignore_errors=True)
    return found


def tokens_so_far(checkpoint: Path) -> int:
    """Return the number of tokens trained up to a checkpoint, as last logged."""
    history = read_json(checkpoint / "trainer_state.json").get("log_history", [])
    return int(next((row["num_tokens"] for row in reversed(history) if "num_tokens" in row), 0))
