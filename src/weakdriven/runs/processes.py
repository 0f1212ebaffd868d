"""Several processes on one run: which is the main process, how they share work, and how they synchronize.

Without a launcher there is one process; then the functions here do nothing, or do the work directly.
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
    """An error of another process of this run, which prints it."""


PATIENCE = timedelta(days=1)
"""How long a process waits for others: the main process may tokenize for hours meanwhile."""


def join_processes() -> None:
    """Join the processes that a launcher started, if any."""
    import torch
    from accelerate import PartialState

    # without cpu=True, accelerate sees only one process on a CPU
    PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


def launched() -> int:
    """Return the number of processes according to the launcher; works before they have joined."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return the rank of this process according to the launcher; works before processes have joined."""
    return int(os.environ.get("RANK", "0"))


def size() -> int:
    """Return the number of processes that have joined (`join_processes`); 1 before that and without a launcher."""
    return group.get_world_size() if (group := process_group()) else 1


def index() -> int:
    return group.get_rank() if (group := process_group()) else 0


def process_group() -> Any:
    """Return `torch.distributed` if processes have joined, else None; this does not import torch."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist and dist.is_available() and dist.is_initialized() else None


def is_main() -> bool:
    """Return whether this is the main process, which writes files and prints."""
    return index() == 0


def agree(value: T) -> T:
    """Wait for all processes and return the main process's value in each."""
    if size() == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def gathered(values: Sequence[T]) -> list[T]:
    """Wait for all processes and return the values of all of them, in the order of their ranks."""
    if size() == 1:
        return list(values)
    from accelerate.utils import gather_object

    return gather_object(list(values))


def share(values: Sequence[T]) -> list[T]:
    """Return this process's part of a list that all have: every n-th value, so that each gets long and short ones."""
    return list(values[index() :: size()])


def merged(shares: Sequence[T]) -> list[T]:
    """Invert `share`: each process passes its part and gets the whole list.

    >>> merged(["a", "b"])
    ['a', 'b']
    """
    parts = gathered([list(shares)])
    total = sum(map(len, parts))
    return [parts[place % len(parts)][place // len(parts)] for place in range(total)]


def on_main(work: Callable[[], T]) -> T | None:
    """Do `work` only on the main process and return its result there; if it fails, all processes raise an error."""
    return ended_together(work if is_main() else lambda: None, agree)


def ended_together(work: Callable[[], T], agree: Callable[[Any], Any]) -> T:
    """Do `work` in every process; if the main process fails, raise its error in all of them.

    Args:
        work: May differ between the main process and the others.
        agree: Returns the main process's value in every process.
    """
    try:
        result = work()
    except OtherProcessFailed:
        raise
    except (Exception, Stopped) as error:
        if not getattr(error, "reported", False):  # calls may be nested: the innermost one reports the error
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
    """End all processes if any of them raises a UserError in this block; the one with the lowest rank reports it."""
    failure = None
    try:
        yield
    except UserError as error:
        failure = error
    for place, message in enumerate(gathered([failure and str(failure)])):
        if message:
            raise failure if failure and place == index() else OtherProcessFailed(message)


def divide(batch_size: int, micro_batch_size: int, processes: int) -> tuple[int, int]:
    """Return the micro-batch size of each process and the micro-batches per step, for `batch_size` rows in total.

    >>> divide(16, 16, 1), divide(16, 16, 2), divide(48, 8, 4)
    ((16, 1), (8, 1), (4, 3))
    """
    micro = math.gcd(batch_size // processes, micro_batch_size)
    return micro, batch_size // (processes * micro)


def refuse_uneven(batches: dict[str, int], processes: int) -> None:
    """Raise an error unless batch sizes are divisible by the number of processes, so that all weigh the same in a mean.

    Args:
        batches: Maps names for the message, such as settings, to batch sizes.
    """
    common = math.gcd(*batches.values())
    fitting = ", ".join(str(count) for count in range(1, common + 1) if common % count == 0)
    for name, rows in batches.items():
        if rows % processes:
            raise UserError(
                f"{name} is {rows}, which is not divisible by {processes} processes; start {fitting} "
                f"process{'es' if common > 1 else ''}, or choose a divisible batch_size."
            )


def leave() -> None:
    """Destroy the process group; else the exit may abort (https://github.com/pytorch/pytorch/issues/190489)."""
    if group := process_group():
        group.destroy_process_group()
