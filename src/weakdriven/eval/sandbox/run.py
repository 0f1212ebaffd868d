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
from weakdriven.eval.sandbox import child

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
OUTPUT_LIMIT = 4 * 2**20
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


# What an interpreter says of itself.
QUERY = """
import json, sys
prefixes = [sys.prefix, sys.exec_prefix, sys.base_prefix]
print(json.dumps([list(sys.version_info[:2]), sys.executable, prefixes, sys.path]))
"""
OLDEST = (3, 8)


@dataclass(frozen=True)
class Interpreter:
    """A Python and where it finds what it needs."""

    executable: str
    prefixes: tuple[str, ...]
    sites: tuple[str, ...]
    """Its folders of packages."""


@dataclass(frozen=True)
class CodeResult:
    status: str
    """passed, failed (an exception), exited_early, timeout, memory, output, processes, disk, killed (by a signal) or
    forged (claimed its end from inside)."""
    stderr: str
    """The last 4 KiB of what the program wrote to standard error."""
    seconds: float
    """Wall time of the program, without the start of its interpreter."""
    stdout: str = ""
    """What the program printed, if that was to be kept."""

    @property
    def passed(self) -> bool:
        return self.status == "passed"


class SandboxError(UserError):
    """The sandbox itself did not work, so nothing can be said about the program."""


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
    """Run a Python program in isolation; it has passed only if its last statement has run.

    Args:
        timeout: Seconds of wall time.
        memory_mb: MiB of memory of all its processes together, and of address space for each.
        unsafe: Run it without isolation, under resource limits alone, where isolation is not available.
        method: "bubblewrap" or "namespaces"; by default what `isolation` finds.
        python: The interpreter, 3.8 or newer, that runs it and whose packages it sees; by default this one.
        stdin: What it reads from standard input.
        keep_stdout: Return what it prints.
        output_limit: Bytes that it may print, to standard output and standard error together.

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
    more = {"stdin": stdin, "keep_stdout": keep_stdout, "output_limit": output_limit}
    return run_with(chosen, program, timeout, memory_mb, interpreter(python), **more)


def run_many(programs: Iterable[str], *, workers: int, **options: Any) -> Iterator[tuple[int, CodeResult]]:
    """Run programs side by side and yield (index, result) as they end; at most two per worker are held at a time.

    Args:
        options: Those of `run_code`.
    """
    pool = ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="sandbox")
    pending: dict[Future[CodeResult], int] = {}

    def finished() -> Iterator[tuple[int, CodeResult]]:
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            yield pending.pop(future), future.result()

    try:
        for index, program in enumerate(programs):
            if len(pending) >= 2 * max(1, workers):
                yield from finished()
            pending[pool.submit(run_code, program, **options)] = index
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
        result = run_with(method, PROBE, 20, 512, interpreter(None))
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


def run_with(method: str, program: str, timeout: float, memory_mb: int, python: Interpreter, **more: Any) -> CodeResult:
    """One program by one method ("bubblewrap", "namespaces", or "none" for limits alone)."""
    job = {"program": program, "timeout": timeout, "memory_mb": memory_mb, "isolated": method != "none"}
    job |= {"stdin": "", "keep_stdout": False, "output_limit": OUTPUT_LIMIT, **more}
    if method != "none":
        return talk(method, {**job, "folder": "/tmp"}, python)
    folder = tempfile.mkdtemp(prefix="weakdriven-")
    try:
        return talk(method, {**job, "folder": folder}, python)
    finally:
        remove(folder)


def talk(method: str, job: dict[str, Any], python: Interpreter) -> CodeResult:
    """Start the child, hand it the job and read its verdict."""
    environment = dict(ENVIRONMENT)
    if libraries := os.environ.get("LD_LIBRARY_PATH"):  # some interpreters find their own libraries through it only
        environment["LD_LIBRARY_PATH"] = libraries
    job |= {"python": python.executable, "places": python.sites, "environment": environment}
    job["view"] = view(python) if method == "namespaces" else None
    command = [python.executable, "-I", "-S", CHILD]
    if method == "bubblewrap":
        command = [*bubblewrap(python), "--", python.executable, "-I", "-S", "/sandbox.py"]
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
        said, complaint = process.communicate(json.dumps(job).encode(), job["timeout"] + child.START_LIMIT + GRACE)
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
    return CodeResult(status, stderr, round(verdict["seconds"], 4), verdict["stdout"])


def without_runner(stderr: str) -> str:
    """A traceback without the frames that started the program.

    >>> without_runner('  File "<string>", line 21, in <module>\\n  File "/tmp/program.py", line 1, in <module>\\n')
    '  File "/tmp/program.py", line 1, in <module>\\n'
    """
    return re.sub(r'  File "<string>", line \d+, in (<module>|run)\n(    .*\n)*', "", stderr)


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@functools.cache
def interpreter(python: str | None = None) -> Interpreter:
    """This process's interpreter and packages, or those of another interpreter, which is asked once."""
    if python is None:
        executable, prefixes, path = sys.executable, (sys.prefix, sys.exec_prefix, sys.base_prefix), sys.path
    else:
        executable, prefixes, path = ask(python)
    names = ("site-packages", "dist-packages")
    sites = [os.path.abspath(entry) for entry in path if Path(entry).name in names and Path(entry).is_dir()]
    return Interpreter(executable, tuple(prefixes), tuple(sites))


def ask(python: str) -> tuple[str, list[str], list[str]]:
    """Executable, prefixes and path of another interpreter."""
    found = shutil.which(python)
    if found is None:
        raise UserError(f"python={python} is no program that can be run. Give the path of a Python interpreter.")
    try:  # without our own settings for Python, and without packages of the user's home
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [os.path.abspath(found), "-s", "-c", QUERY]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=kept, cwd="/")
        version, executable, prefixes, path = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        complaint = last_line(getattr(error, "stderr", None) or str(error))
        raise UserError(f"python={python} does not answer as Python {dotted(OLDEST)} or newer: {complaint}") from error
    if tuple(version) < OLDEST:
        raise UserError(f"python={python} is Python {dotted(version)}; it must be {dotted(OLDEST)} or newer.")
    return executable, prefixes, path


def dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


@functools.cache
def view(python: Interpreter) -> tuple[tuple[str, str], ...]:
    """(source, place) of all that a program can read: system folders, its interpreter and its packages.

    A source of the form "->target" is a symbolic link to make.
    """
    hops, link = [], python.executable
    while os.path.islink(link):
        hops.append(link)
        link = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    libraries = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    prefixes = [*python.prefixes, os.path.realpath(python.prefixes[-1])]
    wanted = [*SYSTEM, *(f"/etc/{name}" for name in ETC), *prefixes, *python.sites, *libraries, *hops, link]
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
def bubblewrap(python: Interpreter) -> tuple[str, ...]:
    """The bwrap command that gives the same view as our own namespaces do."""
    bwrap = shutil.which("bwrap") or "bwrap"
    known = subprocess.run([bwrap, "--help"], capture_output=True, text=True, check=False).stdout
    size = ["--size", str(child.DISK_LIMIT)] if "--size" in known else []
    command = [bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1"]
    command += ["--uid", str(child.INSIDE_ID), "--gid", str(child.INSIDE_ID), "--hostname", "sandbox"]
    command += ["--cap-drop", "ALL", *(["--disable-userns"] if "--disable-userns" in known else [])]
    command += ["--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm", *size, "--tmpfs", "/tmp"]
    for source, place in view(python):
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
