"""Replay a step as a CUDA graph, without running Python or launching kernels one by one."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

WORTH = 16
"""Capture a graph only if at least this many steps remain on the same tensors; a capture costs two or three steps."""
given_up: list[str] = []
"""Why this process captures no more graphs: torch does not clean up completely after a failed capture."""
logger = logging.getLogger(__name__)


class Repeated:
    """Calls `step`, or replays a graph of it if that is faster.

    Args:
        step: Changes tensors in place and may return one. Its Python code must matter only on the first call, and a
            call that failed halfway must be repeatable.
        device: Device of the step if all calls do the same work on the same tensors; only CUDA devices have graphs.
    """

    def __init__(self, step: Callable[[], Any], device: torch.device | None):
        self.step, self.device = step, device
        self.warm = False
        self.graph: Any = None
        self.output: Any = None
        self.before: Any = None
        """The previous graph and its memory, kept until the next capture has taken over the memory."""
        self.stream: Any = None

    def __call__(self, left: int) -> Any:
        """Do one step; `left` counts the remaining steps on these tensors, including this one."""
        if self.graph is None and left >= WORTH and has_graphs(self.device) and not given_up:
            if not self.warm:
                return self.warm_up()
            self.capture()
        if self.graph is None:
            return self.step()
        self.graph[0].replay()
        return self.output

    def forget(self) -> None:
        """Drop the graph, because tensors have moved and it would write to the old ones."""
        self.before = self.graph or self.before
        self.graph, self.output, self.warm = None, None, False

    def warm_up(self) -> Any:
        """Do an ordinary step on the stream of captures, because libraries initialize on first use.

        A step that synchronizes with the device cannot be captured and is detected here.
        """
        output = None
        with torch.cuda.device(self.device):
            self.stream = self.stream or torch.cuda.Stream()
            self.stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(self.stream), waiting_forbidden():
                    output = self.step()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                give_up(error)
            torch.cuda.current_stream().wait_stream(self.stream)
        self.warm = True
        return self.step() if given_up else output

    def capture(self) -> None:
        """Capture a step without running it."""
        try:
            self.graph, self.output = captured(self.step, self.device, self.stream, self.before)
        except RuntimeError as error:
            give_up(error)
        self.before = None


def has_graphs(device: torch.device | None) -> bool:
    return device is not None and device.type == "cuda"


def give_up(error: RuntimeError) -> None:
    given_up.append(str(error).strip().split("\n")[0])
    logger.warning("Decoding continues without CUDA graphs and is slower: %s", given_up[-1])


@contextlib.contextmanager
def waiting_forbidden() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the API is a prototype
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def captured(step: Callable[[], Any], device: Any, stream: Any, before: Any) -> tuple[Any, Any]:
    """Return a graph of `step` with its memory pool (reusing the previous graph's), and the output of `step`."""
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle() if before is None else before[1]
    here = torch.cuda.current_stream(device)
    # other threads may use the device meanwhile; a failed capture does not restore our stream
    with torch.cuda.device(device), torch.cuda.stream(here):
        try:
            with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                output = step()
        except RuntimeError:
            with contextlib.suppress(Exception):  # torch before 2.12 leaves the pool open (pytorch#180395)
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            with contextlib.suppress(Exception), torch.cuda.graph(torch.cuda.CUDAGraph()):
                torch.zeros(1, device=device)  # a success releases the random state of the failed one
            raise
    return (graph, pool), output
