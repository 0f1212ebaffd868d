"""Kinds of figures shared by all pages: curves, intervals, bars. Plain values in, `Figure`s out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weakdriven.report.figure import Figure
from weakdriven.report.format import number

Spec = dict[str, Any]
CURVE_POINTS = 400
"""Maximum of points per curve; a page is too narrow to show more."""


def present(figures: Iterable[Figure | None]) -> list[Figure]:
    return [figure for figure in figures if figure is not None]


def layer(mark: Any, **encoding: Any) -> Spec:
    return {"mark": mark, "encoding": encoding}


def quantity(field: str, title: str | None, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, **more}


def category(field: str, colours: Mapping[str, str], **more: Any) -> Spec:
    scale = {"domain": [*colours], "range": [f"@{colour}" for colour in colours.values()]}
    return {"field": field, "type": "nominal", "scale": scale, **more}


def number_tip(field: str, title: str) -> Spec:
    return quantity(field, title, format=".4~g")


@dataclass(frozen=True)
class Curve:
    """One line of a chart: x and y of each point; y is None for a gap."""

    name: str
    colour: str
    points: Sequence[tuple[float, float | None]]
    dashed: bool = False


def line_figure(
    name: str, title: str, curves: Sequence[Curve], *, x: str, y: str, caption: str = "", log: str = ""
) -> Figure | None:
    """Draw curves over integers; a long curve shows the mean of every few points, and their range as a band.

    Args:
        log: Axes ("x", "y") to make logarithmic if the values allow it.
    """
    shown = [curve for curve in curves if any(value is not None for _, value in curve.points)]
    if not shown:
        return None
    stretches = {curve.name: math.ceil(len(curve.points) / CURVE_POINTS) for curve in shown}
    rows = [
        {"name": curve.name, "piece": f"{curve.name} {piece}", **point}
        for curve in shown
        for piece, point in thinned(curve.points, stretches[curve.name])
    ]
    notes = [caption] if caption else []
    if gaps := sum(value is None for curve in shown for _, value in curve.points):
        notes.append(f"{gaps:,} logged values are not numbers and shown as gaps.")
    if long := {name: each for name, each in stretches.items() if each > 1}:
        parts = ", ".join(f"{each} logged values ({name})" for name, each in long.items())
        notes.append(f"Each point is the mean of {parts}; the band shows their minimum and maximum.")
    colours = {curve.name: curve.colour for curve in shown}
    scale = {"zero": False, "nice": False, "padding": 4}
    shared = {
        "x": quantity("x", x, scale=scale, axis={"tickMinStep": 1}),
        "color": category("name", colours, legend={"symbolType": "stroke", "symbolStrokeWidth": 2.5}),
        "detail": {"field": "piece"},
    }
    height = quantity("y", y, scale={"zero": False})
    for axis, known, least in ((shared["x"], "x", "x"), (height, "y", "low")):
        if known in log and min(row[least] for row in rows) > 0:
            ends = min(row[least] for row in rows), max(row["high" if known == "y" else "x"] for row in rows)
            axis |= {"scale": {"nice": False, "padding": 4, "type": "log"}, "axis": {"format": "~g"} | log_ticks(*ends)}
    dashes = {"domain": [*colours], "range": [[5, 4] if curve.dashed else [1, 0] for curve in shown]}
    dash = {"field": "name", "type": "nominal", "scale": dashes}
    tips = [{"field": "name", "title": "curve"}, number_tip("x", x), number_tip("y", y)]
    layers = [layer({"type": "line"}, **shared, y=height, strokeDash=dash)]
    if long:
        tips += [number_tip("low", "minimum"), number_tip("high", "maximum")]
        band = layer({"type": "area", "opacity": 0.18}, **shared, y=height | {"field": "low"}, y2={"field": "high"})
        layers.insert(0, band)
    few = len(rows) <= 60
    dot = {"type": "point", "filled": True, "size": 18 if few else 6}
    layers.append(layer(dot, **shared, y=height, tooltip=tips, opacity={"value": 1 if few else 0}))
    return Figure(name, title, {"height": 220, "data": {"values": rows}, "layer": layers}, " ".join(notes))


def log_ticks(low: float, high: float) -> Spec:
    """Choose axis ticks: 1, 2 and 5 times powers of ten, or only powers over three decades; empty leaves it to Vega.

    >>> log_ticks(0.15, 2.5), log_ticks(0.0004, 20), log_ticks(0.21, 0.29)
    ({'values': [0.2, 0.5, 1.0, 2.0]}, {'values': [0.001, 0.01, 0.1, 1.0, 10.0]}, {})
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
    shown = [tick for tick in ticks if low <= tick <= high]
    return {"values": shown} if len(shown) > 1 else {}


