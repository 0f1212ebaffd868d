"""SIGTERM and SIGUSR1, as schedulers send them before a job's time is up: end at the next safe place, with all saved.

The first signal only leaves a mark. Training looks for it after each optimizer step and saves a checkpoint; everything
else meets it where progress is told, which is after each batch, and between stages. A later signal ends at once; one
that follows in a moment is the same request, which a launcher and a scheduler may both pass on.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
EXIT_CODE, INTERRUPTED = 143, 130
"""128 + SIGTERM or SIGINT, as a shell reports it; a scheduler that sees it knows that the job ended as asked."""

MOMENT = 10.0
"""Seconds within which further signals are the same request."""

_asked: list[int] = []


class Stopped(BaseException):
    """The run ends because someone asked for it; like KeyboardInterrupt it is no error that code may catch and pass."""

    def __init__(self, name: str, step: int | None = None):
        super().__init__(name)
        self.name, self.step, self.stage = name, step, ""

    def __str__(self) -> str:
        again = "run the same command again to go on."
        if self.step is not None:
            return f"Stopped on {self.name} at step {self.step} of {self.stage}, saved; {again}"
        return f"Stopped on {self.name}{f' in {self.stage}' if self.stage else ''}; what is written is kept, {again}"


@contextmanager
def stoppable() -> Iterator[None]:
    """Within it the signals leave a mark; outside the main thread, which alone may handle signals, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    first: list[float] = []

    def leave_mark(number: int, _: Any) -> None:
        first.append(time.monotonic())
        _asked.append(number)
        if first[-1] - first[0] > MOMENT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    _asked.clear()
    for number in SIGNALS:
        signal.signal(number, leave_mark)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        _asked.clear()


def asked() -> str | None:
    """Name of the signal that came, or None."""
    return signal.Signals(_asked[0]).name if _asked else None


def stop_here() -> None:
    """End here if a signal has come: whatever was finished up to now is on disk."""
    if name := asked():
        raise Stopped(name)
