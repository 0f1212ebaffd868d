"""The cost of making and reading training sets: verification, deduplication, held-out items, a whole build, tokens.

    python benchmarks/data.py
    python benchmarks/data.py --rows 1000 --repeats 3 --variants deduplicate Held.find --output /tmp/data.csv
    python benchmarks/data.py --variants tokens --model path/to/a/model

| variant | measured at | expected |
|---|---|---|
| verify math | N rows, all processors | 400 rows a second on two of them |
| deduplicate, Held.find | N and 10 N rows, one process | 10x the rows take at most 11x the time |
| build math | N and 10 N rows, all processors | memory grows only by the keys of the deduplication |
| tokens | 10 N rows, one process | less than 2 GiB |

Rows are synthetic (`data_rows.py`). Each variant runs in its own process. For `deduplicate` and `Held.find`, memory is
the growth of the resident set including the rows; for the others, it is all of the process without its workers. The
load of the machine is noted: times are reliable if it does not exceed the number of measured processes.
"""

import argparse
import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import append, measure
from data_rows import make_questions, math_rows
from joint_loss import memory_kib

from weakdriven.build.build import build
from weakdriven.build.rows import verify_block
from weakdriven.build.settings import BuildSettings
from weakdriven.data.overlap.find import Held, deduplicate
from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.sources import open_source
from weakdriven.data.tokenize import write_tokens
from weakdriven.eval.graders.candidates import Checks, verifier
from weakdriven.eval.graders.workers import shared_pool
from weakdriven.models.load import EMBEDDED, load_tokenizer, locate_model
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import write_jsonl

ITEMS = 2000
HELD = {"gsm8k": 1319, "svamp": 1000, "reclor": 500}
"""Number of items of each benchmark; the items here are synthetic."""
Row = dict[str, Any]


def verify_math(count: int, times: int, options: argparse.Namespace) -> Row:
    """Run blocks through the checks of `weakdriven data build math`; new rows each time, as verdicts are cached."""
    questions, _ = make_questions(count, 1)
    settings, verify = BuildSettings(domain="math", sources=["made-up"], benchmarks=[]), verifier(Checks())
    sets = iter([list(math_rows(count, questions, seed)) for seed in range(times + 1)])
    verify_block(settings, "made-up", 1, list(math_rows(64, questions, -1)), verify)  # starts the workers
    dropped: Counter[str] = Counter()

    def step() -> None:
        rows = next(sets)
        for first in range(0, count, settings.block):
            block = rows[first : first + settings.block]
            dropped.update(verify_block(settings, "made-up", first + 1, block, verify)[1].dropped)

    before, total = os.times(), count * (times + 1)
    row = measure(step, repeats=times, warmup=1)
    shared_pool().close()  # the time of children counts only after they end
    processor = 1000 * (sum(os.times()[:4]) - sum(before[:4])) / total
    note = f"{rate(count, row)}; {processor:.2f} ms of processor time a row; dropped {dict(dropped)} of {total}"
    return row | {"peak_gib": peak(), "note": note}


def repeats(count: int, times: int, options: argparse.Namespace) -> Row:
    return grown(lambda rows, _: Counter(repeat.kind for _, repeat in deduplicate(rows) if repeat), count, times)


def held_out(count: int, times: int, options: argparse.Namespace) -> Row:
    def find(rows: list[str], items: list[Any]) -> Counter[str]:
        held = Held(items)
        return Counter(found.kind for row in rows for found in held.find(row))

    return grown(find, count, times)


def grown(find: Callable[[list[str], list[Any]], Counter[str]], count: int, times: int) -> Row:
    forget_peak()
    before = memory_kib("VmRSS")
    inputs = make_questions(count, ITEMS)
    found: list[Counter[str]] = []
    row = measure(lambda: found.append(find(*inputs)), repeats=times, warmup=0)
    row["peak_gib"] = round((memory_kib("VmHWM") - before) / 2**20, 3)
    return row | {"note": f"{rate(count, row)}; " + ", ".join(f"{kind} {n}" for kind, n in sorted(found[0].items()))}


