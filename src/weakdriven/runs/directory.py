"""The run directory: its file names, its lock, and how a finished stage is moved into place."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from weakdriven.errors import UserError
from weakdriven.runs.files import PART, now, read_json, sync, write_json
from weakdriven.runs.machine import library_versions
from weakdriven.runs.manifest import MANIFEST
from weakdriven.runs.signals import stop_here
from weakdriven.runs.stage import Planned

RUN_FILE, RECIPE_FILE, PLAN_FILE, WORK, REPORT = "run.json", "recipe.yaml", "plan.json", ".work", "report.html"
REPLACED = ".replaced"
"""Folder that keeps replaced stages until the run that replaces them is finished."""
OUR_FILES, METRICS = (RUN_FILE, RECIPE_FILE, PLAN_FILE, WORK), "metrics.jsonl"
EXAMPLES, TOKENS, SCORES, ACTIVE = "examples.jsonl", "tokens.arrow", "scores.parquet", "active.parquet"
ITEMS, SAMPLES, BENCHMARK_SCORES = "items.jsonl", "samples.jsonl", "scores.json"
FUNNEL, TRAIN, BUDGET = "funnel.json", "train.jsonl", "budget.json"
DIAGNOSTICS, SNAPSHOTS = "diagnostics", "snapshots"
VALIDATION, LOSSES = "validation-data", "losses.parquet"
VALIDATION_LOSS = "validation_loss"
"""Key of an evaluation's loss, on separate lines of metrics.jsonl."""
DIAGNOSIS_VERSION = 2
"""Version of what `weakdriven diagnose` measures; raised if results of older versions must not be used."""


class Progress:
    """Base class of progress displays; it shows nothing."""

    def plan(self, planned: list[Planned]) -> None: ...
    def begin(self, stage: str, reason: str) -> None: ...
    def skip(self, stage: str) -> None: ...
    def note(self, text: str) -> None: ...
    def update(self, done: int, total: int, **facts: float) -> None:
        stop_here()

    def end(self, stage: str, seconds: float) -> None: ...
    def close(self) -> None: ...


def put_in_place(home: Path, target: Path) -> None:
    """Move `out` of a stage's work folder into place; an older result with another key is kept in `.replaced/`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    other = finished_key(target) not in (None, finished_key(home / "out"))
    root = home.parents[1]
    old = root / REPLACED / target.relative_to(root) if other else home / "replaced"
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        old.parent.mkdir(parents=True, exist_ok=True)
        os.rename(target, old)
        sync(old.parent)
    os.rename(home / "out", target)
    sync(target.parent)
    shutil.rmtree(home, ignore_errors=True)


def work_folder(root: Path, stage: str) -> Path:
    """Return the folder in which a stage is computed: its `work` survives kills, its `out` becomes the result."""
    return root / WORK / stage.replace("/", "--")


def start_try(home: Path, key: str) -> tuple[int, float]:
    """Create the folders `work` and `out`; return the number of earlier attempts with this key, and their seconds.

    The `work` of an interrupted attempt is kept if its key was the same.
    """
    file = home / "state.json"
    state = read_json(file) if file.is_file() else {}
    if state.get("key") != key:
        shutil.rmtree(home, ignore_errors=True)
        state = {"key": key, "tries": 0, "seconds": 0.0}
    else:  # a killed attempt lasted until its newest file was written; max() guards against a clock that was set back
        last = max(path.stat().st_mtime for path in home.rglob("*"))
        state["seconds"] += max(last - state["begun"], 0.0)
    shutil.rmtree(home / "out", ignore_errors=True)
    for name in ("work", "out"):
        (home / name).mkdir(parents=True, exist_ok=True)
    write_json(file, {**state, "tries": state["tries"] + 1, "begun": time.time()})
    return state["tries"], state["seconds"]


def finished_key(folder: Path) -> str | None:
    """Return the key of the finished stage in this folder, or None."""
    try:
        return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def make_directory(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{root} is a file or inside a file; give a directory as --output.") from None
    except OSError as error:
        raise UserError(f"{root} cannot be created ({error.strerror}); choose a writable --output.") from None


@contextmanager
def claim_run(root: Path, recipe_name: str) -> Iterator[None]:
    """Create and lock the run directory; raise an error if another recipe or process uses it.

    If a UserError ends a new run before its first stage, everything that was created is removed.
    """
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    make_directory(root)
    run_file = root / RUN_FILE
    is_new = not run_file.exists()
    if not is_new:
        refuse_other_owner(run_file.read_bytes(), str(root), recipe_name)
    elif any(path.name.removesuffix(PART) not in OUR_FILES for path in root.iterdir()):
        raise UserError(f"{root} contains files, but no run of weakdriven; give an empty or new --output.")
    (root / WORK).mkdir(exist_ok=True)
    busy = f"Another process is running in {root}; wait for it or give another --output."
    with locked(root / WORK / "lock", busy):
        if is_new:
            version = library_versions()["weakdriven"]
            write_json(run_file, {"recipe": recipe_name, "weakdriven": version, "created": now()})
        try:
            yield
        except UserError:
            begun = [path for path in (root / WORK).rglob("*") if path.is_file() and path.name != "lock"]
            if is_new and not begun and not list(root.glob(f"**/{MANIFEST}")):
                shutil.rmtree(root / WORK)
                for name in (RUN_FILE, RECIPE_FILE, PLAN_FILE):
                    (root / name).unlink(missing_ok=True)
                with suppress(OSError):  # stop at the first folder that is not empty
                    for folder in made:
                        folder.rmdir()
            raise


@contextmanager
def locked(path: Path, busy: str | Callable[[], None]) -> Iterator[None]:
    """Hold a lock file; if another process holds it, raise a UserError with the text `busy`, or call `busy` and
    wait."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if isinstance(busy, str):
                raise UserError(busy) from None
            busy()
            fcntl.flock(lock, fcntl.LOCK_EX)
        _held.add(lock)
        try:
            yield
        finally:
            _held.discard(lock)
            fcntl.flock(lock, fcntl.LOCK_UN)


_held: set[IO[str]] = set()
"""Locks of this process. A forked process must close them: a lock is released only when no process has it open."""


def _let_go() -> None:
    for lock in _held:
        lock.close()
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def refuse_other_owner(run_file: bytes, place: str, recipe_name: str) -> None:
    try:
        owner = json.loads(run_file)["recipe"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{place}/{RUN_FILE} cannot be read; give another --output.") from None
    if owner != recipe_name:
        raise UserError(
            f"{place} contains a run of recipe {owner!r}, not {recipe_name!r}; give another --output or remove it."
        )


def runs_in(folders: Sequence[Path]) -> list[Path]:
    """Return the given run directories and those inside the other folders, such as the output of compare and sweep."""
    found = list[Path]()
    for folder in folders:
        runs = [path.parent for depth in ("", "*/", "*/*/", "*/*/*/") for path in sorted(folder.glob(depth + RUN_FILE))]
        if not runs:
            raise UserError(
                f"{folder} is not a run directory and contains none: no {RUN_FILE} in it or up to three levels below; "
                "give the output of run, compare or sweep."
            )
        found += runs
    return found
