"""Run generated code isolated from the host, and accept a program only if its last statement was reached.

`run_code` starts `watcher.py` isolated from the host, and the watcher starts the program;
docs/background/sandbox.md says what the program sees and what this does not protect from.
"""

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from weakdriven.errors import UserError
from weakdriven.eval.sandbox import watcher
from weakdriven.eval.sandbox.isolation import METHODS, WATCHER, Interpreter, interpreter, isolating_command, last_line

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # keeps the order of sets equal between gradings
    "MALLOC_ARENA_MAX": "2",  # else each thread reserves 64 MiB of the limited address space
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")},
}
STARTED = b"started\n"
OUTPUT_LIMIT = 4 * 2**20
GRACE = 15.0
"""Seconds after which a sandbox that should have ended is killed from outside."""

# What a method must guarantee: no other process is visible, no interface except loopback, no writable mount outside
# /tmp and /dev, no rights.
PROBE = """
import os, socket
assert [name for _, name in socket.if_nameindex()] in ([], ["lo"]), "the network is visible"
assert sum(name.isdigit() for name in os.listdir("/proc")) <= 2, "other processes are visible"
mounts = [line.split()[4:6] for line in open("/proc/self/mountinfo")]
assert [place for place, _ in mounts].count("/") == 1, "the root of the host is still mounted"
for place, flags in mounts:
    assert place == "/tmp" or place.startswith("/dev/") or "ro" in flags.split(","), place + " is writable"
rights = [int(line.split()[1], 16) for line in open("/proc/self/status") if line.startswith("Cap")]
assert os.getuid() and not any(rights), "the program has rights"
"""


@dataclass(frozen=True)
class CodeResult:
    status: str
    """passed, failed (an exception), exited_early, timeout, memory, output, processes, disk, killed (by a signal) or
    forged (it faked its own end)."""
    stderr: str
    """Last 4 KiB of the program's standard error."""
    seconds: float
    """Wall time of the program, without starting its interpreter."""
    stdout: str = ""
    """What the program printed, if `keep_stdout` was set."""

    @property
    def passed(self) -> bool:
        return self.status == "passed"


class SandboxError(UserError):
    """The sandbox itself failed, so the program has no verdict."""


class MachineIsBusy(SandboxError):
    """No process can be started at the moment, for example because another program forks without end."""

    SIGNS = ("Resource temporarily unavailable", "it did not end in time")


def run_code(
    program: str,
    *,
    timeout: float = 10,
    memory_mb: int = 1024,
    unsafe: bool = False,
    method: str | None = None,
    python: str | None = None,
    stdin: str = "",
    keep_stdout: bool = False,
    output_limit: int = OUTPUT_LIMIT,
) -> CodeResult:
    """Run a Python program in isolation; it passes only if its last statement was reached.

    Args:
        timeout: Seconds of wall time.
        memory_mb: MiB of memory of all its processes together, and of address space for each.
        unsafe: If isolation is not available, run it under resource limits alone.
        method: "bubblewrap" or "unshare"; by default what `isolation` finds.
        python: Interpreter, 3.8 or newer, that runs it and whose packages it sees; by default this one.
        stdin: Text of its standard input.
        keep_stdout: Return what it prints.
        output_limit: Maximum of bytes that it may print to standard output and standard error together.

    >>> run_code("assert 1 + 1 == 2", unsafe=True).status
    'passed'
    >>> run_code("import sys; sys.exit(0)", unsafe=True).status
    'exited_early'
    """
    if timeout <= 0 or memory_mb < 32:
        raise UserError(f"timeout={timeout}, memory_mb={memory_mb}: a program needs time and at least 32 MiB.")
    method = method or isolation()
    if method == "none" and not unsafe:
        raise SandboxError(no_isolation())
    job = {"program": program, "timeout": timeout, "memory_mb": memory_mb, "isolated": method != "none"}
    job |= {"stdin": stdin, "keep_stdout": keep_stdout, "output_limit": output_limit, "folder": "/tmp"}
    if method == "none":
        with tempfile.TemporaryDirectory(prefix="weakdriven-", ignore_cleanup_errors=True) as folder:
            return run_job(job | {"folder": folder}, method, interpreter(python))
    for seconds in (1.0, 5.0):  # retry: no part of the program has run yet
        with contextlib.suppress(MachineIsBusy, BlockingIOError):
            return run_job(job, method, interpreter(python))
        time.sleep(seconds)
    return run_job(job, method, interpreter(python))


