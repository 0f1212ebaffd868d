"""What a run is doing, found out from its files alone: for whoever watches it from another process."""

import json
import os
import time
from pathlib import Path
from typing import Any

from weakdriven.report.format import duration, number
from weakdriven.runs.directory import METRICS, PLAN_FILE, WORK, work_folder
from weakdriven.runs.manifest import MANIFEST
from weakdriven.runs.progress import Pace

TAIL = 1 << 16
"""Bytes at the end of metrics.jsonl that surely hold a whole line."""


class UnderWay:
    """One line about a run; the pace is that since this object first saw the stage."""

    def __init__(self, run: Path):
        self.run = run
        self.stage, self.pace = "", Pace()

    def line(self) -> str:
        """
        >>> UnderWay(Path("/nowhere")).line()
        'No stage has begun yet.'
        """
        plan = _read(self.run / PLAN_FILE)
        done = [name for name, key in plan.items() if _read(self.run / name / MANIFEST).get("key") == key]
        runs = is_held(self.run / WORK / "lock")
        stage = self._newest(plan)
        if plan and len(done) == len(plan):
            return f"All {len(plan)} stages are done."
        if not stage:
            told = f"{len(done)} of {len(plan)} stages are done" if plan else "No stage has begun yet"
            return f"{told}{'; no process works on them' if plan and runs is False else ''}."
        if stage != self.stage:
            self.stage, self.pace = stage, Pace()
        home = work_folder(self.run, stage)
        place = f"[{list(plan).index(stage) + 1}/{len(plan)}] " if stage in plan else ""
        if runs is False:
            return f"{place}{stage}: begun and stopped; run the same recipe again to go on."
        begun = number(_read(home / "state.json").get("begun"))
        facts = self._training(last_row(home / "work" / METRICS))
        if not facts and begun:
            facts = [f"for {duration(max(time.time() - begun, 0))}"]
        return "  ".join([f"{place}{stage}", *facts])

    def _newest(self, plan: dict[str, Any]) -> str:
        """The stage whose last try began last."""
        folders = {name: work_folder(self.run, name) for name in plan}
        begun = {name: number(_read(folder / "state.json").get("begun")) for name, folder in folders.items()}
        begun = {name: value for name, value in begun.items() if value is not None}
        return max(begun, key=lambda name: begun[name], default="")

    def _training(self, row: dict[str, Any]) -> list[str]:
        """Step, loss, rate and time left; all rows of a phase are one pass of Trainer, which logs how much of it is
        done as `epoch`."""
        step, share, loss = (number(row.get(name)) for name in ("step", "epoch", "loss"))
        if step is None:
            return []
        total = round(step / share) if share else None
        facts = [f"step {step:,}" + (f"/{total:,}" if total else "")]
        facts += [f"loss {loss:.4g}"] if loss is not None else ["loss is not a number"]
        if rate := self.pace.rate(step):
            facts.append(f"{rate:.2g}/s")
            facts += [f"{duration((total - step) / rate)} left"] if total else []
        return facts


def last_row(path: Path) -> dict[str, Any]:
    """The last whole row of a file that is being written; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    for line in reversed(lines[:-1]):  # what stands after the last line feed is not whole
        try:
            row = json.loads(line)
        except ValueError:
            continue
        return row if isinstance(row, dict) else {}
    return {}


def is_held(lock: Path) -> bool | None:
    """Whether a process holds the lock of a run; None where that cannot be told.

    Trying to take the lock would tell too, and could turn away a run that starts in that moment.
    """
    try:
        facts = lock.stat()
        held = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None if not Path("/proc/locks").exists() else False
    except OSError:
        return None
    device = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    return any(device in line.split() for line in held.splitlines())


def _read(path: Path) -> dict[str, Any]:
    """The values in a file; none if it is missing or half written."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
