"""Single examples on the page: a sample of points, and bars of the odds, as plain values. N = examples."""

from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.report.files import Columns, read_examples
from weakdriven.report.format import shorten
from weakdriven.runs.directory import EXAMPLES

SCATTER_POINTS, BARS = 2000, 24


def sample_points(weak: Columns, strong: Columns, drawn: Columns | None) -> dict[str, Any]:
    """Both entropies of at most `SCATTER_POINTS` examples, sampled before anything is built for them."""
    weak_N, strong_N = weak.values["entropy"], strong.values["entropy"]
    usable = np.flatnonzero(np.isfinite(weak_N) & np.isfinite(strong_N))
    rows = usable
    if len(usable) > SCATTER_POINTS:
        rows = np.sort(np.random.default_rng(0).choice(usable, SCATTER_POINTS, replace=False))
    draws = drawn.values["draws"][rows].tolist() if drawn else [None] * len(rows)
    columns = zip(weak.ids_of(rows).items(), weak_N[rows].tolist(), strong_N[rows].tolist(), draws, strict=True)
    points = [
        {"row": row, "id": item, "weak": x, "strong": y, "draws": times, "question": ""}
        for (row, item), x, y, times in columns
    ]
    return {"points": points, "usable": len(usable), "left_out": len(weak_N) - len(usable), "drawn": drawn is not None}


def odds_bars(probability: np.ndarray, draws: np.ndarray) -> list[dict[str, Any]]:
    """Histogram of the sampling probability as a multiple of the uniform one, with the chosen examples counted apart.

    The last bar also counts everything above it, so that one extreme example does not flatten the rest.
    """
    finite = np.isfinite(probability)
    if not finite.any():
        return []
    odds, chosen = probability[finite] * len(probability), draws[finite] > 0
    top = max(float(np.quantile(odds, 0.995)), 2.0)
    edges = np.linspace(0, top, BARS + 1)
    all_counts, chosen_counts = (np.histogram(np.minimum(part, top), edges)[0] for part in (odds, odds[chosen]))
    bars = zip(edges[:-1].tolist(), edges[1:].tolist(), all_counts.tolist(), chosen_counts.tolist(), strict=True)
    largest = float(odds.max())
    return [
        {"low": low, "high": high, "to": largest if high == top else high, "examples": count, "chosen": taken}
        for low, high, count, taken in bars
    ]


def add_questions(run: Path, rounds: list[dict[str, Any]], problems: list[str]) -> None:
    """Give every point its question, in one pass over the examples for all rounds."""
    points = [point for one in rounds for point in one["points"]]
    wanted = {point["row"]: point["id"] for point in points}
    found = read_examples(run, wanted)
    for point in points:
        point["question"] = shorten(found.get(point["row"], {}).get("prompt"), 90)
    if (run / "data" / EXAMPLES).is_file() and len(found) < len(wanted):
        problems.append(
            f"data/{EXAMPLES}: {len(wanted) - len(found):,} of {len(wanted):,} charted examples were not found "
            "in their row; their questions are not shown."
        )
