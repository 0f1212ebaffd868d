"""The processes that a launcher started on one run: which one writes, who computes what, and how they synchronise.

Without a launcher there is one process, and every function here does nothing or does the work itself.
"""

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from weakdriven.errors import UserError, explain
from weakdriven.runs.signals import Stopped

T = TypeVar("T")


class OtherProcessFailed(UserError):
    """The message of an error in another process of this run, which prints it."""


PATIENCE = timedelta(days=1)
"""How long one process waits for another: the main process may tokenise for hours while the others wait."""


def join_processes() -> None:
    """Join the processes that a launcher started, if any."""
    import torch
    from accelerate import PartialState

    # on a CPU accelerate sees a single process without cpu=True
    PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


def launched() -> int:
    """Number of processes according to the launcher, known before they have joined."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of the launched processes this one is, known before any of them has met another."""
    return int(os.environ.get("RANK", "0"))


def size() -> int:
    """Number of processes that have joined (`join_processes`); before that, and without a launcher, 1."""
    return group.get_world_size() if (group := process_group()) else 1


def index() -> int:
    return group.get_rank() if (group := process_group()) else 0


def process_group() -> Any:
    """`torch.distributed` if processes have joined, else None; a command that needs no torch does not load it."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist and dist.is_available() and dist.is_initialized() else None


def is_main() -> bool:
    """Whether this is the main process, which writes files and prints."""
    return index() == 0


def agree(value: T) -> T:
    """Wait for all processes and return the main process's value in each."""
    if size() == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def gathered(values: Sequence[T]) -> list[T]:
    """Wait for all processes and return the values of all, in the order of their ranks."""
    if size() == 1:
        return list(values)
    from accelerate.utils import gather_object

    return gather_object(list(values))


def share(values: Sequence[T]) -> list[T]:
    """This process's part of a list that all have: every n-th value, so that long and short ones are mixed."""
    return list(values[index() :: size()])


def merged(shares: Sequence[T]) -> list[T]:
    """The inverse of `share`: each process passes its part, and each gets the whole list.

    >>> merged(["a", "b"])
    ['a', 'b']
    """
    parts = gathered([list(shares)])
    total = sum(map(len, parts))
    return [parts[place % len(parts)][place // len(parts)] for place in range(total)]


def on_main(work: Callable[[], T]) -> T | None:
    """Do `work` on the main process alone and return its result there; if it fails, all processes raise its message."""
    return ended_together(work if is_main() else lambda: None, agree)


def ended_together(work: Callable[[], T], agree: Callable[[Any], Any]) -> T:
    """Do `work`, and if the main process fails at it, raise its message in all of them.

    Args:
        work: On the other processes, what they do meanwhile.
        agree: Gives every process the main process's value.
    """
    try:
        result = work()
    except OtherProcessFailed:
        raise
    except (Exception, Stopped) as error:
        if not getattr(error, "reported", False):  # only once, however many such calls it passes on its way up
            error.reported = True  # pyright: ignore
            stop = isinstance(error, Stopped)
            agree(error if stop else explain(error) or f"The main process failed: {error!r}.")
        raise
    message = agree(None)
    if isinstance(message, Stopped):
        raise Stopped(message.name)
    if message:
        raise OtherProcessFailed(message)
    return result


@contextmanager
def failing_together() -> Iterator[None]:
    """A UserError that any process raises inside this block ends all of them; the first such process reports it."""
    failure = None
    try:
        yield
    except UserError as error:
        failure = error
    for place, message in enumerate(gathered([failure and str(failure)])):
        if message:
            raise failure if failure and place == index() else OtherProcessFailed(message)


def divide(batch_size: int, micro_batch_size: int, processes: int) -> tuple[int, int]:
    """Rows per micro-batch in each process, and micro-batches per step; a step sees `batch_size` rows in total.

    >>> divide(16, 16, 1), divide(16, 16, 2), divide(48, 8, 4)
    ((16, 1), (8, 1), (4, 3))
    """
    micro = math.gcd(batch_size // processes, micro_batch_size)
    return micro, batch_size // (processes * micro)


def refuse_uneven(batches: dict[str, int], processes: int) -> None:
    """Each step's rows must be divisible by the number of processes, so that each has the same share of the mean.

    Args:
        batches: Name, such as that of a setting, to its number of rows.
    """
    common = math.gcd(*batches.values())
    fitting = ", ".join(str(count) for count in range(1, common + 1) if common % count == 0)
    for name, rows in batches.items():
        if rows % processes:
            raise UserError(
                f"{name} is {rows}, which {processes} processes cannot share evenly; start {fitting} "
                f"process{'es' if common > 1 else ''}, or choose a batch_size that they divide."
            )


def leave() -> None:
    """Leave the process group, or the exit may abort: https://github.com/pytorch/pytorch/issues/190489."""
    if group := process_group():
        group.destroy_process_group()
