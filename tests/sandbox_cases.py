"""What the tests of the sandbox share: both methods, short limits, and the processes on this machine."""

import os
import time
from pathlib import Path

import pytest

from weakdriven.eval.sandbox.run import CodeResult, run_code, why_not


@pytest.fixture(params=["bubblewrap", "unshare"])
def method(request) -> str:
    if reason := why_not(request.param):
        pytest.skip(f"{request.param} does not work here: {reason}")
    return request.param


@pytest.fixture
def run(method):
    """Runs a program by one method and under short limits."""

    def run_here(program: str, **limits) -> CodeResult:
        return run_code(program, **{"method": method, "timeout": 5, **limits})

    return run_here


def assert_passes(result: CodeResult) -> None:
    assert result.passed, (result.status, result.stderr)


def host_processes() -> set[int]:
    """Python and bwrap processes of the machine, by number."""
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
    """The kernel may take a moment to collect the dead; sandboxes of other sessions on this machine do not count."""
    for _ in range(100):
        if not (left := own(host_processes() - before)):
            return
        time.sleep(0.05)
    raise AssertionError(left)


def own(pids: set[int]) -> set[int]:
    """Those of the sandbox processes that this process started, or that have lost who started them."""
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
