"""Draw a sweep's summary: a curve, a heat map or dots by what was varied, and accuracy over training steps."""

from typing import Any

from weakdriven.report.figure import Figure
from weakdriven.report.format import colour, model_at, model_name, number, split_snapshot
from weakdriven.report.plots import Spec, category, layer, present, quantity
from weakdriven.report.results import Row

SERIES = ["blue", "pick", "brown", "ink", "olive"]
"""Colours of several series; a single series is WMSS and blue, as on all pages."""
PERCENT = "accuracy, percent"
LEGEND = {"symbolOpacity": 1, "symbolStrokeWidth": 0}
"""Legend of a figure with bands, which would otherwise inherit their opacity."""
BAND = "95% interval over seeds and items"


def figures_of(found: Row) -> list[Figure]:
    """Draw what a sweep has so far; nothing if no point has a result."""
    results = [row for row in found["summary"] if row["role"] == "result"]
    if not any("score" in row for row in results):
        return []
    axes = labels(found)
    numeric = [label for label in axes if all(number(place(found, row, label)) is not None for row in results)]
    if len(numeric) == 2 and len(axes) == 2:
        figures = [heat_map(found, results, *axes)]
    elif len(numeric) == 1:
        results.sort(key=lambda row: place(found, row, numeric[0]))
        figures = [curve(found, results, numeric[0]), by_benchmark(found, results, numeric[0])]
    else:
        figures = [dots(found, results), by_benchmark(found, results, None)]
    return present([*figures, over_steps(found)])


def labels(found: Row) -> list[str]:
    return [axis["label"] for axis in found["axes"]]


def place(found: Row, row: Row, label: str) -> Any:
    return found["points"][row["point"]]["values"][label]


def words(found: Row, row: Row, labels: list[str]) -> str:
    """Name a point in a legend by its values on these axes."""
    values = {label: place(found, row, label) for label in labels}
    return ", ".join(value if isinstance(value, str) else f"{label} {value}" for label, value in values.items())


def method_of(results: list[Row]) -> str:
    """Name the models that the points end with; if they are of different rounds, name the method."""
    names = list(dict.fromkeys(model_name(row["model"]) for row in results if row["model"]))
    return names[0] if len(names) == 1 else names[0].partition(",")[0]


def mark_of(row: Row) -> Row:
    """Return score and interval of a model in percent; None without a score."""
    low, high = row.get("interval", (None, None))
    return {"score": percent(row.get("score")), "low": percent(low), "high": percent(high)}


def percent(value: Any) -> float | None:
    return None if number(value) is None else round(100 * value, 4)


def seeds_words(found: Row) -> str:
    return f"{len(found['seeds'])} seed{'s' * (len(found['seeds']) != 1)}"


def seeds_of(row: Row, at: Row) -> list[Row]:
    each = zip(row["seeds"], row.get("by_seed", []), strict=True)
    return [{**at, "seed": seed, "score": percent(score)} for seed, score in each]


def curve(found: Row, results: list[Row], x: str) -> Figure:
    """Draw means and intervals over one numeric axis, single seeds as dots, and the SFT control as a dashed line."""
    others = [label for label in labels(found) if label != x]
    at = {
        row["point"]: {"x": place(found, row, x), "series": words(found, row, others) or method_of(results)}
        for row in results
    }
    lines = [{**at[row["point"]], **mark_of(row)} for row in results]
    seeds = [one for row in results for one in seeds_of(row, at[row["point"]])]
    controls = {row["point"]: row for row in found["summary"] if row["role"] == "control" and row["point"] in at}
    control = next(iter(controls.values()), None) if not others else None
    note = f"Line: mean over benchmarks and {seeds_words(found)}. Band: {BAND}. Dots: single seeds."
    if control:
        if control["shared"]:  # extends over points without a result
            controls = dict.fromkeys(at, control)
        held = {"series": control["name"], "control": True}
        lines += [{"x": at[point]["x"], **held, **mark_of(controls[point])} for point in at if point in controls]
        note += f" Dashed: {control['name']}{', the same at every point' * control['shared']}."
    start = next(axis["start"] for axis in found["axes"] if axis["label"] == x)
    m1 = next((row for row in found["summary"] if row["model"] == "sft" and "score" in row), None)
    if start is not None and m1:
        known = {one["series"]: bool(one.get("control")) for one in lines}
        lines[:0] = [{"x": start, "series": name, "control": dashed, **mark_of(m1)} for name, dashed in known.items()]
        note += f" At {start}: M1."
    tips = [{"field": "series", "title": "model"}, {"field": "x", "title": x}, {"field": "score", "title": PERCENT}]
    band = {"y": vertical("low"), "y2": {"field": "high"}}
    line = {"y": vertical("score"), "tooltip": [*tips, {"field": "low"}, {"field": "high"}]}
    own, held = {"transform": [{"filter": "!datum.control"}]}, {"transform": [{"filter": "datum.control"}]}
    seed = layer({"type": "point", "size": 22, "opacity": 0.7}, y=vertical("score"), tooltip=[*tips, {"field": "seed"}])
    encoding = {
        "x": {"field": "x", **x_of(x, [one["x"] for one in lines])},
        "color": colours([one["series"] for one in at.values()], [control] if control else [], legend=LEGEND),
    }
    layers = [
        layer({"type": "area", "opacity": 0.16, "invalid": "break-paths-filter-domains"}, **band),
        {**own, **layer({"type": "line", "point": {"size": 45}}, **line)},
        {**held, **layer({"type": "line", "strokeDash": [6, 4]}, **line)},
        {"data": {"values": seeds}, **seed},
        {**own, **layer({"type": "rule", "opacity": 0.4}, **band)},  # shows a point between two gaps, which has no band
    ]
    return Figure("sweep", f"Accuracy over {x}: {found['recipe']}", layered(280, lines, encoding, layers), note)


