"""Runs that several tests look at; the embedded model and problems, cut down to seconds."""

import fcntl
import gc
import os
import pickle
import signal
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script, which tests' children inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported

import weakdriven.planning.rehearsal  # noqa: F401 - a run imports it late, and would keep what a test has patched
from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.data.demo import demo_rows
from weakdriven.data.rows import files
from weakdriven.runs.directory import Progress
from weakdriven.runs.stage import Planned
from weakdriven.runs.take_over import Siblings

SMALL = [
    *("data.limit=96", "eval.limit=24", "eval.max_new_tokens=48", "sft.epochs=1", "baselines=[sft]"),
    *("sft.batch_size=16", "sft.micro_batch_size=16", "sft.learning_rate=2e-3", "sft.save_steps=2"),
    *("joint.batch_size=16", "joint.micro_batch_size=16", "joint.learning_rate=2e-3", "joint.save_steps=2"),
]

demo_rows_once = cache(demo_rows)
files.demo_rows = lambda split: [dict(row) for row in demo_rows_once(split)]  # a run asks for them several times
modules = 0


def pytest_runtest_logstart() -> None:
    """A run collects garbage before each model; it need not search all imported modules each time."""
    global modules
    if len(sys.modules) != modules:
        modules = len(sys.modules)
        gc.collect()
        gc.freeze()


class Recorder(Progress):
    """Remembers which stages ran, why, which were skipped, and what was noted."""

    def __init__(self):
        self.ran: dict[str, str] = {}
        self.skipped: list[str] = []
        self.planned: list[Planned] = []
        self.notes: list[str] = []

    def plan(self, planned):
        self.planned = planned

    def begin(self, stage, reason):
        self.ran[stage] = reason

    def skip(self, stage):
        self.skipped.append(stage)

    def note(self, text):
        self.notes.append(text)


def small_recipe(*overrides: str) -> Recipe:
    return load_recipe("demo", [*SMALL, *overrides])


def run_small(root: Path, *overrides: str, siblings: Sequence[Path] = ()) -> Recorder:
    """Run the small recipe; stages that a sibling has finished with the same key are taken over from it.

    What an earlier call has finished with other settings is replaced.
    """
    from weakdriven.pipeline.run import RunOptions, run_recipe

    recorder = Recorder()
    run_recipe(small_recipe(*overrides), root, recorder, RunOptions(Siblings(siblings), replace=True))
    return recorder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a file with a fixture of module scope run in one worker, and so do those of the whole run.

    A test with a group of its own keeps it, since pytest-xdist makes a new group of two.
    """
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
        if "whole_run" in fixtures:
            item.add_marker(pytest.mark.xdist_group("whole-run"))
        elif any(one.scope == "module" for found in fixtures.values() for one in found):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    if "PYTEST_XDIST_WORKER" in os.environ:  # groups first, so that single tests fill up the workers at the end
        items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(scope="session")
def once(tmp_path_factory) -> Callable[[str, Callable[[Path], Any]], tuple[Path, Any]]:
    """Build a folder once for all workers: `path, result = once(name, build)`, where `build(path)` returns a result.

    Tests only read what it made; who changes something copies it first.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def built(name: str, build: Callable[[Path], Any]) -> tuple[Path, Any]:
        folder, result = shared / "once" / name, shared / "once" / f"{name}.pickle"
        result.parent.mkdir(exist_ok=True)
        with result.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the first worker builds, the others wait
            if not result.exists():
                result.write_bytes(pickle.dumps(build(folder)))
        return folder, pickle.loads(result.read_bytes())

    return built


@pytest.fixture(scope="session")
def two_round_run(once) -> tuple[Path, Recorder]:
    """A finished run of two rounds and its recorder."""
    return once("two-rounds", lambda root: run_small(root, "joint.rounds=2"))


@pytest.fixture(scope="session")
def whole_run(once) -> tuple[Path, Any]:
    """A run of one round through the command line, to its report: its directory and what the command printed."""
    from command_line import WHOLE, weakdriven

    return once("whole-run", lambda root: weakdriven("run", "demo", *WHOLE, "--output", root))


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without CUDA, also where there is one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
