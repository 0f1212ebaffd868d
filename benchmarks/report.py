"""The report of a large run: the time to build it and to open it in Chromium, thinned and with all points.

    python benchmarks/report.py
    python benchmarks/report.py --examples 10000 --steps 2000 --output /tmp/report.csv

The run directory is synthetic: random entropies and losses in the files of a run. Opening ends when the page has loaded
and shows its first figures; drawing ends when the last figure further down is shown too.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from common import append, measure
from playwright.sync_api import sync_playwright
from pyarrow import parquet

from weakdriven.diagnose.token_view import SCHEMA
from weakdriven.report import plots, read, write_report
from weakdriven.report.run import figures as run_figures

STAGES = ["data", "sft", "entropy/base", "entropy/sft", "round-1/active", "round-1/strong", "baselines/sft"]
MODELS = {"base": 0.1, "sft": 0.5, "baseline-sft": 0.55, "round-1": 0.6}


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in value) if isinstance(value, list) else json.dumps(value)
    path.write_text(lines, encoding="utf-8")


def put_table(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def make_run(run: Path, rows: int, steps: int, items: int = 1319) -> None:
    rng = np.random.default_rng(0)
    names = [*STAGES, *(f"eval/{model}/gsm8k" for model in MODELS)]
    put(run / "run.json", {"recipe": "large", "created": "2026-11-15T03:00:00+00:00"})
    put(run / "plan.json", dict.fromkeys(names, "k"))
    for place, name in enumerate(names):
        times = {"wall_seconds": 60.0, "finished": f"2026-11-15T03:{place:02}:00+00:00", "peak_memory_bytes": 10**10}
        put(
            run / name / "manifest.json",
            {"stage": name, "key": "k", "counters": {"rows": rows, "steps": steps}, **times},
        )
    ids = [f"train-{i}" for i in range(rows)]
    text = "A train leaves at nine and goes sixty miles an hour. " * 4
    put(run / "data/examples.jsonl", [{"id": one, "prompt": text, "completion": text * 4} for one in ids])
    weak = rng.gamma(3, 0.2, rows)
    for model, entropy in {"base": weak, "sft": weak * rng.uniform(0.4, 1.15, rows)}.items():
        put_table(run / f"entropy/{model}/scores.parquet", id=ids, entropy=entropy)
    put_table(run / "round-1/active/active.parquet", id=ids, probability=weak / weak.sum(), draws=rng.poisson(1, rows))
    for stage in ("sft", "round-1/strong", "baselines/sft"):
        loss = 2 * 0.999 ** np.arange(steps) + 0.3 + rng.random(steps) / 10
        keys = ("loss", "strong_loss", "weak_loss", "mixed_probability", "strong_probability", "margin_share")
        put(run / stage / "metrics.jsonl", [{"step": i, **dict.fromkeys(keys, x)} for i, x in enumerate(loss.tolist())])
    for model, chance in MODELS.items():
        right = (rng.random(items) < chance).tolist()
        share = sum(right) / items
        scores = {"version": 1, "items": items, "correct": sum(right), "accuracy": share}
        put(run / f"eval/{model}/gsm8k/scores.json", scores | {"interval": [share - 0.03, share + 0.03]})
        more = {"prompt": text, "text": text * 4, "gold": "7", "answer": "7"}
        answers = [{"id": f"test-{i}", "correct": one, **more} for i, one in enumerate(right)]
        put(run / f"eval/{model}/gsm8k/samples.jsonl", answers)


def put_tokens(path: Path, examples: int = 36, tokens: int = 1000, negatives: int = 8) -> None:
    """Write as many examples as `weakdriven diagnose` lists, each longer than the page shows."""
    rng, lists = np.random.default_rng(1), ("hardest", "regressed", "random")
    rows = []
    for place in range(examples * tokens):
        example, position = divmod(place, tokens)
        row: dict[str, Any] = {
            name: float(rng.random()) for name in SCHEMA.names if name.endswith(("probability", "entropy"))
        }
        row |= {
            "lists": [lists[example % 3]],
            "id": f"train-{example}",
            "row": example,
            "position": position,
            "token": place % 997,
        }
        row |= {
            "text": f" word{place % 997}",
            "disagreement": float(rng.random()),
            "hard_negatives": 900.0,
            "uniform_margin": 0.0,
        }
        row |= {
            "negative_tokens": list(range(negatives)),
            "negative_texts": [f" other{(place + k) % 991}" for k in range(negatives)],
        }
        row |= {f"negative_{name}": rng.random(negatives).tolist() for name in ("weak", "strong", "mixed", "gradient")}
        rows.append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), path)


def open_page(path: Path) -> tuple[list[float], list[float]]:
    """Return the seconds until the page and until its last figure are shown, for three openings."""
    there, drawn = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(3):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            begin = time.perf_counter()
            page.goto(path.as_uri())
            page.wait_for_selector('[data-figure][data-state="drawn"]')
            there.append(time.perf_counter() - begin)
            page.wait_for_function("document.documentElement.dataset.figures === 'done'", timeout=300_000)
            drawn.append(time.perf_counter() - begin)
            page.close()
        browser.close()
    return there, drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.csv")
    options = parser.parse_args()
    shape = f"examples={options.examples} steps={options.steps}"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        make_run(run, options.examples, options.steps)
        put_tokens(run / "diagnostics/tokens.parquet")
        for variant in ("thinned, as shipped", "every step and example"):
            if variant.startswith("every"):
                plots.CURVE_POINTS = read.SCATTER_POINTS = run_figures.SCATTER_POINTS = 10**9
            built = measure(lambda: write_report(run), repeats=3, warmup=1)
            size = (run / "report.html").stat().st_size / 1e6
            there, drawn = open_page(run / "report.html")
            note = f"{size:.2f} MB; opens in {sorted(there)[1]:.2f} s, all drawn after {sorted(drawn)[1]:.2f} s"
            append(options.output, benchmark="report", variant=variant, shape=shape, dtype="", note=note, **built)
            print(f"{variant}: built in {built['median_ms'] / 1000:.2f} s, {note}")


if __name__ == "__main__":
    main()
