"""Run tasks in parallel: each in its own process, and on its own GPU if there are several."""

import os
import pickle
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console

from weakdriven.errors import explain
from weakdriven.runs.directory import Progress
from weakdriven.runs.machine import CORES, cores
from weakdriven.runs.progress import PlainProgress
from weakdriven.runs.redact import RedactingStream, redact
from weakdriven.runs.signals import Stopped, stop_here, stop_requested, stoppable

LOCKS = ".locks"
"""Folder of lock files with which parallel runs agree which of them computes a shared stage."""
Task = Callable[[Progress], Any]
"""A picklable function with a picklable result."""
KILLED = "One of the processes was killed, perhaps for lack of memory; run again with fewer --jobs to resume."
PATIENCE = 600
"""Seconds that a stopped process has to save a checkpoint and exit."""


def run_all(
    tasks: Mapping[str, Task], progress: Progress, record: Callable[[str, Any, str], None], *, root: Path, jobs: int
) -> None:
    """Run every task under `root`.

    Args:
        record: Records the outcome of a task, as `run_parallel` yields it, and updates the tables of `root`.
        jobs: As for `run_parallel`.
    """
    failure = None
    for name, result, why in run_parallel(tasks, progress, jobs=jobs, logs=root / "logs"):
        failure = try_to_write(partial(record, name, result, why), progress)
    if failure:
        raise failure
    shutil.rmtree(root / LOCKS, ignore_errors=True)


def try_to_write(write: Callable[[], Any], progress: Progress) -> Exception | None:
    """Write a table while runs are in progress; return an error instead of raising it, so that the runs continue."""
    try:
        write()
    except Exception as error:
        progress.note(f"The table could not be updated ({type(error).__name__}: {error}); the runs continue.")
        return error
    return None


def run_parallel(
    tasks: Mapping[str, Task], progress: Progress, *, jobs: int, logs: Path
) -> Iterator[tuple[str, Any, str]]:
    """Yield each task's name, result and error message (empty if it succeeded), in the order in which tasks end.

    Args:
        jobs: Number of parallel processes, which share the cores and are spread over the visible GPUs; with 1, tasks
            run in this process.
        logs: Folder for NAME.log, which has a task's tracebacks and, from another process, its progress.
    """
    if jobs == 1:
        for number, (name, task) in enumerate(tasks.items(), 1):
            progress.note(f"{name}: run {number} of {len(tasks)}")
            yield name, *attempt(partial(task, progress), logs / f"{name}.log")
        return
    context = get_context("spawn")  # a forked process cannot use CUDA
    waiting, places = list(tasks.items()), list(range(jobs))
    running: dict[Connection, tuple[str, int, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and places:
                (name, task), place = waiting.pop(0), places.pop(0)
                log = logs / f"{name}.log"
                progress.note(f"{name}: progress in {log}")
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(pickle.dumps(task), log, theirs, place, jobs))
                process.start()
                theirs.close()
                running[ours] = name, place, process
            for ours in _ended(running):
                name, place, process = running[ours]
                result, why = _received(ours)
                process.join()  # frees its GPU memory before the next task starts on that GPU
                del running[ours]
                places.append(place)
                progress.note(f"{name}: {_outcome(result, why)}")
                yield name, result, why
    finally:  # also after Ctrl-C
        _end([process for _, _, process in running.values()])


def _outcome(result: Any, why: str) -> str:
    """Return how a task ended; the result of a comparison names the methods that failed."""
    failed = result.get("failed") if isinstance(result, dict) else None
    return "failed" if why else f"done, without {', '.join(failed)}" if failed else "done"


def attempt(work: Callable[[], Any], log: Path) -> tuple[Any, str]:
    """Return the result of `work` and an error message, empty if it succeeded.

    The traceback of an error that the user cannot fix is written into `log`.
    """
    try:
        return work(), ""
    except Exception as error:
        if sentence := explain(error):
            return None, redact(sentence)  # it is written into the table
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=RedactingStream(file))
        return None, redact(f"{type(error).__name__}: {error} (traceback: {log}).")


def _ended(running: Mapping[Connection, tuple[str, int, BaseProcess]]) -> list[Any]:
    """Wait until processes have sent their result or were killed; return their connections."""
    while True:
        # children of a killed process may keep its pipe open, so check the process too
        ended = wait(running, timeout=1) or [ours for ours, (_, _, one) in running.items() if not one.is_alive()]
        stop_here()  # if a scheduler signals all processes, a stopped task must not be recorded as failed
        if ended:
            return list(ended)


def _received(ours: Connection) -> tuple[Any, str]:
    try:
        return pickle.loads(ours.recv_bytes()) if ours.poll() else (None, KILLED)
    except (EOFError, OSError):
        return None, KILLED
    finally:
        ours.close()


def _end(processes: list[BaseProcess]) -> None:
    """Stop all processes with the signal that this one received; those that train save a checkpoint first."""
    number = signal.SIGTERM if stop_requested() else signal.SIGINT
    for process in processes:
        if process.is_alive() and process.pid:
            os.kill(process.pid, number)
    try:
        for process in processes:
            process.join(PATIENCE)
    finally:  # also after a second Ctrl-C
        for process in processes:
            process.kill()
            process.join()


def _work(task: bytes, log: Path, theirs: Connection, place: int, jobs: int) -> None:
    """Run a task in a new process; set the environment before unpickling the task, which imports torch."""
    signal.signal(signal.SIGINT, _interrupt_once)
    try:
        _take_place(place, jobs)
        with stoppable():
            outcome = attempt(lambda: _logged(pickle.loads(task), log), log)
    except KeyboardInterrupt:
        return
    except Stopped as stop:
        outcome = None, str(stop)
    theirs.send_bytes(pickle.dumps(outcome))


def _interrupt_once(*_: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C arrives twice: from the terminal and from `_end`
    raise KeyboardInterrupt


def _take_place(place: int, jobs: int) -> None:
    """Set this process's share of the cores and its GPU, without initializing CUDA."""
    threads = str(max(1, cores() // jobs))
    os.environ[CORES] = os.environ["OMP_NUM_THREADS"] = threads
    import torch

    torch.set_num_threads(int(threads))
    if (given := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        devices = [name for name in given.split(",") if name]
    else:
        devices = [str(number) for number in range(torch.cuda.device_count())]
    if len(devices) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[place % len(devices)]


def _logged(task: Task, log: Path) -> Any:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        stream = RedactingStream(file)
        with redirect_stdout(stream), redirect_stderr(stream):
            return task(PlainProgress(Console(width=200)))
