"""The bytes that a run and each of its training phases will write, compared with the free disk space."""

import math
import os
import shutil
import tempfile
from pathlib import Path

CHECKPOINTS = 3
"""Two are kept, and the next is written before the oldest is removed."""
SMALL_FILES = 1 << 20
"""Tokenizer, configuration, random states and so on of one folder, rounded up."""


def disk_need(*, weights: int, optimizer: int, model: int, models: int, saves: int) -> int:
    """Most bytes that a training phase has on disk at once.

    Args:
        weights: Bytes of the weights in a checkpoint; with LoRA, of the adapters alone.
        optimizer: Bytes of the optimizer's state.
        model: Bytes of a saved model, which may be fewer: one of two, or in bf16.
        models: Saved models: the result, its snapshots, perhaps the weak model.
        saves: Checkpoints that will be written.
    """
    return min(saves, CHECKPOINTS) * (weights + optimizer + SMALL_FILES) + models * (model + SMALL_FILES)


def held(folder: Path) -> int:
    """Bytes of all files in a folder, such as those of an earlier try, which need no space again."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def unlinkable(stage: Path, here: Path) -> int:
    """Bytes of a finished stage that have to be copied to `here`; none if its files can be hard-linked.

    One file is tried, since links fail not only across disks: also across two mounts of one, or for files of others.
    """
    file = next(path for path in stage.rglob("*") if path.is_file())
    with tempfile.TemporaryDirectory(dir=here, prefix="links-") as folder:
        try:
            os.link(file.resolve(), Path(folder) / file.name)
        except OSError:
            return held(stage)
    return 0


def too_little_room(folder: Path, need: int, *, stage: str, checkpoint: int, saves: int) -> str:
    """A sentence, before training, if the file system that holds the run has too little space; else empty.

    Args:
        need: Bytes still to be written.
        checkpoint: Bytes of one checkpoint.
        saves: Number of checkpoints that will be written.
    """
    short = shortage(folder, need, stage)
    if not short or not saves:
        return short and f"{short}."
    at_once = f"{min(saves, CHECKPOINTS)} checkpoints of {gib(checkpoint)} are on disk at once"
    return f"{short}, or raise save_steps (it saves {saves} times, and {at_once}; with 0 it saves none)."


def shortage(folder: Path, need: int, what: str) -> str:
    """The beginning of a sentence about how much space a file system lacks and what to do; empty if it has enough."""
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