@functools.cache
def isolation() -> str:
    """Return the method that isolates programs here, "bubblewrap", "unshare" or "none", found by trying it."""
    return next((method for method in METHODS if why_not(method) is None), "none")


@functools.cache
def why_not(method: str) -> str | None:
    """Return why a method does not work here, or None if it does."""
    if missing := [name for name in METHODS[method] if shutil.which(name) is None]:
        return f"{missing[0]} is not installed"
    try:
        result = run_code(PROBE, method=method, timeout=20, memory_mb=512)
    except SandboxError as error:
        return str(error)
    return None if result.passed else f"{result.status}: {last_line(result.stderr)}"


def no_isolation() -> str:
    found = "; ".join(f"{method}: {why_not(method)}" for method in METHODS)
    return (
        f"Generated code needs a sandbox, and none works here ({found}). Install bubblewrap, or allow "
        "this user namespaces (in a container: allow unshare, mount and a new /proc). If the code may do all that "
        "you may do, allow unsafe."
    )


def run_job(job: dict[str, Any], method: str, python: Interpreter) -> CodeResult:
    environment = dict(ENVIRONMENT)
    if libraries := os.environ.get("LD_LIBRARY_PATH"):  # some interpreters find their own libraries only through it
        environment["LD_LIBRARY_PATH"] = libraries
    job |= {"python": python.executable, "places": python.sites, "environment": environment}
    script = "/sandbox.py" if job["isolated"] else WATCHER
    process = subprocess.Popen(
        [*isolating_command(method, python), python.executable, "-I", "-S", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=environment,
        start_new_session=True,
    )
    begun = time.monotonic()
    try:
        said, complaint = process.communicate(json.dumps(job).encode(), job["timeout"] + watcher.START_LIMIT + GRACE)
    except subprocess.TimeoutExpired as error:
        said, complaint = error.stdout or b"", b"it did not end in time"
    finally:  # also if this thread is interrupted
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    started, verdict = said.startswith(STARTED), said.removeprefix(STARTED)
    if not started:
        reason = json.loads(verdict)["stderr"] if verdict else complaint.decode(errors="replace")
        kind = MachineIsBusy if any(sign in reason for sign in MachineIsBusy.SIGNS) else SandboxError
        raise kind(f"The sandbox ({method}) could not start a program: {last_line(reason) or 'no reason given'}")
    if not verdict:  # a program of the same user can starve its watcher, but gains nothing by it
        return CodeResult("killed", "the process that watched the program has died", time.monotonic() - begun)
    return read_verdict(json.loads(verdict))


def read_verdict(verdict: dict[str, Any]) -> CodeResult:
    status, code = verdict["ending"], verdict["wait"]
    # drop the frames that started the program
    stderr = re.sub(r'  File "<string>", line \d+, in (<module>|run)\n(    .*\n)*', "", verdict["stderr"])
    if status == "ended":
        last = last_line(stderr)
        if os.WIFSIGNALED(code):
            name = signal.Signals(os.WTERMSIG(code)).name
            status = "timeout" if name == "SIGXCPU" else "killed"
            stderr += f"\nkilled by {name}"
        elif os.WEXITSTATUS(code) != 1 or "Traceback (most recent call last)" not in verdict["stderr"]:
            status = "exited_early"
        elif re.match(r"[\w.]*MemoryError\b", last):
            status = "memory"
        elif re.match(r"OSError: \[Errno (27|28)\]", last):  # file too large, no space left
            status = "disk"
        else:
            status = "failed"
    return CodeResult(status, stderr, round(verdict["seconds"], 4), verdict["stdout"])
