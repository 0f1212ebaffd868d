"""Run generated code where it can hurt nothing, and believe only a program that ran to its very end.

`run_code` starts `sandbox_child.py` in namespaces of its own, through bubblewrap where that is installed;
docs/sandbox.md says what the program sees and what this does not protect from.
"""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError
from weakdriven.eval import sandbox_child as child

CHILD = str(Path(child.__file__).resolve())
METHODS = ("bubblewrap", "namespaces")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
ETC = (
    *("alternatives", "ca-certificates", "fonts", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf"),
    *("ld.so.conf.d", "localtime", "magic", "mime.types", "nsswitch.conf", "passwd", "pki/tls/certs", "protocols"),
    *("services", "ssl/certs", "ssl/openssl.cnf", "timezone"),
)
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of a set does not change from one grading to the next
    "MALLOC_ARENA_MAX": "2",  # else each thread reserves 64 MiB of the address space that is limited
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")},
}
STARTED = b"started\n"
GRACE = 15.0
"""Seconds after which a sandbox that should long have ended is killed from outside."""

# What the probe of a method must find: no other process, no interface but loopback, nothing to write outside /tmp.
PROBE = """
import os, socket
assert [name for _, name in socket.if_nameindex()] in ([], ["lo"]), "the network is visible"
assert sum(name.isdigit() for name in os.listdir("/proc")) <= 2, "other processes are visible"
for folder in ("/", "/usr", "/dev", "/proc"):
    assert os.statvfs(folder).f_flag & os.ST_RDONLY, folder + " is writable"
"""


@dataclass(frozen=True)
class CodeResult:
    status: str
    """passed, failed (an exception), exited_early, timeout, memory, output, processes, disk, killed (by a signal) or
    forged (claimed its end from inside)."""
    stderr: str
    """The last 4 KiB of what the program wrote to standard error."""
    seconds: float
    """Wall time of the program, without the start of its interpreter."""

    @property
    def passed(self) -> bool:
        return self.status == "passed"


class SandboxError(UserError):
    """The sandbox itself did not work, so nothing can be said about the program."""


def run_code(
    program: str, *, timeout: float = 10, memory_mb: int = 1024, unsafe: bool = False, method: str | None = None
) -> CodeResult:
    """Run a Python program in isolation; it has passed only if its last statement has run.

    Args:
        timeout: Seconds of wall time.
        memory_mb: MiB of memory of all its processes together, and of address space for each.
        unsafe: Run it without isolation, under resource limits alone, where isolation is not available.
        method: "bubblewrap" or "namespaces"; by default what `isolation` finds.

    >>> run_code("assert 1 + 1 == 2", unsafe=True).status
    'passed'
    >>> run_code("import sys; sys.exit(0)", unsafe=True).status
    'exited_early'
    """
    if timeout <= 0 or memory_mb < 32:
        raise UserError(f"timeout={timeout}, memory_mb={memory_mb}: a program needs time, and 32 MiB or more.")
    chosen = method or isolation()
    if chosen == "none" and not unsafe:
        raise UserError(no_isolation())
    return run_with(chosen, program, timeout, memory_mb)


def run_many(
    programs: Iterable[str],
    *,
    workers: int,
    timeout: float = 10,
    memory_mb: int = 1024,
    unsafe: bool = False,
    method: str | None = None,
) -> Iterator[tuple[int, CodeResult]]:
    """Run programs side by side and yield (index, result) as they end; at most two per worker are held at a time."""
    pool = ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="sandbox")
    pending: dict[Future[CodeResult], int] = {}

    def finished() -> Iterator[tuple[int, CodeResult]]:
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            yield pending.pop(future), future.result()

    try:
        for index, program in enumerate(programs):
            if len(pending) >= 2 * max(1, workers):
                yield from finished()
            future = pool.submit(run_code, program, timeout=timeout, memory_mb=memory_mb, unsafe=unsafe, method=method)
            pending[future] = index
        while pending:
            yield from finished()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@functools.cache
def isolation() -> str:
    """What isolates programs here: "bubblewrap", "namespaces" or "none"; found by running a program in it."""
    return next((method for method in METHODS if why_not(method) is None), "none")


@functools.cache
def why_not(method: str) -> str | None:
    """Why a method does not work here, or None if it does."""
    if method == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    try:
        result = run_with(method, PROBE, 20, 512)
    except SandboxError as error:
        return str(error)
    return None if result.passed else f"{result.status}: {last_line(result.stderr)}"


def no_isolation() -> str:
    found = "; ".join(f"{method}: {why_not(method)}" for method in METHODS)
    return (
        f"Generated code needs a sandbox, and none works here ({found}). Install bubblewrap, or let the kernel give "
        "this user namespaces (in a container: allow unshare, mount and a new /proc). Where the code may do all that "
        "you may do, allow unsafe."
    )


def run_with(method: str, program: str, timeout: float, memory_mb: int) -> CodeResult:
    """One program by one method ("bubblewrap", "namespaces", or "none" for limits alone)."""
    if method == "none":
        folder = tempfile.mkdtemp(prefix="weakdriven-")
        try:
            return talk(method, program, timeout, memory_mb, folder)
        finally:
            remove(folder)
    return talk(method, program, timeout, memory_mb, "/tmp")


