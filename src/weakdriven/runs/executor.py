"""Three executors of stages: `Listing` only names them, `DryRun` says which would run and why, `Run` computes them.

A stage is computed in a work folder, gets its manifest, and is renamed into place in one step. A finished stage with
the same key is skipped; if the key changed, it runs again, and the reason names the setting or input that changed."""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from weakdriven.errors import UserError
from weakdriven.runs.directory import DIAGNOSTICS, Progress, finished_key, put_in_place, start_try, work_folder
from weakdriven.runs.files import digest, now, read_json, sync_tree, write_json
from weakdriven.runs.machine import hardware, library_versions, peak_memory, reset_peak_memory
from weakdriven.runs.manifest import FILES, MANIFEST, damage, files_of, inventory, refuse_damage, remedy
from weakdriven.runs.processes import ended_together
from weakdriven.runs.redact import ELLIPSIS
from weakdriven.runs.signals import Stopped, stop_requested
from weakdriven.runs.stage import NOT_RUN, Compute, Planned, Stage, called
from weakdriven.runs.take_over import Siblings, lost, reason_taken, take_over


@dataclass
class Listing:
    """Lists stages in the order in which they are asked for, without reading or computing anything."""

    root: Path
    stages: dict[str, Stage] = field(default_factory=dict, init=False)
    computes: ClassVar[bool] = False

    def stage(self, name: str, compute: Compute, **options: Any) -> Stage:
        """Return the stage `name` after this executor has processed it; `options` are fields of `Stage`."""
        if name not in self.stages:  # rounds share stages: one's strong model is the next one's weak model
            stage = Stage(name, self.root, compute, **options)
            self.do(stage)
            self.stages[name] = stage
        return self.stages[name]

    def do(self, stage: Stage) -> None: ...


@dataclass
class DryRun(Listing):
    """Finds out which stages would run and why."""

    siblings: Siblings = field(default_factory=Siblings)
    planned: list[Planned] = field(default_factory=list, init=False)

    def do(self, stage: Stage) -> None:
        self.look(stage)

    def look(self, stage: Stage) -> str:
        """Return why the stage must run, or "" if it is finished."""
        taken = self.siblings.find(stage)
        reason = reason_taken(taken, self.root) if taken else why(stage)
        self.planned.append(Planned(stage.name, stage.key, reason, stage.facts["inputs"], taken and taken / stage.name))
        return reason


