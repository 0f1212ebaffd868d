"""Handle SIGTERM and SIGUSR1, which schedulers send before they kill a job: save, and stop at the next safe place.

The first signal is only recorded. Training checks for it after each optimizer step and saves a checkpoint; everything
else checks between stages and when it reports progress, which is after each batch. A later signal ends the process at
once, unless it comes within a few seconds: then the launcher and the scheduler may have passed on the same request.

Ctrl-C (SIGINT) is recorded in the same way while a model is trained, and ends everything else at once.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
EXIT_CODE, INTERRUPTED = 143, 130
"""128 + SIGTERM or SIGINT, as in a shell, so that a scheduler sees that its signal ended the job."""
MOMENT = 10.0
"""Seconds within which further signals count as the same request."""
TWICE = 1.0
"""The same for Ctrl-C: shorter, because a person may press it again on purpose."""
SAVING = b"\nStopping after this step, with a checkpoint. Ctrl-C again stops at once.\n"

_received: list[int] = []
_saving = threading.Event()
"""Set while a model is trained, because training saves a checkpoint when it is stopped."""


class Stopped(BaseException):
    """A signal stopped the run; like KeyboardInterrupt, this is not caught by `except Exception`."""

    def __init__(self, name: str, step: int | None = None):
        super().__init__(name)
        self.name, self.step = name, step
        self.stage, self.then = "", ""
        """The stage that was stopped, and how it continues, such as "resumes from step 30 of 150"."""

    def __str__(self) -> str:
        name = "Ctrl-C" if self.interrupted else self.name
        where = f" in {self.stage}" if self.stage else ""
        if self.step is not None:
            where = f" at step {self.step} of {self.stage}, saved"
        kept = f"Finished stages are kept, and {self.stage} {self.then};" if self.then else "Finished stages are kept;"
        return f"Stopped on {name}{where}. {kept} run the same command again to resume."

    @property
    def interrupted(self) -> bool:
        """Whether it was Ctrl-C."""
        return self.name == signal.SIGINT.name


@contextmanager
def stoppable() -> Iterator[None]:
    """Record these signals inside the block; do nothing outside the main thread, which handles all signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGINT)}
    first: float | None = None
    interrupted = 0.0

    def record(number: int, _: Any) -> None:
        nonlocal first
        first = first or time.monotonic()
        _received.append(number)
        if time.monotonic() - first > MOMENT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def interrupt(number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted and time.monotonic() - interrupted < TWICE:
            return
        if interrupted or not _saving.is_set():
            end = before[number]
            end(number, frame) if callable(end) else signal.default_int_handler(number, frame)
        interrupted = time.monotonic()
        _received.append(number)
        if multiprocessing.parent_process() is None and os.environ.get("RANK", "0") == "0":
            os.write(2, SAVING)  # a print may be in progress, and print is not reentrant

    _received.clear()
    for number in SIGNALS:
        signal.signal(number, record)
    if before[signal.SIGINT] is not signal.SIG_IGN:  # it is ignored in background jobs of a script
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        _received.clear()


@contextmanager
def saves_when_stopped(saves: bool) -> Iterator[None]:
    """Also only record Ctrl-C inside the block, if the code there saves and stops on a signal (`saves`)."""
    if saves:
        _saving.set()
    try:
        yield
    finally:
        _saving.clear()


def stop_requested() -> str | None:
    """Return the name of the first signal received, or None."""
    return signal.Signals(_received[0]).name if _received else None


def stop_here() -> None:
    """Raise `Stopped` if a signal was received; call it where everything finished is on disk."""
    if name := stop_requested():
        raise Stopped(name)