def dots(found: Row, results: list[Row]) -> Figure:
    """Draw means and intervals for each point of axes that are not numeric."""
    axes, own = labels(found), method_of(results)
    names = {row["point"]: words(found, row, axes) for row in results}
    rows = [{"point": names[row["point"]], "series": own, **mark_of(row)} for row in results]
    seeds = [one for row in results for one in seeds_of(row, {"point": names[row["point"]], "series": own})]
    controls = [row for row in found["summary"] if row["role"] == "control" and "score" in row]
    alone = controls[:1] if controls and controls[0]["shared"] else []  # the same at every point: drawn once
    rows += [
        {"point": row["name"] if alone else names[row["point"]], "series": row["name"], "control": True, **mark_of(row)}
        for row in alone or controls
    ]
    order = [*names.values(), *(row["name"] for row in alone)]
    note = f"Dot: mean over benchmarks and {seeds_words(found)}. Line: {BAND}. Ticks: single seeds."
    encoding: Spec = {
        "y": {"field": "point", "type": "nominal", "sort": order, "title": ", ".join(axes)},
        "color": colours([own], controls[:1]),
    }
    if controls and not alone:
        encoding["yOffset"] = {"field": "series", "sort": [own]}
        note += f" Below each: {controls[0]['name']}."
    x = quantity("score", PERCENT, scale={"zero": False})
    mark = {"type": "point", "filled": True, "size": 70, "opacity": 1}
    layers = [
        layer({"type": "rule", "strokeWidth": 2}, x=x | {"field": "low"}, x2={"field": "high"}),
        layer(mark, x=x, tooltip=fields("point", "series", "score", "low", "high")),
        {"data": {"values": seeds}, **layer({"type": "tick", "opacity": 0.6}, x=x)},
    ]
    spec = layered({"step": 34, "for": "position"}, rows, encoding, layers)
    return Figure("sweep", f"Accuracy by {', '.join(axes)}: {found['recipe']}", spec, note)


def heat_map(found: Row, results: list[Row], x: str, y: str) -> Figure:
    """Draw the mean for each pair of values of two numeric axes; a point without a result is an empty cell."""
    cells = [
        {"x": place(found, row, x), "y": place(found, row, y), **mark_of(row), "seeds": len(row["seeds"])}
        for row in results
    ]
    for cell in cells:
        cell["label"] = "–" if cell["score"] is None else f"{cell['score']:.1f}"
    # one colour with varying opacity, because no Vega scale can mix the page's CSS variables
    shade = quantity("score", None, scale={"range": [0.05, 0.6], "zero": False}, legend=None)
    tips = fields("x", "y", "score", "low", "high", "seeds")
    rect = layer({"type": "rect", "color": "@blue"}, opacity=shade, tooltip=tips)
    encoding = {
        "x": {"field": "x", "type": "ordinal", "title": x, "axis": {"labelAngle": 0}},
        "y": {"field": "y", "type": "ordinal", "title": y, "sort": "descending"},
    }
    scored = {"transform": [{"filter": "datum.score != null"}], **rect}
    layers = [scored, layer({"type": "text", "color": "@ink"}, text={"field": "label"})]
    note = f"Mean accuracy in percent over benchmarks and {seeds_words(found)}; –: no result."
    spec = layered({"step": 34}, cells, encoding, layers)
    return Figure("sweep", f"Accuracy over {x} and {y}: {found['recipe']}", spec, note)


