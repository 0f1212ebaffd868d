"""The runs of a comparison -> one table: score, difference to the reference, and what each method cost."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.eval.scoring import correct_counts
from weakdriven.eval.statistics import Scores, by_seed, compare_seeds, interval_of, score_of
from weakdriven.report.format import MISSING, duration, model_name
from weakdriven.report.read import current_stages
from weakdriven.runs.directory import PLAN_FILE, SAMPLES
from weakdriven.runs.files import read_json, read_jsonl, write_json, write_text
from weakdriven.runs.manifest import MANIFEST

COMPARE_FILE, COMPARISON = "compare.json", "comparison"
REFERENCE = "sft_restart"
"""What each method is tested against: two epochs of SFT with the fresh optimizer that WMSS has too."""
FIRST = "sft"
"""The stage of M1, which most methods start from."""
Row = dict[str, Any]


def write_comparison(root: Path) -> Row:
    """Write comparison.json, .csv and .md of a folder that `weakdriven compare` filled; returns the first."""
    found = compare_runs(root)
    write_json(root / f"{COMPARISON}.json", found)
    write_text(root / f"{COMPARISON}.csv", as_csv(found["rows"]))
    write_text(root / f"{COMPARISON}.md", as_markdown(found))
    return found


def compare_runs(root: Path) -> Row:
    """Everything that the table shows, from the files of the runs."""
    facts = read_json(root / COMPARE_FILE)
    runs = {seed: root / folder for seed, folder in facts["seeds"].items()}
    trained_first = any(FIRST in one["stages"] for one in facts["methods"].values())
    starts = {"base": {"model": "base", "stages": []}, "m1": {"model": "sft", "stages": [FIRST] * trained_first}}
    methods = starts | facts["methods"]
    scores = {method: scores_of(one["model"], runs) for method, one in methods.items()}
    rows = [row_of(method, one, runs, scores) for method, one in methods.items() if scores[method] or one["stages"]]
    return facts | {"against": REFERENCE, "rows": rows}


def scores_of(model: str, runs: dict[str, Path]) -> dict[str, Scores]:
    """Share of right samples of each problem, for each seed that has all benchmarks: seed -> benchmark -> (1, P)."""
    found: dict[str, Scores] = {}
    for seed, run in runs.items():
        there = current_stages(run)
        plan = read_json(run / PLAN_FILE) if (run / PLAN_FILE).is_file() else sorted(there)
        asked = [name for name in plan if name.startswith(f"eval/{model}/")]
        if asked and there.issuperset(asked):
            counts = {name: correct_counts(list(read_jsonl(run / name / SAMPLES))) for name in asked}
            found[seed] = {name.split("/")[-1]: np.array([right]) / n for name, (right, n) in counts.items()}
    return found


def together(found: dict[str, Scores], seeds: Iterable[str]) -> Scores:
    """Benchmark -> (S, P)."""
    chosen = [found[seed] for seed in seeds]
    return {name: np.concatenate([one[name] for one in chosen]) for name in chosen[0]}


def row_of(method: str, one: Row, runs: dict[str, Path], scores: dict[str, dict[str, Scores]]) -> Row:
    own, reference = scores[method], scores.get(REFERENCE, {})
    row: Row = {"method": method, "name": model_name(one["model"]), "model": one["model"], "seeds": list(own)}
    if own:
        whole = together(own, own)
        row |= {"score": score_of(whole), "interval": interval_of(whole), "by_seed": by_seed(whole).tolist()}
        row["benchmarks"] = {name: float(values_SP.mean()) for name, values_SP in whole.items()}
    if (shared := [seed for seed in own if seed in reference]) and method != REFERENCE:
        against = compare_seeds(together(reference, shared), together(own, shared))
        row["against"] = vars(against) | {"seeds": shared}
    return row | costs(one["stages"], [run for seed, run in runs.items() if seed in own])


def costs(stages: list[str], runs: list[Path]) -> Row:
    """Means over seeds of what a method's stages took, evaluation and tokenising aside; the largest peak of memory.

    A stage that was taken over counts as if it had been computed for this method alone.
    """
    manifests = [{name: read_json(run / name / MANIFEST) for name in stages} for run in runs]

    def mean(value: Any, chosen: Any = lambda name: True) -> float | None:
        sums = [sum(value(name, one) for name, one in each.items() if chosen(name)) for each in manifests]
        return float(np.mean(sums)) if sums and stages else None

    def counted(counter: str) -> Any:
        return lambda name, one: one["counters"].get(counter) or 0

    return {
        "seconds": mean(lambda name, one: one["wall_seconds"]),
        "seconds_after_m1": mean(lambda name, one: one["wall_seconds"], lambda name: name != FIRST),
        "trained_tokens": mean(counted("trained_tokens")),
        "generated_tokens": mean(counted("tokens"), lambda name: name.startswith("rollouts/")),
        "peak_bytes": max((one["peak_memory_bytes"] for each in manifests for one in each.values()), default=None),
    }


def as_csv(rows: list[Row]) -> str:
    """One line for each method; a difference is in shares, not in points."""
    benchmarks = list(dict.fromkeys(name for row in rows for name in row.get("benchmarks", {})))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["method", "seeds", "score", "low", "high", *benchmarks, *AGAINST, *COSTS])
    for row in rows:
        against = row.get("against", {})
        ends = [*row.get("interval", [None, None])]
        values = [against.get("difference"), *against.get("interval", [None, None])]
        values += [against.get("p_items"), against.get("p_seeds"), *(row[name] for name in COSTS)]
        each = [row.get("benchmarks", {}).get(name) for name in benchmarks]
        writer.writerow([row["method"], " ".join(row["seeds"]), row.get("score"), *ends, *each, *values])
    return file.getvalue()


AGAINST = ["difference", "difference_low", "difference_high", "p_items", "p_seeds"]
COSTS = ["seconds", "seconds_after_m1", "trained_tokens", "generated_tokens", "peak_bytes"]


def as_markdown(found: Row) -> str:
    scores, costs = (lines(titles, rows) for titles, rows in tables(found))
    failed = ["", "Without a result:", "", *(f"- {one}" for one in failures(found))] if found["failed"] else []
    told = ["Cost of each method, as in the paper's table of training time:"]
    parts = [f"# {found['recipe']}: methods compared", "", caption(found), "", *scores, "", *told, "", *costs, *failed]
    return "\n".join([*parts, ""])


def tables(found: Row) -> list[tuple[list[str], list[list[str]]]]:
    """Titles and cells of two tables: the scores, and the costs in the form of the paper's."""
    rows, sft = found["rows"], next((row.get("score") for row in found["rows"] if row["method"] == "sft"), None)
    trained = [row for row in rows if row["method"] != "base"]
    return [
        (SCORE_TITLES, [score_cells(row) for row in rows]),
        (COST_TITLES, [cost_cells(row, sft) for row in trained]),
    ]


