"""Shared by the tests of the sandbox: its methods, generous limits, and the processes on this machine."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weakdriven.eval.sandbox.run import CodeResult, isolation, no_isolation, run_code, why_not


@pytest.fixture(params=["bubblewrap", "unshare"])
def method(request) -> str:
    if reason := why_not(request.param):
        pytest.skip(f"{request.param} does not work here: {reason}")
    return request.param


@pytest.fixture
def run(method):
    """Run a program with each method, with more time than it needs."""
    return lambda program, **limits: run_code(program, **{"method": method, "timeout": 30, **limits})


@pytest.fixture
def isolated() -> str:
    """Return the method that is used here by default."""
    if isolation() == "none":
        pytest.skip(no_isolation())
    return isolation()


def refused(*calls: str) -> str:
    """Make a program that passes if each call raises OSError; `check(code)` raises it for a negative C code."""
    return (
        "import ctypes, os, signal, socket, stat, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "def check(code):\n    if code < 0: raise OSError(38, 'not implemented')\n"
        f"for call in ({' '.join(f'lambda: {call},' for call in calls)}):\n"
        "    try: call()\n    except OSError: continue\n    raise AssertionError(call.__code__.co_consts)\n"
    )


def assert_passes(result: CodeResult) -> None:
    assert result.passed, (result.status, result.stderr)


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def host_processes() -> set[int]:
    """Return the ids of this machine's processes that belong to sandboxes."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"sandbox" in command or b"/tmp/program.py" in command:
                found.add(int(entry.name))
    return found


def assert_no_new_processes(before: set[int]) -> None:
    """Wait until no new process is left, except those of sandboxes that other sessions started."""
    assert wait_until(lambda: not own(host_processes() - before)), own(host_processes() - before)


def own(pids: set[int]) -> set[int]:
    """Select the sandbox processes that this process started or whose parent is gone."""
    kept = set()
    for pid in pids:
        ancestor = pid
        while ancestor in pids:
            try:
                ancestor = int(Path(f"/proc/{ancestor}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                break
        if ancestor in (1, os.getpid()):
            kept.add(pid)
    return kept
