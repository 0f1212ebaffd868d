"""Several runs at once: each in a process of its own, and on a GPU of its own where there are several."""

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console

from weakdriven.errors import UserError, explain
from weakdriven.progress import PlainProgress
from weakdriven.rundir import Progress

LOCKS = ".locks"
"""Folder of several runs in which they agree who computes a stage that they share."""
Task = Callable[[Progress], Any]
"""Can be pickled; tells of its progress."""


def side_by_side(
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
    places: Any = context.Queue()
    for place in range(jobs):
        places.put(place)
    with ProcessPoolExecutor(jobs, context, _take_place, (places, jobs)) as pool:
        running: dict[Future[Any], str] = {}
        for name, task in tasks.items():
            log = logs / f"{name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            progress.note(f"{name}: progress in {log}")
            running[pool.submit(_logged, task, log)] = name
        try:
            for future in as_completed(running):
                progress.note(f"{running[future]}: {'failed' if future.exception() else 'done'}")
                yield running[future], lambda future=future: _result(future)
        except BaseException:  # above all the user's Ctrl-C: what has not begun must not begin
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def outcome(name: str, result: Callable[[], Any], logs: Path) -> tuple[Any, str]:
    """What a task gave, or why it gave nothing; an error that the user cannot mend stands whole in its log."""
    try:
        return result(), ""
    except Exception as error:
        if sentence := explain(error):
            return None, sentence
        log = logs / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        return None, f"{type(error).__name__}: {error} (the whole of it: {log})."


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except BrokenProcessPool:
        raise UserError(
            "One of the processes was killed, perhaps for lack of memory; run again with fewer --jobs to go on."
        ) from None


def _take_place(places: Any, jobs: int) -> None:
    """In a new process, before anything of torch runs."""
    place, cores = places.get(), len(os.sched_getaffinity(0))
    threads = str(max(1, cores // jobs))
    os.environ["OMP_NUM_THREADS"] = threads
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
    with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        return task(PlainProgress(Console(file=file, width=200)))
