"""The processes that a launcher started on one run: who speaks, who computes what, and how they meet.

One process alone is the same without a launcher: every function here then does nothing, or does the work itself.
"""

import hashlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from weakdriven.errors import UserError, explain
from weakdriven.runs.signals import Stopped

if TYPE_CHECKING:
    from accelerate import PartialState

T = TypeVar("T")


class Ended(UserError):
    """What another process of this run has failed with."""


PATIENCE = timedelta(days=1)
"""How long one process waits for another: the first may tokenise for hours while the others have nothing to do."""


def all_processes() -> "PartialState":
    """Those that a launcher started, or this one alone."""
    import torch
    from accelerate import PartialState

    # on a CPU accelerate sees one process unless told
    return PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


def launched() -> int:
    """How many processes the launcher says there are, known before any of them has met another."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def size() -> int:
    """How many have met (`all_processes`); before that, and without a launcher, 1."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def index() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def leads() -> bool:
    """Whether this is the process that writes and speaks."""
    return index() == 0


def agree(value: T) -> T:
    """Wait for all processes; every one gets the value of the first."""
    if size() == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def gathered(values: Sequence[T]) -> list[T]:
    """Wait for all processes; every one gets the values of all, those of the first one first."""
    if size() == 1:
        return list(values)
    from accelerate.utils import gather_object

    return gather_object(list(values))


def share(values: Sequence[T]) -> list[T]:
    """What this process takes of a list that all have: every n-th, so that long and short ones are mixed."""
    return list(values[index() :: size()])


def merged(shares: Sequence[T]) -> list[T]:
    """The list whose `share` each process gives; all processes call it, and all get it.

    >>> merged(["a", "b"])
    ['a', 'b']
    """
    parts = gathered([list(shares)])
    total = sum(map(len, parts))
    return [parts[place % len(parts)][place // len(parts)] for place in range(total)]


def led(work: Callable[[], T]) -> T | None:
    """Let the first process do `work` alone; where it fails, all of them end with its sentence.

    Returns what `work` does in the first process and None in the others, which need not be able to hold it.
    """
    return ended_together(work if leads() else lambda: None, agree)


def ended_together(work: Callable[[], T], agree: Callable[[Any], Any]) -> T:
    """Work that only the first process does, while the others wait: where it fails, they end with its sentence.

    Args:
        agree: Gives every process the value of the first.
    """
    try:
        result = work()
    except Stopped as stop:
        _tell(stop, stop, agree)
        raise
    except Ended:
        raise
    except Exception as error:
        _tell(error, explain(error) or f"The first process failed: {error!r}.", agree)
        raise
    told = agree(None)
    if isinstance(told, Stopped):
        raise Stopped(told.name)
    if told:
        raise Ended(told)
    return result


def _tell(error: BaseException, told: Any, agree: Callable[[Any], Any]) -> None:
    """Once, however many such meetings the error passes on its way up."""
    if not getattr(error, "told", False):
        error.told = True  # pyright: ignore
        agree(told)


def raise_together(failure: UserError | None) -> None:
    """Raise in all processes what any of them has found; all of them call it, those without an error with None."""
    found = [sentence for sentence in gathered([None if failure is None else str(failure)]) if sentence]
    if failure is not None:
        raise failure
    if found:
        raise Ended(found[0])


def first_to_say(sentence: str) -> bool:
    """Whether no other process of this run has said the same yet; for errors that all of them meet at once."""
    import torch.distributed as dist

    if size() == 1:
        return True
    said = hashlib.sha256(sentence.encode()).hexdigest()[:16]
    try:
        return dist.distributed_c10d._get_default_store().add(f"weakdriven/said/{said}", 1) == 1
    except RuntimeError:  # the process that keeps the store may be gone already; said twice is better than never
        return True


def divide(batch_size: int, micro_batch_size: int, processes: int) -> tuple[int, int]:
    """Rows of a micro-batch in each process, and micro-batches of a step: the step sees `batch_size` rows in all.

    >>> divide(16, 16, 1), divide(16, 16, 2), divide(48, 8, 4)
    ((16, 1), (8, 1), (4, 3))
    """
    micro = math.gcd(batch_size // processes, micro_batch_size)
    return micro, batch_size // (processes * micro)


def refuse_uneven(batches: dict[str, int], processes: int) -> None:
    """Each step's rows are dealt out evenly, so that every process holds the same share of the mean.

    Args:
        batches: Name of a setting, or what else it is, to its number of rows.
    """
    for name, rows in batches.items():
        if rows % processes:
            common = math.gcd(*batches.values())
            fitting = [str(count) for count in range(1, common + 1) if common % count == 0]
            counts = ", ".join(fitting if len(fitting) <= 12 else [*fitting[:11], "...", fitting[-1]])
            raise UserError(
                f"{name} is {rows}, which {processes} processes cannot share evenly; start {counts} "
                f"process{'es' if common > 1 else ''}, or choose a batch_size that they divide."
            )


def all_agree(found: bool) -> bool:
    """Whether it holds in every process; all of them call it."""
    return all(gathered([found]))


def wait_for_all() -> None:
    gathered([None])


def leave() -> None:
    """The orderly end of a process that has met others; one that just exits may be aborted.

    A thread of gloo can still hold the last collective's tensors, and their end asks for an interpreter that is no
    longer there: https://github.com/pytorch/pytorch/issues/190489.
    """
    dist = sys.modules.get("torch.distributed")  # a command that needs no torch does not load it to end
    if dist and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
