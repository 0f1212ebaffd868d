"""Fixtures and groups of all tests. Imports are late, because pytest-xdist's first process only distributes tests."""

import fcntl
import gc
import os
import pickle
import signal
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a script's background, and inherited by child processes
    signal.signal(signal.SIGINT, signal.default_int_handler)

modules = 0


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("numprocesses", None):
        return
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
    import small_runs  # noqa: F401


def pytest_runtest_logstart() -> None:
    """Exclude imported modules from garbage collection, which runs do before each model."""
    global modules
    if len(sys.modules) != modules:
        modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a file with a module fixture in one worker, and so those of the complete run.

    A test with its own group keeps it, because pytest-xdist makes a new group of two.
    """
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
        if "whole_run" in fixtures:
            item.add_marker(pytest.mark.xdist_group("whole-run"))
        elif any(one.scope == "module" for found in fixtures.values() for one in found):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    if "PYTEST_XDIST_WORKER" in os.environ:  # long groups come first, and single tests fill up the workers at the end
        items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in ("xdist_group", "timeout")))


@pytest.fixture(scope="session")
def once(tmp_path_factory) -> Callable[[str, Callable[[Path], Any]], tuple[Path, Any]]:
    """Build a folder once for all workers: `path, result = once(name, build)`, where `build(path)` returns a result.

    Tests only read the result; a test that changes something copies it first.
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
def two_round_run(once) -> tuple[Path, Any]:
    """A finished run of two rounds and its recorder."""
    from small_runs import run_small

    return once("two-rounds", lambda root: run_small(root, "joint.rounds=2"))


@pytest.fixture(scope="session")
def whole_run(once) -> tuple[Path, Any]:
    """A run of one round through the command line, with its report: its directory and the command's output."""
    from command_line import WHOLE, weakdriven

    return once("whole-run", lambda root: weakdriven("run", "demo", *WHOLE, "--output", root))


@pytest.fixture
def no_gpu(monkeypatch):
    """Hide the GPU, if there is one."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
