"""Find the rows of a file that overlap with held-out items, block by block in several processes.

A file per block lists its removed rows; a killed build resumes with the blocks that have no file. The processes share
nothing but the folder: each takes every n-th block.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from weakdriven.data.example import Example
from weakdriven.data.overlap.decontaminate import asked_texts, index_items, worst_overlap
from weakdriven.data.overlap.find import HeldItem, Overlap
from weakdriven.runs.files import batches, digest, read_json, write_json
from weakdriven.runs.machine import cores

BLOCK = 2048
VERSION = 2
"""Raised when the definition of overlap changes, so that results on disk become invalid."""
ITEMS, PART = "items.json", "{:06d}.json"
PROCESS = "import sys; from weakdriven.build.overlaps import compare; compare(*sys.argv[1:])"


def find_overlaps(
    rows: Path,
    total: int,
    items: Mapping[str, list[HeldItem]],
    shares: Mapping[str, float],
    work: Path,
    *,
    workers: int | None = None,
    on_rows: Callable[[int], None] = lambda done: None,
) -> Iterator[Overlap | None]:
    """Yield the strongest overlap of every row, in order.

    Args:
        rows: A JSONL file of `total` examples that must not change.
        items: Held-out items by domain.
        shares: See `weakdriven.data.overlap.decontaminate.NGRAM_SHARE`.
        work: Folder for results; results for other rows or items are removed from it.
    """
    file = rows.stat()
    folder = work / digest([VERSION, items, shares, file.st_size, file.st_mtime_ns])[:16]
    parts = [folder / PART.format(block) for block in range(-(-total // BLOCK))]
    if not folder.exists():
        shutil.rmtree(work, ignore_errors=True)
        folder.mkdir(parents=True)
    write_json(folder / ITEMS, {"items": items, "shares": shares})
    missing = sum(not path.exists() for path in parts)
    workers = min(workers or cores(), missing)
    if workers == 1:
        compare(str(rows), str(folder), "0", "1", on_rows=on_rows)
    elif workers:
        compare_in_processes(rows, folder, workers, lambda: on_rows(BLOCK * sum(path.exists() for path in parts)))
    for block, path in enumerate(parts):
        found = read_json(path)
        for place in range(min(BLOCK, total - block * BLOCK)):
            yield Overlap(*found[str(place)]) if str(place) in found else None


def compare_in_processes(rows: Path, folder: Path, workers: int, tell: Callable[[], None]) -> None:
    """Start fresh interpreters and not `multiprocessing`, which would need a main guard in the user's script."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", PROCESS, str(rows), str(folder)]
    processes = [
        subprocess.Popen([*command, str(first), str(workers), str(os.getpid())], env=env, start_new_session=True)
        for first in range(workers)
    ]
    try:
        while any(process.poll() is None for process in processes):
            time.sleep(0.1)
            tell()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if codes := [process.returncode for process in processes if process.returncode]:
        raise RuntimeError(f"A process that compares rows with held-out items ended with exit code {codes[0]}.")


def compare(
    rows: str,
    folder: str,
    first: str,
    step: str,
    parent: str = "",
    on_rows: Callable[[int], None] = lambda done: None,
) -> None:
    """Write the missing files of every `step`-th block from `first` on; stop when the parent is gone.

    All arguments are strings, because they are passed to a process.
    """
    given = read_json(Path(folder) / ITEMS)
    held = index_items({domain: [HeldItem(*item) for item in some] for domain, some in given["items"].items()})
    with Path(rows).open(encoding="utf-8") as file:
        for block, lines in enumerate(batches(file, BLOCK)):
            path = Path(folder) / PART.format(block)
            if block % int(step) != int(first) or path.exists():
                continue
            if parent and os.getppid() != int(parent):
                return
            asked = (asked_texts(Example(**json.loads(line))) for line in lines)
            found = ((place, worst_overlap(texts, held, given["shares"])) for place, texts in enumerate(asked))
            write_json(path, {str(place): overlap for place, overlap in found if overlap})
            on_rows(block * BLOCK + len(lines))
