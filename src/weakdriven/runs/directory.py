"""The run directory: each stage is computed in a work folder and renamed into place whole, with its manifest.

A stage's key hashes its settings and the keys of its inputs, so it is known before anything runs: a finished stage
with the same key is skipped, and one whose key changed runs again and says which setting or input moved.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from weakdriven.errors import UserError
from weakdriven.runs.files import PART, digest, link, now, read_json, sync, sync_tree, write_json
from weakdriven.runs.machine import hardware, library_versions, peak_memory, reset_peak_memory
from weakdriven.runs.manifest import FILES, MANIFEST, damage, files_of, inventory, refuse_damage, remedy
from weakdriven.runs.processes import ended_together
from weakdriven.runs.signals import Stopped, stop_here, stop_requested

RUN_FILE, RECIPE_FILE, PLAN_FILE, WORK, REPORT = "run.json", "recipe.yaml", "plan.json", ".work", "report.html"
OUR_FILES, METRICS = (RUN_FILE, RECIPE_FILE, PLAN_FILE, WORK), "metrics.jsonl"
EXAMPLES, TOKENS, SCORES, ACTIVE = "examples.jsonl", "tokens.arrow", "scores.parquet", "active.parquet"
ITEMS, SAMPLES, BENCHMARK_SCORES = "items.jsonl", "samples.jsonl", "scores.json"
FUNNEL, TRAIN, BUDGET = "funnel.json", "train.jsonl", "budget.json"
DIAGNOSTICS, SNAPSHOTS = "diagnostics", "snapshots"
DIAGNOSIS_VERSION = 2
"""Of what `weakdriven diagnose` measures; raised where results of an older version must not be used."""

NOT_RUN = "not run yet"
STATE = ("tries", "seconds", "begun")
"""Numbers of a try that the next one asks for."""

Compute = Callable[[Path, Path], dict[str, Any]]
"""Takes a work folder that survives kills and an empty output folder; returns the counters for the manifest."""


@dataclass(frozen=True)
class Stage:
    """A stage that is finished, or will be before anyone reads its path."""

    name: str
    path: Path
    key: str


@dataclass(frozen=True)
class Planned:
    name: str
    key: str
    reason: str
    """Why it has to run; empty when it is done."""
    inputs: dict[str, str] = field(default_factory=dict, compare=False)
    """Name and key of what it reads."""
    taken: Path | None = None
    """The folder of another run's same stage, which is taken over."""


class Progress:
    """What a run tells the person watching; this one says nothing."""

    def plan(self, planned: list["Planned"]) -> None: ...
    def begin(self, stage: str, reason: str) -> None: ...
    def skip(self, stage: str) -> None: ...
    def note(self, text: str) -> None: ...
    def update(self, done: int, total: int, **facts: float) -> None:
        stop_here()

    def end(self, stage: str, seconds: float) -> None: ...
    def close(self) -> None: ...


