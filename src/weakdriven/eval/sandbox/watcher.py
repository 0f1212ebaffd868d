"""Process 1 of the sandbox: start the program, watch it, and report how it ended.

`run.py` starts this file as a script with `python -I -S`, under Python 3.8 or newer, so it imports nothing of ours. It
reads one job as JSON from standard input and writes to standard output: a line when the program begins, then the
verdict as JSON. The kernel protects process 1 from the program's signals and kills all other processes when it ends.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

STDERR_TAIL = 4096
FILE_LIMIT = 64 * 2**20
DISK_LIMIT = 128 * 2**20
INODE_LIMIT = 10_000
TASK_LIMIT = 128
OPEN_FILES = 256
START_LIMIT = 30.0
"""Seconds that the program's interpreter may take to start; the program's own time starts afterwards."""
TICK = 0.02

CHANNEL = 3
"""File descriptor of the socket on which the runner reports."""

STACK_SLACK = 128
"""Bytes: with threads, glibc's read() uses 40 more; a call from inside the program is 600 deeper."""

# The runner calls read() twice from one frame, before and after the program. The supervisor accepts the end only if
# both calls have the same stack pointer (docs/background/sandbox.md). The two calls are written out and not in a loop,
# because the interpreter specialises a call on its second execution, which then uses another stack depth. The frame is
# never left alive: code at interpreter exit runs on a shallower stack and could choose its depth.
RUNNER = """
def run(path, places, exec, compile, read, write, settrace, setprofile, flush, show, leave):
    import os, sys
    os.set_inheritable(3, False)
    sys.path += [place for place in places if place not in sys.path]
    sys.argv[:] = [path]
    with open(path, encoding="utf-8", errors="surrogatepass") as file:
        source = file.read()
    main = type(sys)("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    write(3, b"?")
    read(3, 1)
    try:
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        leave(0)
    except BaseException as error:
        try:
            show(type(error), error, error.__traceback__)
            sys.stderr.flush()
        finally:
            leave(1)
    else:
        settrace(None)
        setprofile(None)
        try:
            flush()
        except (OSError, ValueError):
            pass
        write(3, b"?")
        read(3, 1)
import os, sys
trace = sys.settrace, sys.setprofile
run(sys.argv[1], sys.argv[2:], exec, compile, os.read, os.write, *trace, sys.stdout.flush, sys.__excepthook__, os._exit)
"""

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments) -> int:
    if (result := getattr(libc, name)(*arguments)) < 0:
        raise OSError(number := ctypes.get_errno(), f"{name}: {os.strerror(number)}")
    return result


PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
SYS_PIDFD_OPEN = 434  # the same on every architecture
# memfd_create, memfd_secret and shmget allocate memory that belongs to no process, so it could not be counted
UNCOUNTED = {"x86_64": (0xC000003E, (319, 447, 29)), "aarch64": (0xC00000B7, (279, 447, 194))}


def prctl(option: int, value: int) -> None:
    call("prctl", option, ctypes.c_ulong(value), 0, 0, 0)


