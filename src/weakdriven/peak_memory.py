"""The most memory that a stage held: of the device where there is one."""

import resource
import sys
from contextlib import suppress
from pathlib import Path


def reset_peak_memory() -> None:
    """Start the peak afresh for this stage where the kernel allows it (Linux)."""
    with suppress(OSError):  # else the peak covers the whole process, which is still an upper bound
        Path("/proc/self/clear_refs").write_text("5")
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> int:
    """Peak bytes of this stage: device memory on CUDA, resident memory otherwise."""
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