@dataclass
class Run:
    """Runs stages in a directory, or (with `dry`) only finds out which would run and why."""

    root: Path
    seed: int = 42
    dry: bool = False
    progress: Progress = field(default_factory=Progress)
    planned: list[Planned] = field(default_factory=list)
    leads: bool = True
    """Of several processes on one run, the first publishes; the others help with shared stages."""
    agree: Callable[[Any], Any] = lambda value: value
    """Wait for all processes of this run; gives every one the value of the first."""
    failed: dict[str, BaseException] = field(default_factory=dict)
    """Stages that ended with an error: who asks for one again gets the same error, not what an older run left there."""
    siblings: Sequence[Path] = ()
    """Other runs: a stage that one of them has finished under the same key is taken over, not computed again."""
    locks: Path | None = None
    """Folder of locks by key: of several runs at once that need the same stage one computes it and the others wait."""
    unread: dict[str, Path] = field(default_factory=dict)
    """Folders by key of stages that were done before; each is read back and checked when it is first an input."""
    copy: Callable[[str], None] | None = None
    """Called by the first process with the name of each stage that is finished, now or before."""
    told: Callable[[str, Exception], UserError | None] = lambda name, error: None
    """What to say of a stage's error where there is more to say than the error does; None: nothing."""

    def stage(
        self,
        name: str,
        compute: Compute,
        *,
        settings: dict[str, Any],
        inputs: dict[str, str],
        execution: dict[str, Any] | None = None,
        shared: bool = False,
        holds: Sequence[str] = (),
    ) -> Stage:
        """Compute stage `name` unless it is done.

        Args:
            settings: What decides the result; part of the key.
            inputs: Name and key of everything that is read; part of the key.
            execution: Settings that change speed or memory and not the result, such as a micro-batch size.
            shared: Every process of the run computes a part; otherwise the first one works and the others wait.
            holds: What the result has inside and must still have there; else it is computed again.
        """
        settings = json.loads(json.dumps(settings))
        stage = Stage(name, self.root / name, digest({"settings": settings, "inputs": inputs}))
        if name in self.failed:
            raise self.failed[name]
        if name in (entry.name for entry in self.planned):
            return stage  # a later round reads what an earlier one has computed
        taken = self._sibling(stage, holds)
        reason = self._taken_from(taken) if taken else self._why(stage, settings, inputs, holds)
        self.planned.append(Planned(name, stage.key, reason, inputs, taken and taken / name))
        if self.dry:
            return stage
        home = work_folder(self.root, name)
        out = home / "out"  # it is whole if a kill came between the last byte and the rename
        whole = _key(out) == stage.key and not damage(out, files_of(out), contents=True)
        # all have looked before the first one changes anything, and all do what it found
        key, reason, whole, signal = self.agree((stage.key, reason, whole, stop_requested()))
        if signal:
            raise Stopped(signal)
        if key != stage.key:
            raise UserError(
                f"{name}: this process and the first one see different settings or inputs; give all processes the same "
                "recipe, files and network."
            )
        if not reason:
            self.unread[stage.key] = stage.path
            self.progress.skip(name)
            self._copy(stage)
            return stage
        with self._alone(stage):
            sibling = None
            if self.siblings and not whole:
                sibling = self.agree(self._sibling(stage, holds))  # one at work may finish it between two looks
            self.progress.begin(name, self._taken_from(sibling) if sibling else reason)
            begin = time.monotonic()
            if sibling:
                taking = partial(_take_over, sibling / name, home / "out")
                ended_together(taking if self.leads else lambda: None, self.agree)
            elif not whole:
                facts = {"settings": settings, "execution": execution or {}, "inputs": inputs}
                compute = self.telling(name)(compute)
                try:
                    helping = partial(self._help, home, compute, shared)
                    work = partial(self._compute, stage, home, compute, facts) if self.leads else helping
                    work() if shared else ended_together(work, self.agree)
                except BaseException as error:
                    self.failed[name] = error
                    if isinstance(error, Stopped):
                        error.stage = name
                    raise
            ended_together(partial(put_in_place, home, stage.path) if self.leads else lambda: None, self.agree)
        self._copy(stage)
        self.progress.end(name, time.monotonic() - begin)
        return stage

    def _copy(self, stage: Stage) -> None:
        if copy := self.copy:
            ended_together((lambda: copy(stage.name)) if self.leads else lambda: None, self.agree)

    def _check_inputs(self, inputs: dict[str, str]) -> None:
        for key in inputs.values():
            if folder := self.unread.get(key):
                refuse_damage(folder)
                del self.unread[key]

    @contextmanager
    def _alone(self, stage: Stage) -> Iterator[None]:
        """Nobody else who has the same locks computes this stage meanwhile."""
        if self.locks is None or not self.leads:
            yield
            return
        self.locks.mkdir(parents=True, exist_ok=True)
        with (self.locks / stage.key).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.progress.note(f"{stage.name}: another run is computing it; this one waits for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a forked process may hold the file open still

    @contextmanager
    def telling(self, name: str) -> Iterator[None]:
        """Within it, or in a function that it decorates, an error of the stage is `told`."""
        try:
            yield
        except Exception as error:
            if sentence := self.told(name, error):
                raise sentence from error
            raise

    def _help(self, home: Path, compute: Compute, shared: bool) -> None:
        ended_together(lambda: None, self.agree)  # the first process has made the folders
        if shared:
            compute(home / "work", home / "out")

    def _compute(self, stage: Stage, home: Path, compute: Compute, facts: dict[str, Any]) -> None:
        def start() -> tuple[int, float]:
            self._check_inputs(facts["inputs"])
            return _start_try(home, stage.key)

        begin, (tries, seconds_before) = time.monotonic(), ended_together(start, self.agree)
        reset_peak_memory()
        try:
            counters = compute(home / "work", home / "out")
        except UserError:
            if not any((home / "work").iterdir()):
                shutil.rmtree(home)
            raise
        manifest = {
            "stage": stage.name,
            "key": stage.key,
            **facts,
            "versions": library_versions(),
            "hardware": hardware(),
            "seed": self.seed,
            "wall_seconds": round(seconds_before + time.monotonic() - begin, 3),
            "peak_memory_bytes": peak_memory(),
            "finished": now(),
            "resumed": tries,
            "counters": counters,
        }
        if stage.name != DIAGNOSTICS:  # which `diagnose` makes anew where it is not whole
            manifest[FILES] = inventory(home / "out")
        sync_tree(home / "out")  # the manifest vouches for the rest, so it comes last
        write_json(home / "out" / MANIFEST, manifest)

    def _sibling(self, stage: Stage, holds: Sequence[str]) -> Path | None:
        if _key(stage.path) == stage.key and not _lost(stage.path, holds):
            return None
        for run in self.siblings:
            folder = run / stage.name
            finished = _key(folder) == stage.key and not _lost(folder, holds)
            if finished and not damage(folder, files_of(folder), contents=False):
                return run
        return None

    def _taken_from(self, sibling: Path) -> str:
        return f"taken over from {os.path.relpath(sibling, self.root.parent)}"

    def _why(self, stage: Stage, settings: dict[str, Any], inputs: dict[str, str], holds: Sequence[str]) -> str:
        lost = _lost(stage.path, holds)
        try:
            old = json.loads((stage.path / MANIFEST).read_text(encoding="utf-8"))
            own = digest({"settings": old["settings"], "inputs": old["inputs"]})
            if stage.key != old["key"] != own:
                raise ValueError("its key is not that of its settings and inputs")
            changes = [f"{key} {before} -> {after}" for key, before, after in _changes(old["settings"], settings)]
            changes += [f"input {key} changed" for key, _, _ in _changes(old["inputs"], inputs)]
        except FileNotFoundError:
            return NOT_RUN
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if stage.name == DIAGNOSTICS:
                return "its manifest cannot be read"
            raise UserError(
                f"{stage.path / MANIFEST} is damaged ({type(error).__name__}: {error}). {remedy(stage.path)}"
            ) from error
        if old["key"] == stage.key:
            refuse_damage(stage.path, contents=False, spare=lost)
            return f"{lost[0]} is gone" if lost else ""
        return ", ".join(changes) or "its key changed"


def put_in_place(home: Path, target: Path) -> None:
    """Make what a stage's work folder holds in `out` its result."""
    _publish(home / "out", target)
    shutil.rmtree(home, ignore_errors=True)


def work_folder(root: Path, stage: str) -> Path:
    """Where a stage is computed: `work` in it survives kills, `out` becomes the result."""
    return root / WORK / stage.replace("/", "--")


def _start_try(home: Path, key: str) -> tuple[int, float]:
    """Make the folders `work` and `out`; returns how many tries at this key came before and the seconds they took.

    What an interrupted try left in `work` is kept if it was at the same key.
    """
    try:
        state = json.loads((home / "state.json").read_text(encoding="utf-8"))
        known = state["key"] == key and all(isinstance(state[name], int | float) for name in STATE)
    except (OSError, ValueError, KeyError, TypeError):
        state, known = {}, False
    if not known:
        shutil.rmtree(home, ignore_errors=True)
        state = {"key": key, "tries": 0, "seconds": 0.0}
    else:  # a killed try cannot say how long it took, but its newest file can, unless the clock was set back since
        last = max(path.stat().st_mtime for path in home.rglob("*"))
        state["seconds"] = max(state["seconds"], 0.0) + max(last - state["begun"], 0.0)
    shutil.rmtree(home / "out", ignore_errors=True)
    for name in ("work", "out"):
        (home / name).mkdir(parents=True, exist_ok=True)
    write_json(home / "state.json", {**state, "tries": state["tries"] + 1, "begun": time.time()})
    return state["tries"], state["seconds"]


def _key(folder: Path) -> str | None:
    """Key of the stage that was finished in this folder, if one was."""
    try:
        return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lost(folder: Path, holds: Sequence[str]) -> list[str]:
    return [name for name in holds if not (folder / name).exists()]


@contextmanager
def claimed(root: Path, recipe_name: str) -> Iterator[None]:
    """Hold the run directory of a recipe, made if need be; refuse one that belongs to another recipe or process.

    If the recipe turns out to be wrong before any stage of a new run is finished, no trace is left.
    """
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{root} is or lies under a file; give a directory as --output.") from None
    run_file = root / RUN_FILE
    is_new = not run_file.exists()
    if not is_new:
        refuse_other_owner(run_file.read_bytes(), str(root), recipe_name)
    elif any(path.name.removesuffix(PART) not in OUR_FILES for path in root.iterdir()):
        raise UserError(f"{root} holds files but no run of weakdriven; give an empty or new --output.")
    (root / WORK).mkdir(exist_ok=True)
    with (root / WORK / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another process is running in {root}; wait for it or give another --output.") from None
        _held.add(lock)
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
                with suppress(OSError):  # up to the first folder that others use too
                    for folder in made:
                        folder.rmdir()
            raise
        finally:
            _held.discard(lock)
            fcntl.flock(lock, fcntl.LOCK_UN)


_held: set[IO[str]] = set()
"""Locks of this process. A forked one must not share them: a lock is free only when all who have it open are gone."""


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
            f"{place} holds a run of recipe {owner!r}, not {recipe_name!r}; give another --output or remove it."
        )


def _publish(out: Path, target: Path) -> None:
    """Put a finished folder in place; an older result is moved aside first and removed last."""
    target.parent.mkdir(parents=True, exist_ok=True)
    old = out.with_name("replaced")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(out, target)
    sync(target.parent)


def runs_in(folders: Sequence[Path]) -> list[Path]:
    """Run directories that these are or hold: a run, or what `compare`, `sweep` or a folder of theirs is made of."""
    found: dict[Path, list[Path]] = {
        folder: [
            path.parent for depth in ("", "*/", "*/*/", "*/*/*/") for path in sorted(folder.glob(depth + RUN_FILE))
        ]
        for folder in folders
    }
    if empty := [str(folder) for folder, runs in found.items() if not runs]:
        raise UserError(
            f"{empty[0]} is no run directory and holds none: no {RUN_FILE} in it or in three levels of folders "
            "below; give what run, compare or sweep wrote."
        )
    return [run for runs in found.values() for run in runs]


def _take_over(finished: Path, out: Path) -> None:
    """The finished stage of another run as this one's: the same files under a second name where the disk can do that.

    Whoever changes a file of a finished stage replaces it, so the other run keeps its own.
    """
    if found := damage(finished, files_of(finished), contents=True):
        raise UserError(f"{found}. {remedy(finished)} If it came by --take-from, leave that run out instead.")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(finished, out, copy_function=link, ignore=shutil.ignore_patterns(MANIFEST))
    sync_tree(out)  # the manifest vouches for the rest, so it comes last
    write_json(out / MANIFEST, read_json(finished / MANIFEST) | {"taken_from": str(finished)})


def _changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in [*new, *(key for key in old if key not in new)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _changes(before, after, f"{prefix}{key}.")
        elif before != after:
            yield prefix + key, before, after