def limit_program(job: dict) -> None:
    """Limit the program's process; every process that it starts inherits the limits."""
    limits = {
        resource.RLIMIT_CPU: int(job["timeout"]) + 2,
        resource.RLIMIT_AS: job["memory_mb"] * 2**20,
        resource.RLIMIT_FSIZE: FILE_LIMIT,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    major, minor = (int("".join(filter(str.isdigit, part))) for part in os.uname().release.split(".")[:2])
    if job["isolated"] and (major, minor) >= (5, 14):  # older kernels also count the user's processes outside
        limits[resource.RLIMIT_NPROC] = TASK_LIMIT + 16  # lets the watcher observe an excess
    for limit, wanted in limits.items():
        _, hard = resource.getrlimit(limit)
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(limit, (value, value))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    forbid_uncounted_memory()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def forbid_uncounted_memory() -> None:
    """Install a system call filter, if the kernel has one, against these calls and other calling conventions."""
    architecture, numbers = UNCOUNTED.get(os.uname().machine, (0, ()))
    load, equal, at_least, leave = 0x20, 0x15, 0x35, 0x06
    steps = [(load, 4), (equal, architecture), (load, 0), (at_least, 0x40000000)]  # x32 calls start there
    steps += [*((equal, number) for number in numbers), (leave, 0x7FFF0000), (leave, 0x00050000 | errno.ENOSYS)]
    code = ctypes.create_string_buffer(8 * len(steps))
    for place, (step, value) in enumerate(steps):
        jump = 0 if step in (load, leave) else len(steps) - 2 - place  # to the rejection
        jumps = (0, jump) if value == architecture else (jump, 0)
        struct.pack_into("=HBBI", code, 8 * place, step, *jumps, value)
    if numbers and sys.maxsize > 2**32:
        libc.prctl(PR_SET_SECCOMP, 2, struct.pack("HP", len(steps), ctypes.addressof(code)), 0, 0)


def standard_input(text: str) -> int:
    """Make a file with the program's standard input; its memory and disk are not counted."""
    if not text:
        return os.open("/dev/null", os.O_RDONLY)
    fd = os.memfd_create("stdin")
    with open(fd, "w", encoding="utf-8", errors="surrogatepass", newline="", closefd=False) as file:
        file.write(text)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def start_program(job: dict) -> "tuple[int, socket.socket, int, int]":
    """Fork and exec the program's interpreter; return its pid, our end of the channel, and its two outputs."""
    folder = job["folder"]
    os.mkdir(f"{folder}/work")
    with open(f"{folder}/program.py", "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(job["program"])
    given = standard_input(job["stdin"])
    ours, theirs = socket.socketpair()
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            # first move them away from 0 to 3, then to their places
            sources = [os.dup2(fd, 20 + place) for place, fd in enumerate((given, out_end, err_end, theirs.fileno()))]
            for place, fd in enumerate(sources):
                os.dup2(fd, place, inheritable=True)
            os.closerange(CHANNEL + 1, 1024)
            os.chdir(f"{folder}/work")
            os.umask(0o077)
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and a program would inherit that
                signal.signal(ignored, signal.SIG_DFL)
            limit_program(job)
            os.execve(
                job["python"],
                [job["python"], "-s", "-B", "-c", RUNNER, f"{folder}/program.py", *job["places"]],
                {**job["environment"], "HOME": f"{folder}/work", "TMPDIR": folder},
            )
        except BaseException as error:
            os.write(2, f"sandbox: {error}\n".encode())
        os._exit(127)
    for fd in (given, out_end, err_end, theirs.detach()):
        os.close(fd)
    return pid, ours, out, err


def stack_in_read(pid: int, looks: int = 1) -> "int | None":
    """Return the stack pointer of a process that waits in read(CHANNEL); None if it does not wait."""
    for look in range(looks):
        time.sleep(0.0005 if look else 0)
        try:
            with open(f"/proc/{pid}/syscall") as file:
                fields = file.read().split()
        except OSError:
            return None
        if len(fields) == 9 and fields[1] == hex(CHANNEL):
            return int(fields[7], 16)
    return None


def processes(isolated: bool) -> "list[int]":
    """List all other processes of the pid namespace, or without a namespace the descendants of this one."""
    if isolated:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    found, queue = [], [os.getpid()]
    while queue:
        pid = queue.pop()
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(word) for word in file.read().split()]
            queue += children
            found += children
    return found


def over_limit(job: dict) -> "str | None":
    """Name the exceeded limit on the sum of all processes and files, if any."""
    alive = processes(job["isolated"])
    pages = tasks = used = 0
    for pid in alive:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            tasks += int(fields[17])
            pages += int(fields[21])
    if tasks > TASK_LIMIT:
        return "processes"
    for folder in ("/tmp", "/dev/shm") if job["isolated"] else ():
        disk = os.statvfs(folder)
        used += (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        if disk.f_files - disk.f_ffree > 0.9 * INODE_LIMIT:
            return "disk"
    if used > DISK_LIMIT:
        return "disk"
    room = job["memory_mb"] * 2**20 - used
    if pages * resource.getpagesize() <= room:
        return None
    return "memory" if sum(map(own_memory, alive)) > room else None


def own_memory(pid: int) -> int:
    """Return a process's bytes, dividing shared pages by the number of sharers, so that forks are not counted twice."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), 0)
    return 0


def reap(pid: int) -> "int | None":
    """Collect dead processes; return the wait status of `pid` if it is among them."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[dead[0]] = dead[1]
    return statuses.get(pid)


def supervise(job: dict) -> dict:
    """Run the program to its end or to a limit, and report which."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_DUMPABLE, 0)  # the program can neither trace nor inspect this process
    pid, channel, out, err = start_program(job)
    poll = select.poll()
    for fd in (channel.fileno(), out, err, call("syscall", SYS_PIDFD_OPEN, pid, 0)):
        poll.register(fd, select.POLLIN)
    deadline = (begun := time.monotonic()) + START_LIMIT
    stack, started, asked = None, False, False
    output, checked, ending, wait_status = {out: bytearray(), err: bytearray()}, 0.0, None, None
    while ending is None:
        ready = dict(poll.poll(1 if asked else TICK * 1000))
        for fd in output.keys() & ready.keys():
            if data := os.read(fd, 65536):
                output[fd] += data
            else:
                poll.unregister(fd)
        now = time.monotonic()
        if channel.fileno() in ready:
            heard = b""
            with contextlib.suppress(ConnectionResetError):
                heard = channel.recv(1)
            if heard != b"?":
                poll.unregister(channel)
            elif not started:
                started, stack = True, stack_in_read(pid, looks=20_000)
                os.write(1, b"started\n")
                deadline = (begun := time.monotonic()) + job["timeout"]
                channel.send(b"!")
            else:
                asked = True
        if (wait_status := reap(pid)) is not None:
            ending = "ended"
        elif sum(map(len, output.values())) > job["output_limit"]:
            ending = "output"
        elif asked and stack is None:
            ending = "passed"
        elif asked and (last := stack_in_read(pid)) is not None:  # None: it is not waiting yet
            ending = "passed" if 0 <= stack - last <= STACK_SLACK else "forged"
        elif now > deadline:
            ending = "timeout"
        elif now - checked >= TICK:
            checked, ending = now, over_limit(job)
    seconds = time.monotonic() - begun
    kill_all(job["isolated"])
    for fd in output:  # read what is left in a pipe, even if its other end is still open
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, 65536):
                output[fd] += data
    stdout, stderr = output[out] if job["keep_stdout"] else b"", output[err][-STDERR_TAIL:]
    texts = {"stdout": stdout.decode(errors="replace"), "stderr": stderr.decode(errors="replace")}
    return {"ending": ending, "wait": wait_status, "seconds": seconds, **texts}


def kill_all(isolated: bool) -> None:
    """Kill every process of the program; in a pid namespace a single system call reaches all of them."""
    for _ in range(1000):
        if not (alive := processes(isolated)):
            return
        for pid in [-1] if isolated else alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap(0)
        time.sleep(0.001)


def main() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 does not receive signals that it does not handle
    job = json.loads(sys.stdin.buffer.read())
    os.write(1, json.dumps(supervise(job)).encode())


if __name__ == "__main__":
    main()