@dataclass(kw_only=True)
class Run(DryRun):
    """Computes the unfinished stages of a run directory."""

    seed: int = 42
    progress: Progress = field(default_factory=Progress)
    is_main: bool = True
    """Only the main process moves stages into place; the others help with shared stages."""
    agree: Callable[[Any], Any] = lambda value: value
    """Waits for all processes of this run and returns the main process's value in each."""
    copy: Callable[[str], None] | None = None
    """Optional hook: the main process calls it with the name of each finished stage."""
    message: Callable[[str, Exception], UserError | None] = lambda name, error: None
    """Optional hook: turns the exception of a stage into a better message."""
    failed: dict[str, BaseException] = field(default_factory=dict)
    """Errors of failed stages by name; asking for such a stage again raises its error instead of using an old
    result."""
    unread: dict[str, Path] = field(default_factory=dict)
    """Folders by key of stages that an earlier process finished; their files are verified before they are first
    read."""
    computes: ClassVar[bool] = True

    def stage(self, name: str, compute: Compute, **options: Any) -> Stage:
        if name in self.failed:
            raise self.failed[name]
        return super().stage(name, compute, **options)

    def do(self, stage: Stage) -> None:
        reason = self.look(stage)
        home = work_folder(self.root, stage.name)
        out = home / "out"  # complete if the process was killed just before the rename
        whole = finished_key(out) == stage.key and not damage(out, files_of(out), contents=True)
        # wait until all processes have looked, before the main process changes anything; all follow its finding
        key, reason, whole, signal = self.agree((stage.key, reason, whole, stop_requested()))
        if signal:
            raise Stopped(signal)
        if key != stage.key:
            raise UserError(
                f"{stage.name}: this process and the main process have different settings or inputs; give all "
                "processes the same recipe, files and network access."
            )
        if not reason:
            self.unread[stage.key] = stage.path
            self.progress.skip(stage.name)
            self._copy(stage)
            return
        with self.siblings.alone(stage, self.progress.note) if self.is_main else nullcontext():
            sibling = None
            if not whole:
                sibling = self.agree(self.siblings.find(stage))  # another run may have finished it in the meantime
            self.progress.begin(stage.name, reason_taken(sibling, self.root) if sibling else begun(stage, home, reason))
            begin = time.monotonic()
            if sibling:
                self._on_main(partial(take_over, sibling / stage.name, out))
            elif not whole:
                self._try(stage, home)
            self._on_main(partial(put_in_place, home, stage.path))
        self._copy(stage)
        self.progress.end(stage.name, time.monotonic() - begin)

    @contextmanager
    def explained(self, name: str) -> Iterator[None]:
        """Replace an error of the stage by a better message, if there is one; also usable as a decorator."""
        try:
            yield
        except Exception as error:
            if better := self.message(name, error):
                raise better from error
            raise

    def _on_main(self, work: Callable[[], Any]) -> None:
        ended_together(work if self.is_main else lambda: None, self.agree)

    def _copy(self, stage: Stage) -> None:
        if copy := self.copy:
            self._on_main(lambda: copy(stage.name))

    def _try(self, stage: Stage, home: Path) -> None:
        compute = self.explained(stage.name)(stage.compute)
        work = partial(self._compute if self.is_main else self._help, stage, home, compute)
        try:
            work() if stage.shared else ended_together(work, self.agree)
        except (Stopped, KeyboardInterrupt) as error:
            stop = error if isinstance(error, Stopped) else Stopped(signal.SIGINT.name)
            point = resume_point(stage, home)
            stop.stage, stop.then = stage.name, f"resumes {point}" if point else "starts again"
            self.failed[stage.name] = stop
            raise stop from None
        except BaseException as error:
            self.failed[stage.name] = error
            raise

    def _help(self, stage: Stage, home: Path, compute: Compute) -> None:
        ended_together(lambda: None, self.agree)  # wait until the main process has created the folders
        if stage.shared:
            compute(home / "work", home / "out")

    def _compute(self, stage: Stage, home: Path, compute: Compute) -> None:
        def start() -> tuple[int, float]:
            for key in stage.facts["inputs"].values():
                if folder := self.unread.get(key):
                    refuse_damage(folder)
                    del self.unread[key]
            return start_try(home, stage.key)

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
            "settings": stage.facts["settings"],
            "execution": called(stage.execution),
            "inputs": stage.facts["inputs"],
            "versions": library_versions(),
            "hardware": hardware(),
            "seed": self.seed,
            "wall_seconds": round(seconds_before + time.monotonic() - begin, 3),
            "peak_memory_bytes": peak_memory(),
            "finished": now(),
            "resumed": tries,
            "counters": counters,
        }
        manifest[FILES] = inventory(home / "out")
        sync_tree(home / "out")  # the manifest says that all files are complete, so it is written last
        write_json(home / "out" / MANIFEST, manifest)


def begun(stage: Stage, home: Path, reason: str) -> str:
    """Return why a stage runs, and where it resumes if an earlier attempt has started it."""
    if point := resume_point(stage, home):
        return f"resuming {point}" if reason == NOT_RUN else f"{reason}; resuming {point}"
    return reason


def resume_point(stage: Stage, home: Path) -> str | None:
    """Return the point from which the stage would resume, or None if it would start from the beginning."""
    work, state = home / "work", home / "state.json"
    if not state.is_file() or read_json(state).get("key") != stage.key or not work.is_dir() or not any(work.iterdir()):
        return None
    return stage.resumes(work)


def why(stage: Stage) -> str:
    """Return why a stage must run, judging by its folder, or "" if it is finished."""
    gone = lost(stage.path, stage)
    try:
        old = json.loads((stage.path / MANIFEST).read_text(encoding="utf-8"))
        facts = {"settings": old["settings"], "inputs": old["inputs"]}
        redacted = ELLIPSIS in json.dumps(
            facts, ensure_ascii=False
        )  # earlier versions redacted manifests after hashing
        if stage.key != old["key"] != digest(facts) and not redacted:
            raise ValueError("its key does not match its settings and inputs")
        changed = changes(old["settings"], stage.facts["settings"])
        reasons = [f"{key} {before} -> {after}" for key, before, after in changed]
        reasons += [f"input {key} changed" for key, _, _ in changes(old["inputs"], stage.facts["inputs"])]
    except FileNotFoundError:
        return NOT_RUN
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if stage.name == DIAGNOSTICS:
            return "its manifest cannot be read"
        raise UserError(
            f"{stage.path / MANIFEST} is damaged ({type(error).__name__}: {error}). {remedy(stage.path)}"
        ) from error
    if old["key"] == stage.key:
        refuse_damage(stage.path, contents=False, spare=gone)
        return f"{gone[0]} is missing" if gone else ""
    return ", ".join(reasons) or "its key changed"


def changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, old value and new value of each difference."""
    for key in [*new, *(key for key in old if key not in new)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from changes(before, after, f"{prefix}{key}.")
        elif before != after:
            yield prefix + key, before, after
