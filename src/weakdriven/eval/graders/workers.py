"""Worker processes that judge answers, each sample under a hard limit of time and memory.

A worker is a fresh interpreter that reads one JSON request a line and answers with one line. It is started once (sympy
takes a second to import), killed when a sample takes too long, and ends when its parent's end of the pipe closes. No
fork, no `multiprocessing`: it works from any thread, beside CUDA, and in scripts without a main guard.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time

from weakdriven.eval.graders.answers import FAILED, TIMEOUT
from weakdriven.runs.machine import cores

MEMORY_MB = 2048
START_LIMIT = 120.0
REMEMBERED = 200_000


class Worker:
    """One process; `ask` returns None where it had to be killed or died."""

    def __init__(self) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from weakdriven.eval.graders.workers import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # Ctrl-C is for the parent
        )
        self.unread = b""

    def start(self) -> None:
        """Wait until the worker has imported what it needs."""
        if self._line(START_LIMIT) is None:
            self.kill()
            raise RuntimeError("The process that checks answers did not start; try `python -c 'import math_verify'`.")

    def ask(self, request: dict[str, object], timeout: float) -> str | None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request | {"timeout": timeout}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self._line(timeout)
        return None if line is None else json.loads(line)

    def _line(self, timeout: float) -> bytes | None:
        assert self.process.stdout is not None
        file, deadline = self.process.stdout.fileno(), time.monotonic() + timeout
        poll = select.poll()
        poll.register(file, select.POLLIN)
        while b"\n" not in self.unread:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000) or not (piece := os.read(file, 65536)):
                return None
            self.unread += piece
        line, _, self.unread = self.unread.partition(b"\n")
        return line

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


class Pool:
    """As many workers as are asked at once, at most `size`; workers that were killed are replaced when needed."""

    def __init__(self, size: int) -> None:
        self.owner = os.getpid()
        self.slots, self.lock = threading.Semaphore(size), threading.Lock()
        self.idle: list[Worker] = []
        self.known: dict[tuple[str, str], str] = {}

    def ask(self, request: dict[str, object], timeout: float) -> str:
        with self.slots:
            with self.lock:
                worker = self.idle.pop() if self.idle else None
            if worker is None or worker.process.poll() is not None:
                worker = Worker()
                worker.start()
            began = time.monotonic()
            try:
                reply = worker.ask(request, timeout)
            except BaseException:
                worker.kill()
                raise
            if reply is not None and not reply.startswith(FAILED):
                with self.lock:
                    self.idle.append(worker)
                return reply
            worker.kill()  # after a failure too: a worker short of memory would fail on the next sample
            if reply is not None:
                return reply
            return TIMEOUT if time.monotonic() - began >= timeout else f"{FAILED}: the worker died"

    def close(self) -> None:
        with self.lock:
            while self.idle:
                self.idle.pop().kill()


_lock = threading.Lock()
_pool: Pool | None = None


def shared_pool() -> Pool:
    """The pool of this process, made on first use; a forked child makes its own."""
    global _pool
    with _lock:
        if _pool is None or _pool.owner != os.getpid():
            _pool = Pool(cores())
            atexit.register(_pool.close)
        return _pool


def ask(gold: str, answer: str, *, timeout: float) -> str:
    """The verdict of a worker on one pair of answers: a reason of `answers.py`.

    Verdicts are remembered, because many samples of one problem give the same answer; failures are tried again.
    """
    pool = shared_pool()
    if (known := pool.known.get((gold, answer))) is not None:
        return known
    reply = pool.ask({"gold": gold, "answer": answer}, timeout)
    if not reply.startswith((TIMEOUT, FAILED)) and len(pool.known) < REMEMBERED:
        pool.known[gold, answer] = reply
    return reply


def serve() -> None:
    """The life of a worker."""
    import logging
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MB * 2**20, MEMORY_MB * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not answer for us
    logging.disable(logging.CRITICAL)
    from weakdriven.eval.graders.latex_parser import parse_in_two_stages
    from weakdriven.eval.graders.math_answers import judge

    parse_in_two_stages()
    judge(r"\frac{1}{2}", "x=0.25")  # loads sympy and the tables of its parser
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["timeout"] + 1)  # ends an orphan that hangs
        try:
            reply = judge(request["gold"], request["answer"])
        except Exception as error:
            reply = f"{FAILED}: {type(error).__name__}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
