"""The machine of a run: hardware, library versions, cores, and the peak memory of a stage."""

import os
import platform
import resource
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

LIBRARIES = ("weakdriven", "torch", "transformers", "trl", "accelerate", "datasets", "peft", "numpy", "math-verify")
LIBRARIES += ("torchao", "liger-kernel", "bitsandbytes")  # optional, so their absence is recorded too
CORES = "WEAKDRIVEN_CORES"
"""Environment variable with a run's share of the cores, set for runs in parallel."""


def reset_peak_memory() -> None:
    """Reset the peak for this stage, if the kernel allows it (Linux)."""
    with suppress(OSError):  # otherwise the peak is the whole process's, an upper bound
        Path("/proc/self/clear_refs").write_text("5")
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> int:
    """Return the peak bytes of this stage: device memory on CUDA, else resident memory."""
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
    """Return the number of cores that this process may use: fewer than all if it is pinned or shares them with runs."""
    return min(len(os.sched_getaffinity(0)), int(os.environ.get(CORES, sys.maxsize)))


def hardware() -> str:
    """Describe the GPUs, or the architecture and cores of the CPU."""
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"
