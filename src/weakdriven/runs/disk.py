"""Disk space: what a run and its training phases need, compared with what is free."""

import math
import os
import shutil
import tempfile
from pathlib import Path

CHECKPOINTS = 3
"""Maximum on disk at once: two are kept, and the next is written before the oldest is removed."""
SMALL_FILES = 1 << 20
"""Bytes of the tokenizer, configuration, random states and so on in one folder, rounded up."""


def disk_need(*, weights: int, optimizer: int, model: int, models: int, saves: int) -> int:
    """Return the maximum number of bytes that a training phase has on disk at once.

    Args:
        weights: Bytes of the weights in a checkpoint; with LoRA, of the adapters only.
        optimizer: Bytes of the optimizer state.
        model: Bytes of a saved model: less than `weights` if only one model of a pair is saved, or in bf16.
        models: Number of saved models: the result, its snapshots, optionally the weak model.
        saves: Number of checkpoints that will be written.
    """
    return min(saves, CHECKPOINTS) * (weights + optimizer + SMALL_FILES) + models * (model + SMALL_FILES)


def held(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def unlinkable(stage: Path, here: Path) -> int:
    """Return the bytes of a finished stage that must be copied to `here`: 0 if its files can be hard-linked.

    This tries to link one file, because links also fail across two mounts of one disk and for files of other users.
    """
    file = next(path for path in stage.rglob("*") if path.is_file())
    with tempfile.TemporaryDirectory(dir=here, prefix="links-") as folder:
        try:
            os.link(file.resolve(), Path(folder) / file.name)
        except OSError:
            return held(stage)
    return 0


def too_little_room(folder: Path, need: int, *, stage: str, checkpoint: int, saves: int) -> str:
    """Return an error message if the file system of the run has too little space for a stage, else "".

    Args:
        need: Bytes still to be written.
        checkpoint: Bytes of one checkpoint.
        saves: Number of checkpoints that will be written.
    """
    short = shortage(folder, need, stage)
    if not short or not saves:
        return short and f"{short}."
    at_once = f"{min(saves, CHECKPOINTS)} checkpoints of {gib(checkpoint)} are on disk at once"
    return f"{short}, or raise save_steps: it saves {saves} times, and {at_once} (0 saves no checkpoints)."


def shortage(folder: Path, need: int, what: str) -> str:
    """Return how much disk space is missing and what to do, without a final period; "" if there is enough."""
    free = shutil.disk_usage(folder).free
    if free >= need:
        return ""
    return (
        f"{what} will need about {gib(need)} on disk, but {folder} has {gib(free)} free; free {gib(need - free)} more, "
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
