"""What a run and each of its training phases will write, in bytes, compared with what the disk has left."""

import errno
import math
import shutil
import tempfile
from pathlib import Path

from weakdriven.errors import WRITE_FAILURES, UserError
from weakdriven.runs.files import linked

CHECKPOINTS = 3
"""Two are kept, and the next is written before the oldest goes."""
SMALL_FILES = 1 << 20
"""Tokenizer, configuration, random states and so on of one folder, rounded up."""


def disk_need(*, weights: int, optimizer: int, model: int, models: int, saves: int) -> int:
    """Most bytes that a training phase has on disk at once.

    Args:
        weights: Bytes of what a checkpoint saves of its models; of adapters, theirs alone.
        optimizer: Bytes of the optimizer's state.
        model: Bytes of a model that stays, which may be fewer: one of two, or in bf16.
        models: Folders that stay: the result, its snapshots, perhaps the weak model.
        saves: Checkpoints that will be written.

    >>> disk_need(weights=8_000_000_000, optimizer=16_000_000_000, model=8_000_000_000, models=1, saves=9) / 1e9
    80.004194304
    """
    return min(saves, CHECKPOINTS) * (weights + optimizer + SMALL_FILES) + models * (model + SMALL_FILES)


def held(folder: Path) -> int:
    """Bytes of all files in a folder; those that an earlier try has written need no room again."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def unlinkable(stage: Path, here: Path) -> int:
    """Bytes of a finished stage that would have to be copied, because its files cannot have a second name `here`.

    Each one is tried, since not only another disk is in the way: two mounts of one are, and files of somebody else.
    """
    copied = 0
    with tempfile.TemporaryDirectory(dir=here, prefix="links-") as folder:
        tried = Path(folder) / "one"
        for path in (path for path in stage.rglob("*") if path.is_file()):
            if linked(str(path), str(tried)):
                tried.unlink()
            else:
                copied += path.stat().st_size
    return copied


def refuse_full_disk(folder: Path, need: int, *, stage: str, checkpoint: int, saves: int) -> None:
    """Stop while nothing is computed if the file system that holds the run has too little room.

    Args:
        need: Bytes still to be written.
        checkpoint: Bytes of one checkpoint.
        saves: How many will be written.
    """
    if short := shortage(folder, need, stage):
        at_once = f"{min(saves, CHECKPOINTS)} checkpoints of {gib(checkpoint)} are on disk at once"
        raise UserError(f"{short}, or raise save_steps (it saves {saves} times, and {at_once}).")


def shortage(folder: Path, need: int, what: str) -> str:
    """What the file system that holds a folder lacks, and what to do, as the beginning of a sentence; or nothing."""
    free = shutil.disk_usage(folder).free
    if free >= need:
        return ""
    return (
        f"{what} will need about {gib(need)} on disk, and {folder} has {gib(free)} free; free {gib(need - free)} more "
        "or give an --output on another disk"
    )


def gib(size: int) -> str:
    """
    >>> gib(3 << 30), gib(5_000_000)
    ('3.0 GiB', '4.8 MiB')
    """
    if size >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{math.ceil(size / (1 << 20) * 10) / 10:.1f} MiB"


def is_full(error: BaseException) -> bool:
    """Whether an error tells of a full disk; safetensors and torch.save do so without an errno."""
    return getattr(error, "errno", None) == errno.ENOSPC or any(words in str(error) for words in WRITE_FAILURES)
