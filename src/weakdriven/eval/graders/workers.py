"""Worker processes that judge answers, each sample under a hard limit of time and memory.

A worker is a fresh interpreter that runs `judge.serve`. It is started once (importing sympy takes a second), killed
if a sample takes too long, and ends when its parent's end of the pipe closes. Unlike `multiprocessing` and pools built
on it, workers can be used from any thread, next to CUDA, and in scripts without a main guard.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import time

from weakdriven.runs.machine import cores

TIMEOUT, FAILED = "timeout", "verifier failed"
START_LIMIT = 120.0
REMEMBERED = 200_000


class Worker:
    """One process; it is dead after it returned None."""

    def __init__(self) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from weakdriven.eval.graders.judge import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # only the parent receives Ctrl-C
        )
        if self.read(START_LIMIT) is None:
            raise RuntimeError("The process that compares answers did not start; try `python -c 'import math_verify'`.")

    def ask(self, request: dict[str, str], timeout: float) -> str | None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the worker is dead: `read` will return None
            self.process.stdin.write(json.dumps(request | {"timeout": timeout}) + "\n")
            self.process.stdin.flush()
        return self.read(timeout)

    def read(self, timeout: float) -> str | None:
        """Read the next line, or kill the worker after `timeout` seconds and return None."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        killer = threading.Timer(timeout, self.process.kill)
        killer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            killer.cancel()
        if line.endswith("\n") and time.monotonic() < deadline:
            return line[:-1]
        self.kill()
        return None

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Pool:
    """At most `size` workers, started on demand; killed workers are replaced."""

    def __init__(self, size: int) -> None:
        self.slots = threading.Semaphore(size)
        self.idle: list[Worker] = []
        self.known: dict[tuple[str, str], str] = {}

    def ask(self, request: dict[str, str], timeout: float) -> str:
        with self.slots:
            worker = None
            with contextlib.suppress(IndexError):
                worker = self.idle.pop()
            if worker is None or worker.process.poll() is not None:
                worker = Worker()
            began, reply = time.monotonic(), None
            try:
                reply = worker.ask(request, timeout)
            finally:  # also after a failure: a worker short of memory would fail again
                if reply is None or reply.startswith(FAILED):
                    worker.kill()
                else:
                    self.idle.append(worker)
            if reply is not None:
                return reply
            return TIMEOUT if time.monotonic() - began >= timeout else f"{FAILED}: the worker died"

    def close(self) -> None:
        while self.idle:
            self.idle.pop().kill()


_POOLS: dict[int, Pool] = {}
atexit.register(lambda: shared_pool().close())


def shared_pool() -> Pool:
    """Return the pool of this process; a forked child gets its own."""
    return _POOLS.get(os.getpid()) or _POOLS.setdefault(os.getpid(), Pool(cores()))


def ask(gold: str, answer: str, *, timeout: float) -> str:
    """Let a worker compare two answers; return a reason of `answers.py`.

    Results are cached, because many samples of one problem give the same answer; failures are not cached.
    """
    pool = shared_pool()
    if (known := pool.known.get((gold, answer))) is not None:
        return known
    reply = pool.ask({"gold": gold, "answer": answer}, timeout)
    if not reply.startswith((TIMEOUT, FAILED)) and len(pool.known) < REMEMBERED:
        pool.known[gold, answer] = reply
    return reply
