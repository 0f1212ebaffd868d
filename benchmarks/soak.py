"""Looks for leaks: runs the demo many times in one process, and one long training.

    python benchmarks/soak.py demo --rounds 20
    python benchmarks/soak.py demo --rounds 20 --short
    python benchmarks/soak.py train --steps 2000

After each round, or every hundredth step, it notes resident memory, open files, threads, child processes and the files
in its own folder for temporary files. Memory is flat if a line through the last three quarters of the notes rises by
less than 5% of their mean. None of the other counts may be higher at the end than in the first note. The exit status is
1 if something leaked.
"""

import argparse
import gc
import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

SHORT = ["data.limit=96", "eval.limit=24", "eval.max_new_tokens=48", "sft.epochs=1", "baselines=[sft]"]
ROWS, BATCH = 400, 4
FLAT = 0.05
"""Share of its mean by which memory may rise, because allocators round up."""
COUNTED = ("files", "threads", "children", "leftovers")


@dataclass(frozen=True)
class Note:
    """The resources of the process at one moment."""

    rss: int
    """Resident memory in bytes."""
    files: int
    threads: int
    children: int
    leftovers: int
    """Files and folders in the folder for temporary files."""


def note_now() -> Note:
    gc.collect()
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    temporary = Path(tempfile.gettempdir())
    return Note(
        rss=int(fields[1]) * os.sysconf("SC_PAGESIZE"),
        files=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
        children=len(children()),
        leftovers=sum(1 for _ in temporary.rglob("*")),
    )


def children() -> list[int]:
    """List the processes that this one started and that still exist, including zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it has ended in the meantime
                continue
            if int(state.rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.name))
    return found


@contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """Use a new folder for temporary files inside this block, also for child processes."""
    before, folder = os.environ.get("TMPDIR"), Path(tempfile.mkdtemp(prefix="soak-"))
    (folder / "tmp").mkdir()
    os.environ["TMPDIR"], tempfile.tempdir = str(folder / "tmp"), None
    try:
        yield folder
    finally:
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        tempfile.tempdir = None
        shutil.rmtree(folder)


def slope(values: list[float]) -> float:
    """Return the slope of the least-squares line, per note.

    >>> slope([1.0, 3.0, 5.0])
    2.0
    """
    middle, mean = (len(values) - 1) / 2, statistics.fmean(values)
    spread = sum((place - middle) ** 2 for place in range(len(values)))
    return sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread if spread else 0.0


def verdict(notes: list[Note]) -> list[str]:
    """Describe what leaked; empty if everything is flat."""
    later = [float(one.rss) for one in notes[len(notes) // 4 :]]
    rise = slope(later) * (len(later) - 1)
    found = []
    if rise > FLAT * statistics.fmean(later):
        found.append(f"memory rises by {rise / 2**20:.1f} MiB over the last {len(later)} notes")
    first, last = asdict(notes[0]), asdict(notes[-1])
    found += [f"{name} {first[name]} -> {last[name]}" for name in COUNTED if last[name] > first[name]]
    return found


def soak_demo(
    rounds: int, overrides: list[str], tell: Callable[[str], None] = print, *, minutes: float = math.inf
) -> tuple[list[Note], list[float]]:
    """Run the demo recipe `rounds` times in new folders; return a note and the seconds of each round.

    Args:
        minutes: Start no further round after this time.
    """
    from weakdriven.config.file import load_recipe
    from weakdriven.pipeline.run import run_recipe
    from weakdriven.runs.directory import Progress

    notes, seconds = [], []
    with own_temporary_folder() as folder:
        for number in range(1, rounds + 1):
            if sum(seconds) > 60 * minutes:
                break
            begin = time.monotonic()
            run_recipe(load_recipe("demo", overrides), folder / "run", Progress())
            shutil.rmtree(folder / "run")
            seconds.append(time.monotonic() - begin)
            notes.append(note_now())
            tell(f"demo {number:3} of {rounds}: {seconds[-1]:6.1f} s  {shown(notes[-1])}")
    return notes, seconds


def soak_training(steps: int, every: int = 100, tell: Callable[[str], None] = print) -> tuple[list[Note], list[float]]:
    """Train two models jointly; return a note at each `every`th step and the seconds between them."""
    from weakdriven.config.file import load_recipe
    from weakdriven.pipeline.run import run_recipe
    from weakdriven.runs.directory import Progress

    notes, seconds = [], []

    class Noting(Progress):
        stage, since = "", 0.0

        def begin(self, stage: str, reason: str) -> None:
            self.stage, self.since = stage, time.monotonic()

        def update(self, done: int, total: int, **facts: float) -> None:
            if self.stage == "round-1/strong" and done and done % every == 0:
                seconds.append(time.monotonic() - self.since)
                notes.append(note_now())
                tell(f"step {done:5} of {total}: {seconds[-1]:6.1f} s  {shown(notes[-1])}")
                self.since = time.monotonic()

    epochs = -(-steps * BATCH // ROWS)
    with own_temporary_folder() as folder:
        asked = [f"data.limit={ROWS}", f"joint.epochs={epochs}", f"joint.batch_size={BATCH}", "selection.enabled=false"]
        asked += [
            "joint.micro_batch_size=4",
            "sft.epochs=1",
            "joint.save_steps=200",
            "joint.logging_steps=10",
            "baselines=[]",
            "eval.benchmarks=[]",
        ]
        run_recipe(load_recipe("demo", asked), folder / "run", Noting())
    return notes, seconds


def shown(note: Note) -> str:
    return f"{note.rss / 2**20:7.1f} MiB  " + "  ".join(f"{name} {getattr(note, name)}" for name in COUNTED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["demo", "train"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no further demo after these minutes")
    parser.add_argument("--short", action="store_true", help="96 rows and 24 items instead of the whole demo")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    args = parser.parse_args()
    from common import append

    def tell(line: str) -> None:
        print(line, flush=True)

    if args.what == "demo":
        notes, seconds = soak_demo(args.rounds, SHORT if args.short else [], tell, minutes=args.minutes)
        variant, shape = "short demo" if args.short else "demo", f"rounds={len(notes)}"
    else:
        notes, seconds = soak_training(args.steps, tell=tell)
        variant, shape = "joint training", f"steps={args.steps}"
    later = [float(one.rss) for one in notes[len(notes) // 4 :]]
    problems = verdict(notes)
    ordered = sorted(seconds)
    append(
        args.output,
        benchmark="soak",
        variant=variant,
        shape=shape,
        dtype="fp32",
        median_ms=round(1000 * statistics.median(ordered), 2),
        low_ms=round(1000 * ordered[len(ordered) // 5], 2),
        high_ms=round(1000 * ordered[-1 - len(ordered) // 5], 2),
        peak_gib=round(max(one.rss for one in notes) / 2**30, 3),
        note=f"memory {slope(later) / 2**10:+.0f} KiB per note over {len(later)} notes; "
        f"first {shown(notes[0])}; last {shown(notes[-1])}; {'; '.join(problems) or 'flat'}",
    )
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
