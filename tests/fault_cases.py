"""The fault matrix: which fault hits which stage, with what result; and helpers for runs with faults."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from weakdriven.commands.verify import check_stages
from weakdriven.runs.files import file_digest

TINY = [
    *("data.limit=64", "eval.limit=8", "eval.max_new_tokens=16", "eval.batch_size=4", "baselines=[]"),
    *("sft.save_steps=1", "joint.save_steps=1", "selection.batch_tokens=1024", "sft.epochs=1"),
    *(f"{phase}.{name}=16" for phase in ("sft", "joint") for name in ("batch_size", "micro_batch_size")),
]
FORKED = pytest.mark.xdist_group("faults")
"""Group for tests of runs that are forked from one process and compared with one finished run."""
STAGES = {
    "data": "data",
    "sft": "sft",
    "entropy": "entropy/sft",
    "selection": "round-1/active",
    "joint": "round-1/strong",
    "eval": "eval/sft/arithmetic",
}
SAME = "the same command resumes, bit-identical"
RECOVERS = "detected and computed again, bit-identical"
REFUSED = "stops with one sentence, nothing changed"


class Case(NamedTuple):
    stage: str
    fault: str
    outcome: str


CASES = [
    *(Case(stage, "kill -9", SAME) for stage in STAGES),
    *(Case(stage, "SIGTERM", f"one sentence, exit code 143; {SAME}") for stage in STAGES),
    *(Case(stage, "Ctrl-C in training", f"one sentence, exit code 130; {SAME}") for stage in ("sft", "joint")),
    *(Case(stage, "full disk", f"one sentence; {SAME}") for stage in STAGES),
    *(Case(stage, "result truncated", REFUSED) for stage in STAGES),
    *(Case(stage, "result bit-flipped", REFUSED) for stage in STAGES),
    *(Case(stage, "result removed", REFUSED) for stage in STAGES),
    *(Case(stage, "checkpoint truncated", "the one before is used, bit-identical") for stage in ("sft", "joint")),
    *(Case(stage, "checkpoint bit-flipped", "the one before is used, bit-identical") for stage in ("sft", "joint")),
    Case("sft", "every checkpoint damaged", "the stage starts again and says so, bit-identical"),
    Case("entropy", "part truncated", RECOVERS),
    Case("entropy", "part bit-flipped", RECOVERS),
    Case("eval", "answers bit-flipped", RECOVERS),
    *(Case(stage, "NaN loss", f"one sentence; {SAME}") for stage in ("sft", "joint")),
    *(Case(stage, "out of memory", f"one sentence with three remedies; {SAME}") for stage in ("sft", "joint")),
    *(Case(stage, "clock set back", SAME) for stage in ("sft", "joint")),
    Case("eval", "dead server", "one sentence; the same command requests only what is missing"),
    Case("data", "vanished data file", REFUSED),
    Case("any", "two processes", "the second stops with one sentence; after kill -9 the lock is free"),
    Case("sft", "disk filled by others (tmpfs)", f"one sentence; {SAME}"),
    Case("all", "kill -9 at random times", SAME),
]


def cases(fault: str) -> list[Case]:
    return [case for case in CASES if case.fault == fault]


def params(fault: str, *, quick: tuple[str, ...] = ()) -> list:
    """Return the cases of a fault as parameters of a test, marked slow except for the named stages."""
    slow = pytest.mark.slow
    return [
        pytest.param(case, marks=[] if case.stage in quick else slow, id="-".join(case[:2])) for case in cases(fault)
    ]


def record(case: Case) -> None:
    """Record a case that passed, for `fault_matrix.py`."""
    if path := os.environ.get("FAULT_ROWS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(case) + "\n")


@dataclass
class Forks:
    """Runs the command line in forked processes, which start fast because everything is already imported."""

    folder: Path
    within: tuple[str, ...] = ()
    """Words before the command, for example to mount a disk."""
    server: subprocess.Popen = field(init=False)

    def __post_init__(self) -> None:
        threads = str(torch.get_num_threads())  # as in this process
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "COLUMNS": "200"}
        command = [*self.within, sys.executable, str(Path(__file__).with_name("fault_child.py"))]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.server = subprocess.Popen(command, env=environment, **pipes)
        self.count = 0

    def start(self, root: Path, fault: dict[str, Any] | None = None, *overrides: str) -> int:
        """Start a run and return its process; `finish` waits for it."""
        return self.begin(["run", "demo", *TINY, *overrides, "--output", str(root)], fault)

    def begin(self, argv: list[str], fault: dict[str, Any] | None = None) -> int:
        """Start any command."""
        assert self.server.stdin and self.server.stdout
        self.count += 1
        self.log = self.folder / f"run-{self.count}.log"
        print(json.dumps({"argv": argv, "fault": fault, "log": str(self.log)}), file=self.server.stdin, flush=True)
        return int(self.server.stdout.readline())

    def finish(self) -> tuple[int, str]:
        """Return the exit code (minus the signal's number if a signal ended the run) and the output."""
        assert self.server.stdout
        return int(self.server.stdout.readline()), self.log.read_text(encoding="utf-8")

    def run(self, root: Path, fault: dict[str, Any] | None = None, *overrides: str) -> tuple[int, str]:
        self.start(root, fault, *overrides)
        return self.finish()

    def close(self) -> None:
        assert self.server.stdin
        self.server.stdin.close()
        self.server.wait()


@cache
def session_forks() -> Forks:
    """Start the process from which all runs of a session are forked."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    forks = Forks(folder)
    atexit.register(forks.close)
    return forks


@cache
def struck_runs() -> tuple[Forks, Path]:
    """Return the process from which runs are forked, and a finished run without faults."""
    forks = session_forks()
    calm = forks.folder / "calm"
    code, output = forks.run(calm)
    assert code == 0, output
    return forks, calm


def killed_at(path: Path, *words: object) -> int:
    """Run a command whose process kills itself when a file appears, and return its exit code."""
    forks = session_forks()
    forks.begin([*map(str, words)], {"kind": "kill at", "path": str(path)})
    return forks.finish()[0]


def resumes(root: Path, fault: dict[str, Any] | None = None) -> str:
    """Run the same command again, and check that its results are those of the run without faults."""
    forks, calm = struck_runs()
    code, output = forks.run(root, fault)
    assert code == 0, output
    assert results(root) == results(calm)
    return output


def without(calm: Path, root: Path, stage: str) -> Path:
    """Copy the finished run without one stage."""
    shutil.copytree(calm, root)
    shutil.rmtree(root / STAGES[stage])
    return root


def results(root: Path) -> dict[str, str]:
    """Hash every file of every finished stage, except files that hold times and paths."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        of_stage = path.is_file() and "/" in name and not name.startswith(".work/")
        if of_stage and path.name not in ("manifest.json", "README.md"):
            found[name] = file_digest(path)
    return found


def damaged(root: Path) -> list[str]:
    """List finished stages whose files differ from their manifest."""
    return [stage for stage, _, _, wrong in check_stages(root) if wrong]


def one_sentence(output: str) -> str:
    """Return the line with the error, and check that there is no traceback."""
    assert "Traceback" not in output, output
    lines = [line for line in output.splitlines() if line.startswith(("Error: ", "Stopped"))]
    assert len(lines) == 1, output
    return lines[0]
