"""WD-DS on ten million examples: ours against numpy's `choice` and torch's `multinomial`, on one core.

    OMP_NUM_THREADS=1 python benchmarks/selection.py
    OMP_NUM_THREADS=1 python benchmarks/selection.py --rows 1000000 --output /tmp/selection.csv

Every variant starts from both entropy columns, draws one row per example, and ends with the sorted distinct rows. It
runs in its own process. Memory is the growth of the resident set, including both columns (16 bytes per row).
"""

import argparse
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import append, measure
from joint_loss import memory_kib

from weakdriven.wmss.selection import draw_active, selection_counters, selection_probabilities

SEED = 42
WEIGHTS = {"consolidation": 0.1, "difficulty": 0.8, "repair": 0.1}
Select = Callable[[np.ndarray, np.ndarray], np.ndarray]


def ours(weak_N: np.ndarray, strong_N: np.ndarray) -> np.ndarray:
    return draw_active(selection_probabilities(weak_N, strong_N, **WEIGHTS), seed=SEED)


def ours_counted(weak_N: np.ndarray, strong_N: np.ndarray) -> np.ndarray:
    p_N = selection_probabilities(weak_N, strong_N, **WEIGHTS)
    active = draw_active(p_N, seed=SEED)
    selection_counters(weak_N, strong_N, p_N, active, formula="paper", multiplier=1.0, **WEIGHTS)
    return active


def plain_probabilities(weak_N: np.ndarray, strong_N: np.ndarray) -> np.ndarray:
    change_N = strong_N - weak_N
    weight_N = 0.1 * np.maximum(-change_N, 0) + 0.8 * strong_N + 0.1 * np.maximum(change_N, 0)
    return weight_N / weight_N.sum()


def choice(weak_N: np.ndarray, strong_N: np.ndarray) -> np.ndarray:
    """Draw as the authors' code does, then deduplicate as in the paper."""
    rows = len(weak_N)
    drawn = np.random.default_rng(SEED).choice(rows, rows, replace=True, p=plain_probabilities(weak_N, strong_N))
    return np.unique(drawn)


def multinomial(weak_N: np.ndarray, strong_N: np.ndarray) -> np.ndarray:
    """Draw with torch, which takes at most 2**24 rows and draws others than numpy."""
    p_N = torch.from_numpy(plain_probabilities(weak_N, strong_N))
    generator = torch.Generator().manual_seed(SEED)
    return torch.multinomial(p_N, len(p_N), replacement=True, generator=generator).unique().numpy()


VARIANTS: dict[str, Select] = {
    "weakdriven: probabilities, draw, counters": ours_counted,
    "weakdriven: probabilities and draw": ours,
    "numpy Generator.choice and unique": choice,
    "torch.multinomial": multinomial,
}


def make_inputs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw gamma columns with the paper's means, 0.52 and 0.44 nats; one example in fifty has zero entropy."""
    rng = np.random.default_rng(0)
    weak_N, strong_N = rng.gamma(2, 0.26, rows), rng.gamma(2, 0.22, rows)
    weak_N[::50] = strong_N[::50] = 0
    return weak_N, strong_N


def run_variant(name: str, rows: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak, which includes imports
    before = memory_kib("VmRSS")
    inputs = make_inputs(rows)
    row = measure(lambda: VARIANTS[name](*inputs), repeats=repeats, warmup=1)
    row["peak_gib"] = round((memory_kib("VmHWM") - before) / 2**20, 3)
    active = VARIANTS[name](*inputs)
    return row | {"note": f"{len(active)} rows, their sum {active.sum()}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about = {"benchmark": "selection", "shape": f"N={options.rows}", "dtype": "float64"}
    for name in options.variants:
        try:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row = pool.apply(run_variant, (name, options.rows, options.repeats))
        except RuntimeError as error:  # torch raises an error above 2**24 rows
            print(f"{name:40} not measured: {str(error).splitlines()[0][:120]}", flush=True)
            continue
        append(options.output, **about, variant=name, **row)


if __name__ == "__main__":
    main()