def thinned(points: Sequence[tuple[float, float | None]], stretch: int) -> list[tuple[int, Spec]]:
    """Average every `stretch` points, grouped into pieces between gaps; no mean includes a gap.

    >>> thinned([(1, 2.0), (2, 4.0), (3, None), (4, 1.0)], 2)
    [(0, {'x': 1.5, 'y': 3.0, 'low': 2.0, 'high': 4.0}), (1, {'x': 4.0, 'y': 1.0, 'low': 1.0, 'high': 1.0})]
    """
    found, piece = [], 0
    for begin in range(0, len(points), stretch):
        group = points[begin : begin + stretch]
        values = [(x, y) for x, y in group if y is not None]
        broken = len(values) < len(group)
        piece += broken
        if values:
            xs, ys = zip(*values, strict=True)
            mean = {"x": sum(xs) / len(xs), "y": sum(ys) / len(ys)}
            found.append((piece, mean | {"low": min(ys), "high": max(ys)}))
        piece += broken
    return found


def interval_figure(
    name: str, title: str, rows: Sequence[Mapping[str, Any]], *, x: str, caption: str = "", rule: float | None = None
) -> Figure | None:
    """Draw a dot with its interval for each row (label, colour, value, low, high, tooltip text)."""
    shown = [row for row in rows if number(row["value"]) is not None]
    if not shown:
        return None
    labels = {"field": "label", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 230}}
    tips = [{"field": "label", "title": "model"}, {"field": "text", "title": x}]
    shared = {"y": labels, "color": category("label", {row["label"]: row["colour"] for row in shown}, legend=None)}
    axis = quantity("value", x, scale={"zero": False, "padding": 8})
    line = {"type": "rule", "strokeWidth": 2.5, "strokeCap": "round"}
    layers = [
        layer(line, x=axis | {"field": "low"}, x2={"field": "high"}, **shared),
        layer({"type": "point", "filled": True, "size": 90, "opacity": 1}, x=axis, **shared, tooltip=tips),
    ]
    if rule is not None:
        layers.insert(0, layer({"type": "rule", "strokeDash": [4, 4]}, x={"datum": rule}))
    values = [{key: row[key] for key in ("label", "value", "low", "high", "text")} for row in shown]
    return Figure(name, title, {"height": 28 * len(shown), "data": {"values": values}, "layer": layers}, caption)


def bar_figure(
    name: str, title: str, rows: Sequence[Mapping[str, Any]], *, x: str, colours: Mapping[str, str], caption: str = ""
) -> Figure | None:
    """Draw bars from rows of group, name and value; `colours` sets the colours and the order of names."""
    shown = [dict(row) for row in rows if number(row["value"]) is not None]
    if not shown:
        return None
    used = {known: colour for known, colour in colours.items() if any(row["name"] == known for row in shown)}
    groups = list(dict.fromkeys(row["group"] for row in shown))
    grouped = len(groups) > 1
    labels = {"field": "group" if grouped else "name", "sort": groups if grouped else [*used]}
    encoding = {
        "y": {**labels, "type": "nominal", "title": None, "axis": {"labelLimit": 190}},
        "x": quantity("value", x, axis={"tickCount": 3}),
        "color": category("name", used, legend={} if grouped else None),
        "tooltip": [{"field": "name", "title": "of"}, {"field": "group", "title": "what"}, number_tip("value", x)],
    }
    if grouped:
        encoding["yOffset"] = {"field": "name", "sort": [*used]}
    spec = {"height": 24 * len(groups) * len(used), "data": {"values": shown}, **layer("bar", **encoding)}
    return Figure(name, title, spec, caption)