def failures(found: Row) -> list[str]:
    return [f"{name}, seed {seed}: {why}" for name, each in found["failed"].items() for seed, why in each.items()]


def caption(found: Row) -> str:
    benchmarks = list(next((row["benchmarks"] for row in found["rows"] if "benchmarks" in row), {}))
    seeds = len(found["seeds"])
    return (
        f"Score: mean accuracy in percent over {', '.join(benchmarks)}, over {seeds} seed{'s' * (seeds != 1)}. "
        f"Brackets: 95% bootstrap interval over seeds and problems. Difference: to {found['against']}, in points, "
        "over the same seeds and problems. p (items): other problems for these models; p (seeds): other trainings on "
        "these problems, t-test. Neither is corrected for the number of methods."
    )


SCORE_TITLES = ["method", "seeds", "score", "difference", "p (items)", "p (seeds)"]
COST_TITLES = ["method", "time", "time after M1", "tokens trained", "tokens generated", "peak memory", "over sft"]


def score_cells(row: Row) -> list[str]:
    if "score" not in row:
        return [row["method"], "0", *[MISSING] * 4]
    cells = [row["method"], str(len(row["seeds"])), f"{100 * row['score']:.1f} {brackets(row['interval'])}"]
    if (against := row.get("against")) is None:
        return [*cells, *[MISSING] * 3]
    chance = MISSING if against["p_seeds"] is None else f"{against['p_seeds']:.3f}"
    difference = f"{100 * against['difference']:+.1f} {brackets(against['interval'])}"
    return [*cells, difference, f"{against['p_items']:.3f}", chance]


def cost_cells(row: Row, sft: float | None) -> list[str]:
    over = MISSING if sft is None or "score" not in row else f"{100 * (row['score'] - sft):+.1f}"
    peak = MISSING if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f} GiB"
    tokens = [MISSING if row[name] is None else f"{row[name]:,.0f}" for name in ("trained_tokens", "generated_tokens")]
    return [row["method"], duration(row["seconds"]), duration(row["seconds_after_m1"]), *tokens, peak, over]


def brackets(interval: Iterable[float]) -> str:
    low, high = interval
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def lines(titles: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [titles, ["---"] * len(titles), *rows]]
