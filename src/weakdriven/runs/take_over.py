"""Reuse of finished stages of other runs by hard links; no two runs compute the same stage at once."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weakdriven.errors import UserError
from weakdriven.runs.directory import REPLACED, finished_key, locked
from weakdriven.runs.files import link, read_json, sync_tree, write_json
from weakdriven.runs.manifest import MANIFEST, damage, files_of, remedy
from weakdriven.runs.stage import Stage


@dataclass(frozen=True)
class Siblings:
    """Other runs whose finished stages are reused under the same key."""

    runs: Sequence[Path] = ()
    locks: Path | None = None
    """Folder of locks by key: of several runs at once that need the same stage, one computes it and the others wait."""

    def find(self, stage: Stage) -> Path | None:
        """The run that has finished this stage, unless this one has; first what was replaced in this one."""
        if is_finished(stage.path, stage):
            return None
        for run in (stage.root / REPLACED, *self.runs):
            folder = run / stage.name
            if is_finished(folder, stage) and not damage(folder, files_of(folder), contents=False):
                return run
        return None

    @contextmanager
    def alone(self, stage: Stage, note: Callable[[str], None]) -> Iterator[None]:
        """No other run with the same locks computes this stage meanwhile."""
        if self.locks is None:
            yield
            return
        self.locks.mkdir(parents=True, exist_ok=True)
        waits = f"{stage.name}: another run is computing it; this one waits for it"
        with locked(self.locks / stage.key, lambda: note(waits)):
            yield


def is_finished(folder: Path, stage: Stage) -> bool:
    return finished_key(folder) == stage.key and not lost(folder, stage)


def lost(folder: Path, stage: Stage) -> list[str]:
    """What the finished stage must contain and no longer does."""
    return [name for name in stage.holds if not (folder / name).exists()]


def reason_taken(sibling: Path, root: Path) -> str:
    if sibling == root / REPLACED:
        return f"taken back from {REPLACED}"
    return f"taken over from {os.path.relpath(sibling, root.parent)}"


def take_over(finished: Path, out: Path) -> None:
    """Link the finished stage of another run, or a replaced one of this, into `out`; copy where the disk cannot link.

    Whoever changes a file of a finished stage replaces it, so the other run keeps its own.
    """
    if found := damage(finished, files_of(finished), contents=True):
        raise UserError(f"{found}. {remedy(finished)} If it came by --take-from, leave that run out instead.")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(finished, out, copy_function=link, ignore=shutil.ignore_patterns(MANIFEST))
    sync_tree(out)  # the manifest vouches for the rest, so it comes last
    taken = {} if REPLACED in finished.parts else {"taken_from": str(finished)}
    write_json(out / MANIFEST, read_json(finished / MANIFEST) | taken)
