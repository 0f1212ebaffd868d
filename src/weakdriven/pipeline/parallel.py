"""Several runs at once: each in a process of its own, and on a GPU of its own where there are several."""

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console

from weakdriven.errors import UserError, explain
from weakdriven.runs.directory import Progress
from weakdriven.runs.machine import CORES, cores
from weakdriven.runs.progress import PlainProgress
from weakdriven.runs.redact import RedactingStream, redact
from weakdriven.runs.signals import Stopped, stop_here, stop_requested, stoppable

LOCKS = ".locks"
"""Folder of several runs in which they agree who computes a stage that they share."""
Task = Callable[[Progress], Any]
"""Can be pickled; tells of its progress."""
KILLED = "One of the processes was killed, perhaps for lack of memory; run again with fewer --jobs to go on."
PATIENCE = 30
"""Seconds that a process has to end after Ctrl-C."""
SAVING = 600
"""The same after a signal at which it saves what it trains."""


def run_parallel(
    tasks: Mapping[str, Task], progress: Progress, *, jobs: int, logs: Path
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each task's name, and what gives its result or raises its error, as they end; one job works in this process.

    Args:
        jobs: Processes at once. They take the visible GPUs in turn and share the processor's cores.
        logs: Folder for NAME.log, where a task tells of its progress if there are several processes.
    """
    if jobs == 1:
        for name, task in tasks.items():
            yield name, lambda task=task: task(progress)
        return
    context = get_context("spawn")  # a forked process cannot use CUDA
    waiting, places = list(tasks.items()), list(range(jobs))
    running: dict[Connection, tuple[str, int, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and places:
                (name, task), place = waiting.pop(0), places.pop(0)
                log = logs / f"{name}.log"
                log.parent.mkdir(parents=True, exist_ok=True)
                progress.note(f"{name}: progress in {log}")
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(pickle.dumps(task), log, theirs, place, jobs))
                process.start()
                theirs.close()
                running[ours] = name, place, process
            for ours in _ended(running):
                name, place, process = running[ours]
                result, error = _received(ours)
                process.join()  # gives the memory of its GPU back before the next one starts there
                del running[ours]
                places.append(place)
                progress.note(f"{name}: {'failed' if error else 'done'}")
                yield name, lambda result=result, error=error: _given(result, error)
    finally:  # above all after the user's Ctrl-C
        _end([process for _, _, process in running.values()])


def outcome(name: str, result: Callable[[], Any], logs: Path) -> tuple[Any, str]:
    """What a task gave, or why it gave nothing; an error that the user cannot mend stands whole in its log."""
    try:
        return result(), ""
    except Exception as error:
        if sentence := explain(error):
            return None, redact(sentence)  # which is written into the table
        log = logs / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=RedactingStream(file))
        return None, redact(f"{type(error).__name__}: {error} (traceback: {log}).")


def shown(write: Callable[[], Any], progress: Progress) -> Exception | None:
    """Why what there is between runs could not be written; that does not end the runs that go on."""
    try:
        write()
    except Exception as error:
        progress.note(f"The table so far could not be written ({type(error).__name__}: {error}); the runs go on.")
        return error
    return None


def _ended(running: Mapping[Connection, tuple[str, int, BaseProcess]]) -> list[Any]:
    """Waits for those that have told their result or were killed."""
    while True:
        # what a killed process had started may hold its pipe open, so we look at the process too
        ended = wait(running, timeout=1) or [ours for ours, (_, _, one) in running.items() if not one.is_alive()]
        stop_here()  # a scheduler may tell all processes at once: one that has ended of it has not failed
        if ended:
            return list(ended)


def _received(ours: Connection) -> tuple[Any, Exception | None]:
    """The result, or the error with its traceback, which a pipe loses, as its cause."""
    try:
        result, error, told = pickle.loads(ours.recv_bytes()) if ours.poll() else (None, UserError(KILLED), "")
    except (EOFError, OSError):
        return None, UserError(KILLED)
    finally:
        ours.close()
    if told:
        error.__cause__ = RuntimeError(f"in a process of its own\n{told}")
    return result, error


def _given(result: Any, error: Exception | None) -> Any:
    if error:
        raise error
    return result


def _end(processes: list[BaseProcess]) -> None:
    """Those that train may save first if we were told to stop; else they are interrupted where they are."""
    number, patience = (signal.SIGTERM, SAVING) if stop_requested() else (signal.SIGINT, PATIENCE)
    for process in processes:
        if process.is_alive() and process.pid:
            os.kill(process.pid, number)
    for process in processes:
        process.join(patience)
        process.kill()
        process.join()


def _work(task: bytes, log: Path, theirs: Connection, place: int, jobs: int) -> None:
    """In a new process: the task is unpickled, which loads torch, after the environment is set."""
    signal.signal(signal.SIGINT, _interrupt_once)
    try:
        _take_place(place, jobs)
        with stoppable():
            answer = pickle.dumps((_logged(pickle.loads(task), log), None, ""))
    except KeyboardInterrupt:
        return
    except Stopped as stop:
        answer = pickle.dumps((None, UserError(str(stop)), ""))
    except Exception as error:
        answer = pickle.dumps((None, _portable(error), "".join(traceback.format_exception(error))))
    theirs.send_bytes(answer)


def _interrupt_once(*_: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells us too, and the first time we are already ending
    raise KeyboardInterrupt


def _portable(error: Exception) -> Exception:
    """The error, or what it says if it cannot be pickled."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        sentence = explain(error)
        return UserError(sentence) if sentence else RuntimeError(f"{type(error).__name__}: {error}")


def _take_place(place: int, jobs: int) -> None:
    threads = str(max(1, cores() // jobs))
    os.environ[CORES] = os.environ["OMP_NUM_THREADS"] = threads
    import torch

    torch.set_num_threads(int(threads))
    if (devices := visible_devices()) and len(devices) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[place % len(devices)]


def visible_devices() -> list[str]:
    """Names of the GPUs as CUDA_VISIBLE_DEVICES takes them, found without starting CUDA."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name]
    return [str(number) for number in range(torch.cuda.device_count())]  # asks the driver and makes no context


def _logged(task: Task, log: Path) -> Any:
    with log.open("a", encoding="utf-8") as file:
        stream = RedactingStream(file)
        with redirect_stdout(stream), redirect_stderr(stream):
            return task(PlainProgress(Console(width=200)))
