"""Shared by all benchmarks: timing, peak memory, and a row in results.csv with hardware, versions and commit."""

import csv
import datetime
import gc
import importlib.metadata
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

FIELDS = ["date", "benchmark", "variant", "shape", "dtype", "median_ms", "low_ms", "high_ms", "peak_gib", "note"]
FIELDS += ["hardware", "versions", "commit"]
PACKAGES = ("torch", "triton", "transformers", "trl", "liger-kernel", "cut-cross-entropy", "torchao")


def measure(step: Callable[[], Any], *, repeats: int, warmup: int = 2) -> dict[str, Any]:
    """Measure the median and the 20th to 80th percentile of `repeats` runs, and the increase in peak device memory."""
    cuda = torch.cuda.is_available()
    for _ in range(warmup):
        step()
    gc.collect()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begin))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30 if cuda else float("nan")
    times.sort()
    return {
        "median_ms": round(statistics.median(times), 2),
        "low_ms": round(times[len(times) // 5], 2),
        "high_ms": round(times[-1 - len(times) // 5], 2),
        "peak_gib": round(peak, 3),
    }


def in_own_process(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any] | str:
    """Run `work` in its own process, so that the GPU holds nothing else of ours; return its result or why it failed."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_answer, args=(there, work, arguments))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        return "the process was killed, perhaps because of memory"
    finally:
        process.join()


def _answer(pipe: Any, work: Callable[..., dict[str, Any]], arguments: tuple) -> None:
    try:
        pipe.send(work(*arguments))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        pipe.send(f"{type(error).__name__}: {str(error).splitlines()[0][:100]}")


def append(path: Path, **row: Any) -> None:
    """Append a line at once, so that a run that dies keeps its measurements."""
    row |= {"date": datetime.date.today().isoformat(), "hardware": hardware(), "versions": versions()}
    row["commit"] = commit()
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    memory = f"{row['peak_gib']:8.2f} GiB"
    print(f"{row['variant']:40} {row['median_ms']:10.1f} ms {memory}  {row.get('note', '')}", flush=True)


def hardware() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def versions() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return "; ".join(found)


def commit() -> str:
    """Return the checkout's commit, marked if files have changed; or COMMIT, for files without history."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    return os.environ.get("COMMIT") or subprocess.run(command, capture_output=True, text=True).stdout.strip()
