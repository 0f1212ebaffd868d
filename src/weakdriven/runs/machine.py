"""The machine a run is on: hardware, library versions, cores, and the peak memory of a stage."""

import os
import platform
import resource
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

LIBRARIES = ("weakdriven", "torch", "transformers", "trl", "accelerate", "datasets", "peft", "numpy", "math-verify")
LIBRARIES += ("torchao", "liger-kernel", "bitsandbytes")  # their absence is worth recording too
CORES = "WEAKDRIVEN_CORES"
"""Set for each of several runs in parallel: its share of the cores."""


def reset_peak_memory() -> None:
    """Reset the peak for this stage where the kernel allows it (Linux)."""
    with suppress(OSError):  # otherwise the peak is the whole process's, an upper bound
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


def library_versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}}


@cache
def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "not installed"


def cores() -> int:
    """Cores that this process may use: fewer than the machine has if it is pinned or several runs share them."""
    return min(len(os.sched_getaffinity(0)), int(os.environ.get(CORES, sys.maxsize)))


def hardware() -> str:
    """The GPUs, or the architecture and cores of the CPU."""
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"