class Steps(Progress):
    """Records how long each step of a build takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def end(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = seconds


def build_math(count: int, times: int, options: argparse.Namespace) -> Row:
    """Build a training set from raw rows, once, because an existing one is not built again."""
    steps = Steps()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        questions, items = make_questions(count, ITEMS)
        write_jsonl(folder / "raw.jsonl", math_rows(count, questions))
        for benchmark, total in HELD.items():
            held = ({"id": item.id, "question": item.text} for item in items[:total])
            others = {"answer": "A", "context": "So.", "options": list("wxyz")}
            write_jsonl(folder / f"{benchmark}.jsonl", (row | others for row in held))
        del questions, items
        forget_peak()
        before = memory_kib("VmRSS")
        settings = BuildSettings(
            domain="math", sources=[str(folder / "raw.jsonl")], benchmarks=list(HELD), data_dir=name
        )
        row = measure(lambda: build(settings, folder / "set", steps), repeats=1, warmup=0)
        funnel = build(settings, folder / "set")
    row["peak_gib"] = round((memory_kib("VmHWM") - before) / 2**20, 3)
    kept = funnel["steps"]["verify"]["kept"]
    verified, cleaned = count / steps.seconds["verify"], kept / steps.seconds["clean"]
    speeds = f"verify {verified:.0f} rows/s, clean {cleaned:.0f} rows/s"
    return row | {"note": f"{rate(count, row)}: {speeds}; kept {funnel['kept']}"}


def tokens(count: int, times: int, options: argparse.Namespace) -> Row:
    """Tokenise the rows of a file as the data stage does."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "train.jsonl"
        questions, _ = make_questions(1000, 1)
        write_jsonl(path, math_rows(count, questions))
        renderer = Renderer(load_tokenizer(locate_model(options.model)), "math", "tagged")
        forget_peak()

        def step() -> dict[str, int]:
            examples = open_source(str(path), domain="math")
            return write_tokens(examples, renderer, Path(name) / "tokens", max_length=4096, long_prompts="error")

        counters: list[dict[str, int]] = []
        row = measure(lambda: counters.append(step()), repeats=1, warmup=0)
    note = f"{rate(count, row)}; {counters[0]['tokens'] / row['median_ms']:.0f}k tokens/s; {Path(options.model).name}"
    return row | {"peak_gib": peak(), "note": note}


VARIANTS = {
    "verify math": verify_math,
    "deduplicate": repeats,
    "Held.find": held_out,
    "build math": build_math,
    "tokens": tokens,
}
SIZES = {"verify math": (1,), "tokens": (10,)}
"""Multiples of N that are measured (default: N and 10 N)."""


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
    return round(memory_kib("VmHWM") / 2**20, 3)


def rate(count: int, row: Row) -> str:
    return f"{1000 * count / row['median_ms']:.0f} rows/s"


def run_variant(name: str, count: int, options: argparse.Namespace) -> Row:
    row = VARIANTS[name](count, options.repeats, options)
    return row | {"note": f"{row['note']}; load {os.getloadavg()[0]:.1f}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000, help="N of the table above")
    parser.add_argument("--repeats", type=int, default=3, help="runs of verify math, deduplicate and Held.find")
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--model", default=EMBEDDED, help="model whose tokenizer `tokens` uses")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    options = parser.parse_args()
    for name in options.variants:
        before: Row | None = None
        for count in (size * options.rows for size in SIZES.get(name, (1, 10))):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row = pool.apply(run_variant, (name, count, options))
            if before:
                times, more = row["median_ms"] / before["median_ms"], row["peak_gib"] - before["peak_gib"]
                growth = 100_000 * more / (count - options.rows)
                row["note"] += f"; {times:.2f}x the time of N={options.rows}, {growth:.3f} GiB per 100,000 rows"
            before = row
            append(options.output, benchmark="data", shape=f"N={count}", dtype="text", variant=name, **row)


if __name__ == "__main__":
    main()
