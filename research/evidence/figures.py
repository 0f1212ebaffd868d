"""Draws the two figures of docs/evidence. Each file ends with a digest of its data, which a test checks."""

import hashlib
import json
from pathlib import Path

from research.evidence.comparisons import Numbers
from research.evidence.diagnosed import gaps
from research.evidence.results import REFERENCE, STUDENTS, Trained
from weakdriven.eval.statistics import interval_of, score_of
from weakdriven.report.figure import Figure, write_figures
from weakdriven.runs.files import write_text

SHOWN = ("core", "variants", "saturated", "exploratory")
"""Studies in the figure; the others have few or different items, or methods that also generate."""
CURVE = ("base", "m1", "sft", "sft_compute")
"""SFT on one schedule."""
KINDS = {
    "wmss": "WMSS",
    "wmss_lambda_0.5": "WMSS",
    "sft_active": "SFT on the rows of WMSS",
    REFERENCE: "SFT restarted",
} | dict.fromkeys(CURVE, "SFT")
OTHER, REPAIRED = "other forms", "WMSS, repaired"


def figures(numbers: Numbers) -> list[Figure]:
    return [compute_figure([*numbers.trained.values()]), mechanism_figure(gaps(numbers.seen))]


def write_drawn(drawn: list[Figure], folder: Path) -> list[Path]:
    """Write NAME.svg of each figure, unless the file already shows the same data."""
    paths = [folder / f"{figure.name}.svg" for figure in drawn]
    for old in set(folder.glob("*.*")) - set(paths):
        old.unlink()
    for figure, path in zip(drawn, paths, strict=True):
        if not path.exists() or not path.read_text(encoding="utf-8").endswith(digest(figure)):
            _, png = write_figures([figure], folder)
            png.unlink()
            write_text(path, path.read_text(encoding="utf-8") + digest(figure))
    return paths


def digest(figure: Figure) -> str:
    text = json.dumps([figure.title, figure.spec], sort_keys=True)
    return f"\n<!-- data {hashlib.sha256(text.encode()).hexdigest()[:16]} -->\n"


def compute_figure(found: list[Trained]) -> Figure:
    """Draw accuracy over compute in epochs of SFT, for each student."""
    rows = [
        {
            "student": one.student,
            "kind": kind_of(one.method),
            "epochs": round(one.epochs, 2),
            "score": percent(score_of(one.scores)),
        }
        | dict(zip(("low", "high"), map(percent, interval_of(one.scores)), strict=True))
        for one in found
        if one.study in SHOWN and one.epochs is not None and (one.method != "base" or one.study == "core")
    ]
    axis = {"type": "quantitative", "scale": {"zero": False}}
    x = {"field": "epochs", **axis, "title": "epochs of SFT that cost as much"}
    y = {"field": "score", **axis, "title": "accuracy, percent"}
    kinds = ["SFT", "WMSS", REPAIRED, KINDS[REFERENCE], KINDS["sft_active"], OTHER]
    colours = ["@ink", "@orange", "@green", "@blue", "@purple", "@grey"]
    colour = {"field": "kind", "type": "nominal", "scale": {"domain": kinds, "range": colours}}
    layers = [
        {
            "transform": [{"filter": "datum.kind == 'SFT'"}],
            "mark": {"type": "line", "color": "@ink"},
            "encoding": {"x": x, "y": {**y, "aggregate": "mean"}},
        },
        {
            "mark": {"type": "rule", "opacity": 0.5},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
        },
        {"mark": {"type": "point", "filled": True, "size": 40}, "encoding": {"x": x, "y": y, "color": colour}},
    ]
    spec = {
        "data": {"values": rows},
        "transform": [{"filter": "datum.epochs > 0"}],
        "facet": {"field": "student", "type": "nominal", "title": None, "sort": [*STUDENTS]},
        "columns": 3,
        "spec": {"width": 200, "height": 240, "layer": layers},
        "resolve": {"scale": {"y": "independent"}},
    }
    return Figure("compute", "Accuracy against compute", spec)


def kind_of(method: str) -> str:
    return KINDS.get(method, REPAIRED if method.startswith(("wmss_annealed", "wmss_anchor")) else OTHER)


def percent(share: float) -> float:
    return round(100 * share, 2)


def mechanism_figure(found: dict[str, float]) -> Figure:
    """Draw how far the target's logit is above the mean of the others, for each model on held-out rows."""
    rows = [{"model": name, "gap": round(gap, 2)} for name, gap in found.items()]
    y = {"field": "model", "type": "nominal", "sort": [*found], "title": None, "axis": {"labelLimit": 300}}
    x = {"field": "gap", "type": "quantitative", "title": "target logit less the mean of the others, nats"}
    text = {
        "mark": {"type": "text", "align": "left", "dx": 4},
        "encoding": {"x": x, "y": y, "text": {"field": "gap", "format": ".1f"}},
    }
    bars = {"mark": {"type": "bar", "color": "@blue"}, "encoding": {"x": x, "y": y}}
    spec = {"data": {"values": rows}, "height": {"step": 24}, "layer": [bars, text]}
    return Figure("mechanism", "Gemma after joint training, 500 held-out rows", spec)
