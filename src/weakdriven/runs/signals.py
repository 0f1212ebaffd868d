"""SIGTERM and SIGUSR1, which schedulers send before a job's time is up: stop at the next safe place, with all saved.

The first signal is only recorded. Training checks for it after each optimizer step and saves a checkpoint; everything
else checks whenever it reports progress, which is after each batch, and between stages. A later signal ends the process
at once; one within a few seconds is the same request, which a launcher and a scheduler may both pass on.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
EXIT_CODE, INTERRUPTED = 143, 130
"""128 + SIGTERM or SIGINT, as a shell reports it; a scheduler sees that the job ended on its signal."""
MOMENT = 10.0
"""Seconds within which further signals are the same request."""

_received: list[int] = []


class Stopped(BaseException):
    """The run ends on a signal; like KeyboardInterrupt it is no error that code may catch and ignore."""

    def __init__(self, name: str, step: int | None = None):
        super().__init__(name)
        self.name, self.step, self.stage = name, step, ""

    def __str__(self) -> str:
        again = "run the same command again to resume."
        if self.step is not None:
            return f"Stopped on {self.name} at step {self.step} of {self.stage}, saved; {again}"
        return f"Stopped on {self.name}{f' in {self.stage}' if self.stage else ''}; what is written is kept, {again}"


@contextmanager
def stoppable() -> Iterator[None]:
    """Record these signals inside the block; outside the main thread, which alone handles signals, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    first: float | None = None

    def record(number: int, _: Any) -> None:
        nonlocal first
        first = first or time.monotonic()
        _received.append(number)
        if time.monotonic() - first > MOMENT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    _received.clear()
    for number in SIGNALS:
        signal.signal(number, record)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        _received.clear()


def stop_requested() -> str | None:
    """Name of the signal that came, or None."""
    return signal.Signals(_received[0]).name if _received else None


def stop_here() -> None:
    """Stop here if a signal has come: everything finished so far is on disk."""
    if name := stop_requested():
        raise Stopped(name)