def by_benchmark(found: Row, results: list[Row], x: str | None) -> Figure | None:
    """Draw each benchmark separately; None for one benchmark, or if another axis needs the colours."""
    names = list(dict.fromkeys(name for row in results for name in row.get("benchmarks", {})))
    axes = labels(found)
    if len(names) < 2 or (x and len(axes) > 1):
        return None
    points: Row = {row["point"]: place(found, row, x) if x else words(found, row, axes) for row in results}
    values = [
        {"at": points[row["point"]], "benchmark": name, "score": percent(of_each.get(name, {}).get("accuracy"))}
        for row in results
        for of_each in [row.get("benchmarks", {})]
        for name in names
    ]
    encoding: Spec = {
        "color": {"field": "benchmark", "type": "nominal", "title": None, "sort": names},
        "tooltip": fields("at", "benchmark", "score"),
    }
    if x:
        view = {"height": 280, "mark": {"type": "line", "point": True}}
        encoding |= {"x": {"field": "at", **x_of(x, [*points.values()])}, "y": vertical("score")}
    else:
        view = {"height": {"step": 28}, "mark": {"type": "point", "filled": True, "size": 60}}
        y = {"field": "at", "type": "nominal", "sort": [*points.values()], "title": ", ".join(axes)}
        encoding |= {"x": vertical("score"), "y": y}
    spec = {"data": {"values": values}, **view, "encoding": encoding}
    return Figure("sweep-benchmarks", f"Accuracy on each benchmark: {found['recipe']}", spec, "Means over seeds.")


def over_steps(found: Row) -> Figure | None:
    """Draw accuracy over the steps of the last phase if snapshots were saved and evaluated."""
    summary, axes = found["summary"], labels(found)
    if not any(row["role"] == "snapshot" and "score" in row for row in summary):
        return None
    own, held, controls = dict[str, list[Row]](), dict[str, list[Row]](), dict[str, str]()
    for row in summary:
        here = {one["model"]: one for one in summary if one["point"] == row["point"] and one["model"]}
        at = words(found, row, axes)
        if row["role"] == "result" and row["model"]:
            own[at] = trajectory(row, here)
        elif row["role"] == "control":
            name = row["name"] if row["shared"] else f"{row['name']}, {at}"
            held.setdefault(name, trajectory(row, here))
            controls[name] = row["model"]
    rows = [{"series": name, "control": False, **one} for name, points in own.items() for one in points]
    rows += [{"series": name, "control": True, **one} for name, points in held.items() for one in points]
    dash = {"condition": {"test": "datum.control", "value": [6, 4]}, "value": [1, 0]}
    tips = fields("series", "steps", "score", "low", "high")
    x = quantity("steps", "optimizer steps of its last training")
    layers = [
        layer({"type": "area", "opacity": 0.12}, y=vertical("low"), y2={"field": "high"}),
        layer({"type": "line", "point": True}, y=vertical("score"), strokeDash=dash, tooltip=tips),
    ]
    spec = layered(
        280,
        rows,
        {"x": x, "color": colours([*own], [{"name": name, "model": controls[name]} for name in held], legend=LEGEND)},
        layers,
    )
    note = f"Means over benchmarks and {seeds_words(found)}. Band: {BAND}. At 0: the model that training starts "
    note += f"from.{' Dashed: SFT.' if held else ''}"
    return Figure("sweep-steps", f"Accuracy over the steps: {found['recipe']}", spec, note)


def trajectory(row: Row, here: dict[str, Row]) -> list[Row]:
    family = str(row["model"])
    round_number = int(family.removeprefix("round-")) if family.startswith("round-") else 1
    start = here.get("base" if family == "baseline-sft" else model_at(round_number), {})
    saved = [one for name, one in here.items() if split_snapshot(name)[0] == family and "steps" in one]
    points = [{"steps": 0, **mark_of(start)}] * ("score" in start)
    return points + sorted(({"steps": one["steps"], **mark_of(one)} for one in saved), key=lambda one: one["steps"])


def vertical(field: str) -> Row:
    return quantity(field, PERCENT, scale={"zero": False})


def x_of(title: str, values: list[float]) -> Row:
    """Describe an axis with a tick at each value, logarithmic if the values span more than a factor of 20."""
    wide = min(values) > 0 and max(values) > 20 * min(values)
    ticks = {"values": sorted(set(values)), "format": "~g", "labelOverlap": True, "grid": False}
    scale = {"type": "log"} if wide else {"zero": False, "nice": False, "padding": 12}
    return {"type": "quantitative", "title": title, "axis": ticks, "scale": scale}


def layered(height: Any, rows: list[Row], encoding: Spec, layers: list[Spec]) -> Spec:
    return {"height": height, "data": {"values": rows}, "encoding": encoding, "layer": layers}


def fields(*names: str) -> list[Row]:
    return [{"field": name} for name in names]


def colours(own: list[str], controls: list[Row], **more: Any) -> Row:
    names = {name: SERIES[place % len(SERIES)] for place, name in enumerate(dict.fromkeys(own))}
    names |= {row["name"]: colour(row["model"]) for row in controls if row["name"] not in names}
    return category("series", names, title=None, **more)
