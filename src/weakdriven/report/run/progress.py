"""Describe what a run in progress is doing, from its files alone."""

import fcntl
import time
from pathlib import Path
from typing import Any

from weakdriven.report.files import read_object
from weakdriven.report.format import WAITING, duration, number
from weakdriven.runs.directory import VALIDATION_LOSS, WORK, work_folder


class Progress:
    """Describes a run in one line; the rate counts from when this object first saw the stage."""

    def __init__(self, run: Path):
        self.run, self.stage, self.first = run, "", (0.0, 0.0)

    def line(self, data: dict[str, Any]) -> str:
        """Say what the run is doing; empty if no process works on it or no stage has begun."""
        names = [stage["name"] for stage in data["stages"]]
        waiting = [stage["name"] for stage in data["stages"] if stage["status"] in WAITING]
        states = {name: read_object(work_folder(self.run, name) / "state.json") for name in waiting}
        begun = {name: state["begun"] for name, state in states.items() if state}
        stage = max(begun, key=lambda name: begun[name], default="")  # the stage begun last
        if not stage or not is_running(self.run):
            return ""
        facts = self._training(stage, data["metrics"].get(stage, []))
        facts = facts or [f"for {duration(max(time.time() - begun[stage], 0))}"]
        return ", ".join([f"stage {names.index(stage) + 1} of {len(names)}, {stage}", *facts])

    def _training(self, stage: str, rows: list[dict[str, Any]]) -> list[str]:
        """Describe step, losses, rate and time left; Trainer logs the finished share of a phase as `epoch`."""
        row, evaluated = (next((row for row in reversed(rows) if key in row), {}) for key in ("loss", VALIDATION_LOSS))
        step, share, loss = (number(row.get(name)) for name in ("step", "epoch", "loss"))
        if step is None:
            return []
        now, total = time.monotonic(), round(step / share) if share else None
        if stage != self.stage:
            self.stage, self.first = stage, (step, now)
        facts = [f"step {step:,}" + (f" of {total:,}" if total else "")]
        facts.append("the loss is not a number" if loss is None else f"loss {loss:.4g}")
        if (validation := number(evaluated.get(VALIDATION_LOSS))) is not None:
            facts.append(f"validation loss {validation:.4g}")
        if (done := step - self.first[0]) > 0 and now > self.first[1]:
            rate = done / (now - self.first[1])
            facts += [f"{rate:.2g} steps per second", *([f"{duration((total - step) / rate)} left"] if total else [])]
        return facts


def is_running(run: Path) -> bool:
    """Return whether a process holds the lock of a run (`runs.directory.claim_run`).

    The test takes a shared lock for an instant, in which a starting run could find the directory locked.
    """
    path = run / WORK / "lock"
    if not path.is_file():
        return False
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
