"""Who runs stages: `Listing` only names them, `DryRun` says which would run and why, `Run` computes them.

Each stage is computed in a work folder and renamed into place whole, with its manifest. A finished stage with the same
key is skipped; one whose key changed runs again, and the reason names the setting or input that changed.
"""

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
    """Stages in the order in which they are asked for; nothing is read or computed."""

    root: Path
    stages: dict[str, Stage] = field(default_factory=dict, init=False)
    computes: ClassVar[bool] = False

    def stage(self, name: str, compute: Compute, **options: Any) -> Stage:
        """The stage `name`, done as far as this executor does stages; `options` are fields of `Stage`."""
        if name not in self.stages:  # a later round reads what an earlier one has computed
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
        """Why the stage has to run; empty when it is finished."""
        taken = self.siblings.find(stage)
        reason = reason_taken(taken, self.root) if taken else why(stage)
        self.planned.append(Planned(stage.name, stage.key, reason, stage.facts["inputs"], taken and taken / stage.name))
        return reason


@dataclass(kw_only=True)
class Run(DryRun):
    """Computes the stages of a run directory that are not finished."""

    seed: int = 42
    progress: Progress = field(default_factory=Progress)
    is_main: bool = True
    """Of several processes on one run, the main one publishes; the others help with shared stages."""
    agree: Callable[[Any], Any] = lambda value: value
    """Wait for all processes of this run; gives every one the value of the main process."""
    copy: Callable[[str], None] | None = None
    """Called by the main process with the name of each finished stage."""
    message: Callable[[str, Exception], UserError | None] = lambda name, error: None
    """Optional hook: turns the exception of a stage into a better message."""
    failed: dict[str, BaseException] = field(default_factory=dict)
    """Stages that ended with an error: whoever asks for one again gets the same error, not an older result."""
    unread: dict[str, Path] = field(default_factory=dict)
    """Folders, by key, of stages that were finished before; each is checked when it is first read."""
    computes: ClassVar[bool] = True

    def stage(self, name: str, compute: Compute, **options: Any) -> Stage:
        if name in self.failed:
            raise self.failed[name]
        return super().stage(name, compute, **options)

    def do(self, stage: Stage) -> None:
        reason = self.look(stage)
        home = work_folder(self.root, stage.name)
        out = home / "out"  # it is whole if a kill came between the last byte and the rename
        whole = finished_key(out) == stage.key and not damage(out, files_of(out), contents=True)
        # all processes have looked before the main one changes anything, and all do what it found
        key, reason, whole, signal = self.agree((stage.key, reason, whole, stop_requested()))
        if signal:
            raise Stopped(signal)
        if key != stage.key:
            raise UserError(
                f"{stage.name}: this process and the first one see different settings or inputs; give all processes "
                "the same recipe, files and network."
            )
        if not reason:
            self.unread[stage.key] = stage.path
            self.progress.skip(stage.name)
            self._copy(stage)
            return
        with self.siblings.alone(stage, self.progress.note) if self.is_main else nullcontext():
            sibling = None
            if not whole:
                sibling = self.agree(self.siblings.find(stage))  # a run in progress may have finished it meanwhile
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
        """Within it, or in a function that it decorates, an error of the stage gets its better message."""
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
        ended_together(lambda: None, self.agree)  # the main process has made the folders
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
        sync_tree(home / "out")  # the manifest vouches for the rest, so it comes last
        write_json(home / "out" / MANIFEST, manifest)


def begun(stage: Stage, home: Path, reason: str) -> str:
    """Why a stage runs, with the point from which it resumes if an earlier try began it."""
    if point := resume_point(stage, home):
        return f"resuming {point}" if reason == NOT_RUN else f"{reason}; resuming {point}"
    return reason


def resume_point(stage: Stage, home: Path) -> str | None:
    """From where the stage would resume in its work folder; None if it starts from its beginning."""
    work, state = home / "work", home / "state.json"
    if not state.is_file() or read_json(state).get("key") != stage.key or not work.is_dir() or not any(work.iterdir()):
        return None
    return stage.resumes(work)


def why(stage: Stage) -> str:
    """Why a stage has to run, from what its folder holds; empty when it is finished."""
    gone = lost(stage.path, stage)
    try:
        old = json.loads((stage.path / MANIFEST).read_text(encoding="utf-8"))
        facts = {"settings": old["settings"], "inputs": old["inputs"]}
        redacted = ELLIPSIS in json.dumps(facts, ensure_ascii=False)  # by an earlier version, after it made the key
        if stage.key != old["key"] != digest(facts) and not redacted:
            raise ValueError("its key is not that of its settings and inputs")
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
        return f"{gone[0]} is gone" if gone else ""
    return ", ".join(reasons) or "its key changed"


def changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name, old and new value of what differs."""
    for key in [*new, *(key for key in old if key not in new)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from changes(before, after, f"{prefix}{key}.")
        elif before != after:
            yield prefix + key, before, after
