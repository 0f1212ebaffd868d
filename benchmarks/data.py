"""Repeats and held-out items in training sets of N and 10 N rows, on one core: 10x the rows, at most 11x the time.

    python benchmarks/data.py
    python benchmarks/data.py --rows 1000 --repeats 3 --output /tmp/data.csv

Rows are made up: 40 words with the frequencies of a natural language, three numbers in four rows of five, none in the
fifth, so that a fifth of the rows can only be told apart by their words. One row in twenty is a copy, one in twenty a
near copy, and one in a hundred a held-out item. Memory is the growth of the resident set, rows included.
"""

import argparse
import multiprocessing
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import append, measure
from joint_loss import memory_kib

from weakdriven.data.overlap import Held, HeldItem, deduplicate

ITEMS = 2000
WORDS = 40
VOCABULARY = 50_000


def make_rows(count: int) -> tuple[list[str], list[HeldItem]]:
    rng = random.Random(0)
    weights = [1 / (rank + 10) for rank in range(VOCABULARY)]
    vocabulary = [f"w{number:x}".translate(str.maketrans("0123456789", "ghijklmnop")) for number in range(VOCABULARY)]
    drawn = iter(rng.choices(vocabulary, weights, k=WORDS * (count + ITEMS)))

    def text(number: int) -> str:
        words = [next(drawn) for _ in range(WORDS)]
        for place in range(3 if number % 5 else 0):
            words[10 * place] = str(rng.randint(1, 200))
        return " ".join(words)

    items = [HeldItem("made-up", str(number), text(number)) for number in range(ITEMS)]
    rows = [text(number) for number in range(count)]
    for number in range(count // 20, count):
        if number % 20 == 7:
            rows[number] = rows[rng.randrange(number)].upper()
        elif number % 20 == 13:
            rows[number] = rows[rng.randrange(number)] + " once more"
        elif number % 100 == 50:
            rows[number] = rng.choice(items).text
    return rows, items


def repeats(rows: list[str], items: list[HeldItem]) -> Counter[str]:
    return Counter(repeat.kind for _, repeat in deduplicate(rows) if repeat)


def held_out(rows: list[str], items: list[HeldItem]) -> Counter[str]:
    held = Held(items)
    return Counter(found.kind for row in rows for found in held.find(row))


VARIANTS: dict[str, Callable[[list[str], list[HeldItem]], Counter[str]]] = {
    "deduplicate": repeats,
    "Held.find": held_out,
}


def run_variant(name: str, count: int, times: int) -> dict[str, Any]:
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far: that of the imports
    before = memory_kib("VmRSS")
    inputs = make_rows(count)
    row = measure(lambda: VARIANTS[name](*inputs), repeats=times, warmup=1)
    row["peak_gib"] = round((memory_kib("VmHWM") - before) / 2**20, 3)
    found = VARIANTS[name](*inputs)
    return row | {"note": ", ".join(f"{kind} {number}" for kind, number in sorted(found.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000, help="N; 10 N is measured too")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    options = parser.parse_args()
    for name in options.variants:
        medians = []
        for count in (options.rows, 10 * options.rows):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row = pool.apply(run_variant, (name, count, options.repeats))
            medians.append(row["median_ms"])
            if len(medians) == 2:
                row["note"] += f"; {medians[1] / medians[0]:.2f}x the time of N={options.rows}"
            append(options.output, benchmark="data", shape=f"N={count}", dtype="text", variant=name, **row)


if __name__ == "__main__":
    main()
