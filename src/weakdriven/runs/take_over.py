"""Reuse finished stages of other runs by hard links; two runs in parallel never compute the same stage."""

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
    """Other runs whose finished stages are reused if their keys are equal."""

    runs: Sequence[Path] = ()
    locks: Path | None = None
    """Folder of locks by key: if parallel runs need the same stage, one computes it and the others wait."""

    def find(self, stage: Stage) -> Path | None:
        """Return the run that has finished this stage, if this run has not; its own replaced stages come first."""
        if is_finished(stage.path, stage):
            return None
        for run in (stage.root / REPLACED, *self.runs):
            folder = run / stage.name
            if is_finished(folder, stage) and not damage(folder, files_of(folder), contents=False):
                return run
        return None

    @contextmanager
    def alone(self, stage: Stage, note: Callable[[str], None]) -> Iterator[None]:
        """Lock this stage, so that no other run with the same locks computes it inside the block."""
        if self.locks is None:
            yield
            return
        self.locks.mkdir(parents=True, exist_ok=True)
        waits = f"{stage.name}: another run is computing it; waiting for the result"
        with locked(self.locks / stage.key, lambda: note(waits)):
            yield


def is_finished(folder: Path, stage: Stage) -> bool:
    return finished_key(folder) == stage.key and not lost(folder, stage)


def lost(folder: Path, stage: Stage) -> list[str]:
    """Return the names that the finished stage must contain, but no longer does."""
    return [name for name in stage.holds if not (folder / name).exists()]


def reason_taken(sibling: Path, root: Path) -> str:
    if sibling == root / REPLACED:
        return f"taken back from {REPLACED}"
    return f"taken over from {os.path.relpath(sibling, root.parent)}"


def take_over(finished: Path, out: Path) -> None:
    """Hard-link the finished stage of another run, or a replaced one of this run, into `out`; copy it if links fail.

    Files of finished stages are only ever replaced, never changed in place, so the other run keeps its own.
    """
    if found := damage(finished, files_of(finished), contents=True):
        raise UserError(f"{found}. {remedy(finished)} If it came from --take-from, you can also leave that run out.")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(finished, out, copy_function=link, ignore=shutil.ignore_patterns(MANIFEST))
    sync_tree(out)  # the manifest says that all files are complete, so it is written last
    taken = {} if REPLACED in finished.parts else {"taken_from": str(finished)}
    write_json(out / MANIFEST, read_json(finished / MANIFEST) | taken)
