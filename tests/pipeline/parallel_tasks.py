"""Tasks of `test_parallel.py`, in a module without heavy imports, since every process that runs one imports it."""

import os
import time
from pathlib import Path

from weakdriven.errors import UserError
from weakdriven.pipeline.parallel import run_parallel
from weakdriven.runs.directory import Progress
from weakdriven.runs.signals import Stopped


class Notes(Progress):
    def __init__(self):
        self.notes: list[str] = []

    def note(self, text):
        self.notes.append(text)


def environment(value, progress):
    import torch

    progress.note(f"working on {value}")
    print("printed")
    return value, os.getpid(), torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")


def lacks_a_method(progress):
    return {"failed": {"wmss": "Out of memory."}}


def fails(progress):
    raise UserError("nothing to do")


def breaks(progress):
    raise ZeroDivisionError("a fault of ours")


def dies_and_leaves_a_child(progress):
    if os.fork() == 0:
        time.sleep(5)  # holds the pipe of the dead process open
        os._exit(0)
    os._exit(9)


class Stubborn(Exception):
    """Cannot be made again from what is pickled of it."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def cannot_be_pickled(progress):
    raise Stubborn("one", "two")


def waits_for_ever(folder: Path, name: str, progress):
    (folder / name).write_text(str(os.getpid()))
    try:
        time.sleep(600)
    finally:
        (folder / f"{name}-ended").touch()


def saves_when_stopped(folder: Path, name: str, progress):
    (folder / name).write_text(str(os.getpid()))
    try:
        while True:
            time.sleep(0.05)
            progress.update(1, 2)
    except Stopped:
        (folder / f"{name}-saved").touch()
        raise


def outcomes(tasks, progress, logs, jobs=2):
    return {name: (result, why) for name, result, why in run_parallel(tasks, progress, jobs=jobs, logs=logs)}