def talk(method: str, program: str, timeout: float, memory_mb: int, folder: str) -> CodeResult:
    """Start the child, hand it the job and read its verdict."""
    environment = dict(ENVIRONMENT)
    if libraries := os.environ.get("LD_LIBRARY_PATH"):  # some interpreters find their own libraries through it only
        environment["LD_LIBRARY_PATH"] = libraries
    job = {
        "program": program,
        "timeout": timeout,
        "memory_mb": memory_mb,
        "folder": folder,
        "python": sys.executable,
        "places": site_folders(),
        "environment": environment,
        "isolated": method != "none",
        "view": view() if method == "namespaces" else None,
    }
    command = [sys.executable, "-I", "-S", CHILD]
    if method == "bubblewrap":
        command = [*bubblewrap(), "--", sys.executable, "-I", "-S", "/sandbox.py"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=environment,
        start_new_session=True,
    )
    begun = time.monotonic()
    try:
        said, complaint = process.communicate(json.dumps(job).encode(), timeout + child.START_LIMIT + GRACE)
    except subprocess.TimeoutExpired as error:
        said, complaint = error.stdout or b"", b"it did not end in time"
    finally:  # also where this thread is interrupted
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    started, verdict = said.startswith(STARTED), said.removeprefix(STARTED)
    if not started:
        reason = json.loads(verdict)["stderr"] if verdict else complaint.decode(errors="replace")
        raise SandboxError(
            f"The sandbox ({method}) could not start a program: {last_line(reason) or 'no reason given'}"
        )
    if not verdict:  # a program of the same user can starve the process that watches it, and gains nothing by it
        return CodeResult("killed", "the process that watched the program is gone", time.monotonic() - begun)
    return read_verdict(json.loads(verdict))


def read_verdict(verdict: dict[str, Any]) -> CodeResult:
    status, stderr, code = verdict["ending"], without_runner(verdict["stderr"]), verdict["wait"]
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
    return CodeResult(status, stderr, round(verdict["seconds"], 4))


def without_runner(stderr: str) -> str:
    """A traceback without the frames that started the program.

    >>> without_runner('  File "<string>", line 21, in <module>\\n  File "/tmp/program.py", line 1, in <module>\\n')
    '  File "/tmp/program.py", line 1, in <module>\\n'
    """
    return re.sub(r'  File "<string>", line \d+, in (<module>|run)\n(    .*\n)*', "", stderr)


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def site_folders() -> list[str]:
    """Where this process finds its packages, so that the program finds the same ones."""
    names = ("site-packages", "dist-packages")
    return [os.path.abspath(entry) for entry in sys.path if Path(entry).name in names and Path(entry).is_dir()]


@functools.cache
def view() -> tuple[tuple[str, str], ...]:
    """(source, place) of all that a program can read: system folders, this interpreter and its packages.

    A source of the form "->target" is a symbolic link to make.
    """
    hops, link = [], sys.executable
    while os.path.islink(link):
        hops.append(link)
        link = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    libraries = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    prefixes = [sys.prefix, sys.exec_prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)]
    wanted = [*SYSTEM, *(f"/etc/{name}" for name in ETC), *prefixes, *site_folders(), *libraries, *hops, link]
    places: dict[str, str] = {}
    for place in map(os.path.normpath, wanted):
        covered = any(place == other or place.startswith(other + "/") for other in places)
        if place == "/" or covered or not os.path.exists(place):
            continue
        target = os.readlink(place) if os.path.islink(place) else ""
        is_system_link = place in SYSTEM and target.removeprefix("/").startswith("usr/")
        places[place] = "->" + target if is_system_link else os.path.realpath(place)
    return tuple((source, place) for place, source in places.items())


@functools.cache
def bubblewrap() -> tuple[str, ...]:
    """The bwrap command that gives the same view as our own namespaces do."""
    bwrap = shutil.which("bwrap") or "bwrap"
    known = subprocess.run([bwrap, "--help"], capture_output=True, text=True, check=False).stdout
    size = ["--size", str(child.DISK_LIMIT)] if "--size" in known else []
    command = [bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1"]
    command += ["--uid", str(child.INSIDE_ID), "--gid", str(child.INSIDE_ID), "--hostname", "sandbox"]
    command += ["--cap-drop", "ALL", *(["--disable-userns"] if "--disable-userns" in known else [])]
    command += ["--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm", *size, "--tmpfs", "/tmp"]
    for source, place in view():
        command += ["--symlink", source[2:], place] if source.startswith("->") else ["--ro-bind", source, place]
    command += ["--ro-bind", CHILD, "/sandbox.py", "--chdir", "/"]
    for place in ("/proc", "/dev", "/"):  # root without capabilities may still write to the files of root in /proc/sys
        command += ["--remount-ro", place]
    return tuple(command)


def remove(folder: str) -> None:
    """Remove a folder even if the program has taken our rights to its subfolders away."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            if not os.path.islink(inner := os.path.join(path, name)):
                os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
