"""Starts commands in several processes, as a launcher does on one machine."""

import os
import subprocess
import sys
from pathlib import Path


def launch(
    processes: int, *command: str, timeout: int = 300, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """torchrun of a script or, after `-m`, of a module."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    told = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **(environment or {})}
    return subprocess.run([*start, *command], capture_output=True, text=True, env=told, timeout=timeout)


def weakdriven(processes: int, *arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return launch(processes, "-m", "weakdriven", *map(str, arguments), **options)
