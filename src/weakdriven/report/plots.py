"""Shapes that the figures of all pages share: curves, intervals, bars, points. Plain values in, `Figure`s out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weakdriven.report.figure import Figure
from weakdriven.report.format import number

Spec = dict[str, Any]
CURVE_POINTS = 400
"""Most points of one curve: more than these cannot be told apart at the width of a page."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart: x and y of each point; a y of None is a gap."""

    name: str
    colour: str
    points: Sequence[tuple[float, float | None]]
    dashed: bool = False


def line_figure(
    name: str, title: str, curves: Sequence[Curve], *, x: str, y: str, caption: str = "", log_x: bool = False
) -> Figure | None:
    """Curves over a number; a long one is drawn as the mean of each stretch, within the range that it covers there."""
    shown = [curve for curve in curves if any(value is not None for _, value in curve.points)]
    if not shown:
        return None
    rows, notes = [], [caption] if caption else []
    stretches = {curve.name: math.ceil(len(curve.points) / CURVE_POINTS) for curve in shown}
    for curve in shown:
        for piece, point in thinned(curve.points, stretches[curve.name]):
            rows.append({"name": curve.name, "piece": f"{curve.name} {piece}", **point})
    if gaps := sum(value is None for curve in shown for _, value in curve.points):
        notes.append(f"Logged values that are not numbers: {gaps:,}, shown as gaps.")
    if long := {name: each for name, each in stretches.items() if each > 1}:
        told = ", ".join(f"{each} logged values ({name})" for name, each in long.items())
        notes.append(f"A point is the mean of {told}; the shade behind it spans their smallest and their largest.")
    names, colours = [curve.name for curve in shown], [f"@{curve.colour}" for curve in shown]
    dashes = [[5, 4] if curve.dashed else [1, 0] for curve in shown]
    scale: Spec = {"zero": False, "nice": False, "padding": 4}
    shared = {
        "x": {"field": "x", "type": "quantitative", "title": x, "scale": scale | ({"type": "log"} if log_x else {})},
        "color": {
            "field": "name",
            "type": "nominal",
            "scale": {"domain": names, "range": colours},
            "legend": {"symbolType": "stroke", "symbolStrokeWidth": 2.5},
        },
        "detail": {"field": "piece"},
    }
    height = {"field": "y", "type": "quantitative", "title": y, "scale": {"zero": False}}
    dash = {"field": "name", "type": "nominal", "scale": {"domain": names, "range": dashes}}
    told = [{"field": "name", "title": "curve"}, number_tip("x", x), number_tip("y", y)]
    layers: list[Spec] = [{"mark": {"type": "line"}, "encoding": {**shared, "y": height, "strokeDash": dash}}]
    if long:
        band = {"y": height | {"field": "low"}, "y2": {"field": "high"}}
        told += [number_tip("low", "smallest"), number_tip("high", "largest")]
        layers.insert(0, {"mark": {"type": "area", "opacity": 0.18}, "encoding": {**shared, **band}})
    lone = {"type": "point", "filled": True, "size": 18 if len(rows) <= 60 else 6}
    hover = {"tooltip": told, "opacity": {"value": 1 if len(rows) <= 60 else 0}}
    layers.append({"mark": lone, "encoding": {**shared, "y": height, **hover}})
    spec: Spec = {"height": 220, "data": {"values": rows}, "layer": layers}
    return Figure(name, title, spec, " ".join(notes))


def thinned(points: Sequence[tuple[float, float | None]], stretch: int) -> list[tuple[int, Spec]]:
    """Points by unbroken piece, each the mean of `stretch` of them; a gap ends a piece and is never averaged away.

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
    """A dot with its interval for each row: label, colour, value, low, high and what a reader is told of it."""
    shown = [dict(row) for row in rows if number(row["value"]) is not None]
    if not shown:
        return None
    labels = {"field": "label", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 170}}
    tips = [{"field": "label", "title": "model"}, {"field": "told", "title": x}]
    colours = [f"@{row['colour']}" for row in shown]
    colour = {
        "field": "label",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": [row["label"] for row in shown], "range": colours},
    }
    place = {"type": "quantitative", "title": x, "scale": {"zero": False, "padding": 8}}
    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "strokeWidth": 2.5, "strokeCap": "round"},
            "encoding": {"x": {"field": "low", **place}, "x2": {"field": "high"}, "y": labels, "color": colour},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {"x": {"field": "value", **place}, "y": labels, "color": colour, "tooltip": tips},
        },
    ]
    if rule is not None:
        layers.insert(0, {"mark": {"type": "rule", "strokeDash": [4, 4]}, "encoding": {"x": {"datum": rule}}})
    values = [{key: row[key] for key in ("label", "value", "low", "high", "told")} for row in shown]
    return Figure(name, title, {"height": 28 * len(shown), "data": {"values": values}, "layer": layers}, caption)


def bar_figure(
    name: str,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    x: str,
    colours: Mapping[str, str],
    caption: str = "",
) -> Figure | None:
    """Bars, in groups if there are several: group, name, value; `colours` gives names their colours and their order."""
    shown = [dict(row) for row in rows if number(row["value"]) is not None]
    if not shown:
        return None
    names = [known for known in colours if any(row["name"] == known for row in shown)]
    groups = list(dict.fromkeys(row["group"] for row in shown))
    grouped = len(groups) > 1
    colour = {
        "field": "name",
        "type": "nominal",
        "scale": {"domain": names, "range": [f"@{colours[known]}" for known in names]},
        "legend": {} if grouped else None,
    }
    order = {"sort": groups if grouped else names, "axis": {"labelLimit": 190}}
    encoding: Spec = {
        "y": {"field": "group" if grouped else "name", "type": "nominal", "title": None} | order,
        "x": {"field": "value", "type": "quantitative", "title": x, "axis": {"tickCount": 3}},
        "color": colour,
        "tooltip": [{"field": "name", "title": "of"}, {"field": "group", "title": "what"}, number_tip("value", x)],
    }
    if grouped:
        encoding["yOffset"] = {"field": "name", "sort": names}
    height = 24 * len(groups) * len(names) if grouped else 24 * len(names)
    return Figure(
        name, title, {"height": height, "data": {"values": shown}, "mark": "bar", "encoding": encoding}, caption
    )


def number_tip(field: str, title: str) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "format": ".4~g"}
