"""The runs of a comparison -> one table: score, difference to the reference, and the cost of each method."""

from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.eval.statistics import by_seed, compare_seeds, interval_of, score_of
from weakdriven.report.format import MISSING, csv_text, duration, gibibytes, markdown_table, model_name, with_brackets
from weakdriven.report.results import Evaluated, Row, complete_models, scores
from weakdriven.runs.files import read_json, write_json, write_text
from weakdriven.runs.manifest import MANIFEST

COMPARE_FILE, COMPARISON = "compare.json", "comparison"
REFERENCE = "sft_restart"
"""What each method is tested against: two epochs of SFT with the fresh optimizer that WMSS has too."""
FIRST = "sft"
"""The stage of M1, which most methods start from."""
AGAINST = ["difference", "difference_low", "difference_high", "p_items", "p_seeds"]
COSTS = ["seconds", "seconds_after_m1", "trained_tokens", "generated_tokens", "peak_bytes"]


def write_comparison(root: Path) -> Row:
    """Write comparison.json, .csv and .md of a folder that `weakdriven compare` filled; returns the first."""
    found = compare_runs(root)
    write_json(root / f"{COMPARISON}.json", found)
    write_text(root / f"{COMPARISON}.csv", as_csv(found["rows"]))
    write_text(root / f"{COMPARISON}.md", as_markdown(found))
    return found


def compare_runs(root: Path) -> Row:
    facts = read_json(root / COMPARE_FILE)
    runs = {seed: root / folder for seed, folder in facts["seeds"].items()}
    trained_first = any(FIRST in one["stages"] for one in facts["methods"].values())
    starts = {"base": {"model": "base", "stages": []}, "m1": {"model": "sft", "stages": [FIRST] * trained_first}}
    methods = starts | facts["methods"]
    complete = {seed: complete_models(run) for seed, run in runs.items()}
    found = {
        method: {seed: models[one["model"]] for seed, models in complete.items() if one["model"] in models}
        for method, one in methods.items()
    }
    rows = [
        method_row(method, one, found[method], found.get(REFERENCE, {}))
        | costs(one["stages"], [runs[seed] for seed in found[method]])
        for method, one in methods.items()
        if found[method] or one["stages"]
    ]
    return facts | {"against": REFERENCE, "rows": rows}


def method_row(method: str, one: Row, own: dict[str, Evaluated], reference: dict[str, Evaluated]) -> Row:
    """A method's scores by seed, and the test against the reference under the seeds that both have."""
    row: Row = {"method": method, "name": model_name(one["model"]), "model": one["model"], "seeds": list(own)}
    if own:
        whole = scores([*own.values()])
        row |= {"score": score_of(whole), "interval": interval_of(whole), "by_seed": by_seed(whole).tolist()}
        row["benchmarks"] = {name: float(values_SP.mean()) for name, values_SP in whole.items()}
    if (shared := [seed for seed in own if seed in reference]) and method != REFERENCE:
        theirs, ours = (scores([models[seed] for seed in shared]) for models in (reference, own))
        row["against"] = vars(compare_seeds(theirs, ours)) | {"seeds": shared}
    return row


def costs(stages: list[str], runs: list[Path]) -> Row:
    """Means over seeds of the cost of a method's stages, without evaluation and tokenizing; peak memory is the maximum.

    A stage that was taken over counts as if it had been computed for this method alone.
    """
    manifests = [{name: read_json(run / name / MANIFEST) for name in stages} for run in runs]

    def mean(value: Any, chosen: Any = lambda name: True) -> float | None:
        sums = [sum(value(one) for name, one in each.items() if chosen(name)) for each in manifests]
        return float(np.mean(sums)) if sums and stages else None

    return {
        "seconds": mean(lambda one: one["wall_seconds"]),
        "seconds_after_m1": mean(lambda one: one["wall_seconds"], lambda name: name != FIRST),
        "trained_tokens": mean(lambda one: one["counters"].get("trained_tokens") or 0),
        "generated_tokens": mean(
            lambda one: one["counters"].get("tokens") or 0, lambda name: name.startswith("rollouts/")
        ),
        "peak_bytes": max((one["peak_memory_bytes"] for each in manifests for one in each.values()), default=None),
    }


