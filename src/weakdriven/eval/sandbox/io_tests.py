"""Runs inside the sandbox: run the code of an answer once per test, each time in its own process.

`graders/code.py` runs the text of this file as the sandboxed program, under Python 3.8 or newer. It reads one job as
JSON from standard input and writes a line of JSON for each test, up to the first that fails to end well. The job does
not contain the expected outputs, so an answer that takes over this process gains nothing.
"""

import atexit
import contextlib
import json
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import traceback

CHANNEL = 3
STACK = 64 * 2**20
"""Bytes of C stack for deep recursion under a cached function, which is common in such answers."""

# Modules that LiveCodeBench imports before an answer starts.
MODULES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
)
PRELUDE = "\n".join(
    [
        *(f"from {name} import *" for name in [*MODULES.split(), "builtins", "typing"]),
        *(f"import {name}" for name in MODULES.split()),
    ]
)
HEAVY = ("numpy", "scipy", "pandas", "sympy", "networkx")
"""Packages that are slow to import: imported once, before the tests are forked."""


def main(job: dict) -> None:
    program = compile(job["code"], "answer.py", "exec", dont_inherit=True)
    exec(PRELUDE, {})
    for name in HEAVY:
        if re.search(rf"^\s*(import|from) +{name}\b", job["code"], re.MULTILINE):
            with contextlib.suppress(Exception):  # the answer gets the same error and may handle it
                __import__(name)
    sys.setrecursionlimit(50_000)
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(50_000)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK if hard == resource.RLIM_INFINITY else min(STACK, hard), hard))
    for given in job["inputs"]:
        ending, output = one_test(program, given, job)
        print(json.dumps({"ending": ending, "output": output}), flush=True)
        if ending != "passed":
            break


def one_test(program, given, job: dict) -> "tuple[str, str]":
    """Return how a test ended ("passed": by itself) and what it printed or returned."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as sink:
        if not job["entry_point"]:
            source.write(given.encode("utf-8", "surrogatepass"))
            source.seek(0)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setpgid(0, 0)
                be_the_answer(program, given, job["entry_point"], source.fileno(), sink.fileno())
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        late = []

        def kill(*_) -> None:
            late.append(True)
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)

        signal.signal(signal.SIGALRM, kill)
        signal.setitimer(signal.ITIMER_REAL, job["seconds"])
        _, status = os.waitpid(child, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)  # processes that it left running
        if late:
            return "timeout", ""
        if os.WIFSIGNALED(status):
            return f"killed by {signal.Signals(os.WTERMSIG(status)).name}", ""
        if status:
            return "failed", ""
        if sink.seek(0, os.SEEK_END) > job["output_limit"]:
            return "output", ""
        sink.seek(0)
        return "passed", sink.read().decode("utf-8", "replace")


def be_the_answer(program, given, entry_point: str, source: int, sink: int) -> None:
    """Run the code as a program that reads `source` and writes `sink`, or write the value of its function to `sink`."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.close(CHANNEL)
    os.dup2(source, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY) if entry_point else sink, 1)
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w")):
        stream = os.fdopen(fd, mode, encoding="utf-8", errors="surrogateescape", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv[:] = ["answer.py"]
    module = type(sys)("solution" if entry_point else "__main__")
    module.__file__ = "answer.py"
    sys.modules[module.__name__] = module
    exec(PRELUDE, module.__dict__)
    if entry_point:
        exec(program, module.__dict__)
        solution = getattr(module, "Solution", None)
        owner = solution() if solution is not None and hasattr(solution, entry_point) else module
        if not hasattr(owner, entry_point):
            raise NameError(f"the answer does not define {entry_point}")
        value = json.dumps(getattr(owner, entry_point)(*given), default=plain)
        with open(sink, "w", encoding="utf-8") as file:
            file.write(value)
    else:
        with contextlib.suppress(SystemExit):  # such programs usually end this way
            exec(program, module.__dict__)
        leave(sys.__stdout__)


def leave(stdout) -> None:
    """Do what an interpreter does at exit: wait for threads, call exit handlers, flush."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for output in (sys.stdout, stdout):
        with contextlib.suppress(AttributeError, ValueError):  # the answer replaced or closed it
            output.flush()


def plain(value):
    """Convert numpy's numbers and arrays to JSON values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"the answer returned a {type(value).__name__}, which is not a JSON value")


if __name__ == "__main__":
    main(json.loads(sys.stdin.buffer.read()))
