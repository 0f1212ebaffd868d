"""Starts commands in several processes, as a launcher does on one machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from trained_shards import FSDP

from small_runs import run_small

ALONE = pytest.mark.xdist_group("alone")
"""Never next to another launch, nor to a fork bomb that leaves no process number for one."""
CUT = ["data.limit=64", "baselines=[]", "eval.limit=8", "eval.max_new_tokens=12", "sft.snapshots=[0.5]"]


def launch(
    processes: int, *command: str, timeout: int = 500, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """torchrun of a script or, after `-m`, of a module.

    With `--standalone` its store binds port 0 itself, and its processes are given the port that it got.
    """
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    told = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **(environment or {})}
    return subprocess.run([*start, *command], capture_output=True, text=True, env=told, timeout=timeout)


def by_several(
    processes: int, folder: Path, cases: list[dict[str, Any]], *, fsdp: bool = True, **environment: str
) -> list[tuple[dict[str, Any], Path]]:
    """What `trained_shards.run` gives for each case, and the folder that it wrote to."""
    folder.mkdir(exist_ok=True)
    script = str(Path(__file__).with_name("trained_shards.py"))
    environment |= FSDP if fsdp else {}
    done = launch(processes, script, str(folder), json.dumps(cases), environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(folder / "results.pt", weights_only=False)
    return [(one, folder / str(at)) for at, one in enumerate(found)]


def weakdriven(processes: int, *arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return launch(processes, "-m", "weakdriven", *map(str, arguments), **options)


def run_of_one_process(once) -> Path:
    """The small recipe by one process, computed once for all tests."""
    return once("one-process", lambda root: run_small(root, *CUT))[0]