def as_csv(rows: list[Row]) -> str:
    """One line for each method; a difference is in shares, not in points."""
    benchmarks = list(dict.fromkeys(name for row in rows for name in row.get("benchmarks", {})))
    lines = [["method", "seeds", "score", "low", "high", *benchmarks, *AGAINST, *COSTS]]
    for row in rows:
        against = row.get("against", {})
        tested = [against.get("difference"), *against.get("interval", [None, None])]
        tested += [against.get("p_items"), against.get("p_seeds")]
        measured = [row.get("score"), *row.get("interval", [None, None])]
        measured += [row.get("benchmarks", {}).get(name) for name in benchmarks]
        lines.append([row["method"], " ".join(row["seeds"]), *measured, *tested, *(row[name] for name in COSTS)])
    return csv_text(lines)


def as_markdown(found: Row) -> str:
    by_score, by_cost = (markdown_table(titles, rows) for titles, rows in tables(found))
    failed = ["", "Without a result:", "", *(f"- {one}" for one in failures(found))] if found["failed"] else []
    parts = [f"# {found['recipe']}: methods compared", "", caption(found), "", *by_score, ""]
    parts += ["Cost of each method, as in the paper's training-time table:", "", *by_cost, *failed, ""]
    return "\n".join(parts)


def tables(found: Row) -> list[tuple[list[str], list[list[str]]]]:
    """Titles and cells of two tables: the scores, and the costs in the form of the paper's."""
    rows, sft = found["rows"], next((row.get("score") for row in found["rows"] if row["method"] == "sft"), None)
    scored = ["method", "seeds", "score", "difference", "p (items)", "p (seeds)"]
    cost = ["method", "time", "time after M1", "tokens trained", "tokens generated", "peak memory", "over sft"]
    costly = [cost_cells(row, sft) for row in rows if row["method"] != "base"]
    return [(scored, [score_cells(row) for row in rows]), (cost, costly)]


def failures(found: Row) -> list[str]:
    return [f"{name}, seed {seed}: {why}" for name, each in found["failed"].items() for seed, why in each.items()]


def caption(found: Row) -> str:
    benchmarks = list(next((row["benchmarks"] for row in found["rows"] if "benchmarks" in row), {}))
    seeds = len(found["seeds"])
    return (
        f"Score: mean accuracy in percent over {', '.join(benchmarks)} and {seeds} seed{'s' * (seeds != 1)}. "
        f"Brackets: 95% bootstrap interval over seeds and problems. Difference: from {found['against']}, in points, "
        "on the same seeds and problems. p (items): paired test over problems. p (seeds): t-test over seeds. "
        "Neither is corrected for the number of methods."
    )


def score_cells(row: Row) -> list[str]:
    if "score" not in row:
        return [row["method"], "0", *[MISSING] * 4]
    tested = [MISSING] * 3
    if against := row.get("against"):
        chance = MISSING if against["p_seeds"] is None else f"{against['p_seeds']:.3f}"
        tested = [with_brackets(against["difference"], against["interval"], "+"), f"{against['p_items']:.3f}", chance]
    return [row["method"], str(len(row["seeds"])), with_brackets(row["score"], row["interval"]), *tested]


def cost_cells(row: Row, sft: float | None) -> list[str]:
    over = MISSING if sft is None or "score" not in row else f"{100 * (row['score'] - sft):+.1f}"
    tokens = [MISSING if row[name] is None else f"{row[name]:,.0f}" for name in ("trained_tokens", "generated_tokens")]
    seconds = [duration(row[name]) for name in ("seconds", "seconds_after_m1")]
    return [row["method"], *seconds, *tokens, gibibytes(row["peak_bytes"]), over]
