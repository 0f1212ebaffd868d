"""What computes: hardware, versions of libraries, and the most memory that a stage held."""

import os
import platform
import resource
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

LIBRARIES = ("weakdriven", "torch", "transformers", "trl", "accelerate", "datasets", "peft", "numpy", "math-verify")
LIBRARIES += ("torchao", "liger-kernel", "bitsandbytes")  # whose absence is worth knowing too
CORES = "WEAKDRIVEN_CORES"
"""Set for each of several runs side by side: its share of the cores."""


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


def library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def cores() -> int:
    """Those that this process may use: fewer than there are where it is pinned, or where several runs share them."""
    return min(len(os.sched_getaffinity(0)), int(os.environ.get(CORES, sys.maxsize)))


def hardware() -> str:
    """What computes: the GPUs, or the processor's kind and cores."""
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"
