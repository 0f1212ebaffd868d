"""A sweep's summary -> figures: a curve, a heat map or dots by what was varied; and accuracy over the steps."""

from typing import Any

from weakdriven.report.figure import Figure
from weakdriven.report.format import model_name, number
from weakdriven.report.sweep.table import Row, snapshot

SERIES = ["@blue", "@green", "@purple", "@grey", "@ink"]
CONTROL = "@orange"
PERCENT = "accuracy, per cent"
LEGEND = {"symbolOpacity": 1, "symbolStrokeWidth": 0}
"""Of a figure with bands, whose own opacity would leave the legend pale."""
BAND = "95% bootstrap interval over seeds and problems"


def figures_of(found: Row) -> list[Figure]:
    """What can be drawn of a sweep so far; nothing where no point has a result."""
    results = [row for row in found["summary"] if row["role"] == "result"]
    if not any("score" in row for row in results):
        return []
    axes = [axis["label"] for axis in found["axes"]]
    numeric = [label for label in axes if all(is_number(place(found, row, label)) for row in results)]
    if len(numeric) == 2 and len(axes) == 2:
        figures = [heat_map(found, results, *axes)]
    elif len(numeric) == 1:
        figures = [curve(found, results, numeric[0]), by_benchmark(found, results, numeric[0])]
    else:
        figures = [dots(found, results), by_benchmark(found, results, None)]
    return [figure for figure in [*figures, over_steps(found)] if figure]


def is_number(value: Any) -> bool:
    return number(value) is not None


def place(found: Row, row: Row, label: str) -> Any:
    return found["points"][row["point"]]["values"][label]


def words(found: Row, row: Row, labels: list[str]) -> str:
    """A point in a legend: its places on these axes."""
    values = {label: place(found, row, label) for label in labels}
    return ", ".join(str(value) if isinstance(value, str) else f"{label} {value}" for label, value in values.items())


def method_of(results: list[Row]) -> str:
    """Name of the models that points end with; of several rounds that of the method."""
    names = list(dict.fromkeys(model_name(row["model"]) for row in results if row["model"]))
    return names[0] if len(names) == 1 else names[0].partition(",")[0] if names else "result"


def mark_of(row: Row) -> Row:
    """What is drawn of a model, in percent; what has no score is a gap."""
    low, high = row.get("interval", (None, None))
    return {name: percent(value) for name, value in {"score": row.get("score"), "low": low, "high": high}.items()}


def percent(value: Any) -> float | None:
    return None if number(value) is None else round(100 * value, 4)


def curve(found: Row, results: list[Row], x: str) -> Figure:
    """Mean with its interval over one numeric axis, single seeds as dots, the SFT control dashed."""
    others = [axis["label"] for axis in found["axes"] if axis["label"] != x]
    own = {row["point"]: words(found, row, others) or method_of(results) for row in results}
    lines = [
        {"x": place(found, row, x), "series": own[row["point"]], **mark_of(row)} for row in ordered(found, results, x)
    ]
    seeds = [
        {"x": place(found, row, x), "series": own[row["point"]], "seed": seed, "score": percent(score)}
        for row in results
        for seed, score in zip(row["seeds"], row.get("by_seed", []), strict=True)
    ]
    controls = {row["point"]: row for row in found["summary"] if row["role"] == "control"}
    known_at = {row["point"]: controls[row["point"]] for row in results if row["point"] in controls}
    held = list(known_at.values())
    if held and held[0]["shared"]:  # also where a point has no result yet
        known_at = {row["point"]: held[0] for row in results}
    if held and not others:
        lines += [
            {"x": place(found, row, x), "series": held[0]["name"], "control": True, **mark_of(known_at[row["point"]])}
            for row in ordered(found, results, x)
            if row["point"] in known_at
        ]
    start = next((axis["start"] for axis in found["axes"] if axis["label"] == x), None)
    m1 = next((row for row in found["summary"] if row["model"] == "sft" and "score" in row), None)
    if start is not None and m1:
        known = {one["series"]: bool(one.get("control")) for one in lines}
        lines[:0] = [{"x": start, "series": name, "control": is_held, **mark_of(m1)} for name, is_held in known.items()]
    scale = scale_of(list(dict.fromkeys(own.values())), [row["name"] for row in held][:1] if not others else [])
    told = f"Line: mean over benchmarks and {len(found['seeds'])} seeds. Band: {BAND}. Dots: single seeds."
    told += (
        f" Dashed: {held[0]['name']}{', the same at every point' * held[0]['shared']}." if held and not others else ""
    )
    told += f" At {start}: M1." if start is not None and m1 else ""
    horizontal = {"field": "x", **x_of(x, [one["x"] for one in lines])}
    colour = {"field": "series", "type": "nominal", "scale": scale, "title": None, "legend": LEGEND}
    spec = {
        "height": 280,
        "data": {"values": lines},
        "encoding": {"x": horizontal, "color": colour},
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.16, "invalid": "break-paths-filter-domains"},
                "encoding": {"y": vertical("low"), "y2": {"field": "high"}},
            },
            {
                "transform": [{"filter": "!datum.control"}],
                "mark": {"type": "line", "point": {"size": 45}},
                "encoding": {"y": vertical("score"), "tooltip": tooltip(x)},
            },
            {
                "transform": [{"filter": "datum.control"}],
                "mark": {"type": "line", "strokeDash": [6, 4]},
                "encoding": {"y": vertical("score"), "tooltip": tooltip(x)},
            },
            {
                "data": {"values": seeds},
                "mark": {"type": "point", "size": 22, "opacity": 0.7},
                "encoding": {"y": vertical("score"), "tooltip": [*tooltip(x)[:3], {"field": "seed"}]},
            },
            {
                "transform": [{"filter": "!datum.control"}],
                "mark": {"type": "rule", "opacity": 0.4},  # a point between two gaps has no band
                "encoding": {"y": vertical("low"), "y2": {"field": "high"}},
            },
        ],
    }
    return Figure("sweep", f"Accuracy over {x}: {found['recipe']}", spec, told)


def dots(found: Row, results: list[Row]) -> Figure:
    """Mean with its interval for each point, where what is varied has no order."""
    axes = [axis["label"] for axis in found["axes"]]
    own = method_of(results)
    names = {row["point"]: words(found, row, axes) for row in results}
    rows = [{"point": names[row["point"]], "series": own, **mark_of(row)} for row in results]
    seeds = [
        {"point": names[row["point"]], "series": own, "seed": seed, "score": percent(score)}
        for row in results
        for seed, score in zip(row["seeds"], row.get("by_seed", []), strict=True)
    ]
    held = [row for row in found["summary"] if row["role"] == "control" and "score" in row]
    alone = held[:1] if held and held[0]["shared"] else []  # the same at every point: one line of its own
    rows += [
        {"point": row["name"] if alone else names[row["point"]], "series": row["name"], "control": True, **mark_of(row)}
        for row in alone or held
    ]
    order = [*names.values(), *(row["name"] for row in alone)]
    x = {"type": "quantitative", "title": PERCENT, "scale": {"zero": False}}
    told = f"Dot: mean over benchmarks and {len(found['seeds'])} seeds. Line: {BAND}. Ticks: single seeds."
    told += f" Below each: {held[0]['name']}." if held and not alone else ""
    spec = {
        "height": {"step": 34, "for": "position"},
        "data": {"values": rows},
        "encoding": {
            "y": {"field": "point", "type": "nominal", "sort": order, "title": ", ".join(axes)},
            **({"yOffset": {"field": "series", "sort": [own]}} if held and not alone else {}),
            "color": {
                "field": "series",
                "type": "nominal",
                "title": None,
                "scale": scale_of([own], [row["name"] for row in held][:1]),
            },
        },
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {
                    "x": {"field": "score", **x},
                    "tooltip": [{"field": name} for name in ("point", "series", "score", "low", "high")],
                },
            },
            {
                "data": {"values": seeds},
                "mark": {"type": "tick", "opacity": 0.6},
                "encoding": {"x": {"field": "score", **x}},
            },
        ],
    }
    return Figure("sweep", f"Accuracy by {', '.join(axes)}: {found['recipe']}", spec, told)


def heat_map(found: Row, results: list[Row], x: str, y: str) -> Figure:
    """Mean for each pair of two numeric axes; a point without a result is an empty cell."""
    cells = [
        {"x": place(found, row, x), "y": place(found, row, y), **mark_of(row), "seeds": len(row["seeds"])}
        for row in results
    ]
    for cell in cells:
        cell["label"] = "–" if cell["score"] is None else f"{cell['score']:.1f}"
    spec = {
        "height": {"step": 34},
        "data": {"values": cells},
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "title": x, "axis": {"labelAngle": 0}},
            "y": {"field": "y", "type": "ordinal", "title": y, "sort": "descending"},
        },
        "layer": [
            {
                "transform": [{"filter": "datum.score != null"}],
                "mark": {"type": "rect", "color": "@blue"},
                "encoding": {
                    # shades of one colour by opacity, because a page's colours are variables that no scale can mix
                    "opacity": {
                        "field": "score",
                        "type": "quantitative",
                        "scale": {"range": [0.05, 0.6], "zero": False},
                        "legend": None,
                    },
                    "tooltip": [{"field": name} for name in ("x", "y", "score", "low", "high", "seeds")],
                },
            },
            {"mark": {"type": "text", "color": "@ink"}, "encoding": {"text": {"field": "label"}}},
        ],
    }
    told = f"Mean accuracy in per cent over benchmarks and {len(found['seeds'])} seeds; – has no result."
    return Figure("sweep", f"Accuracy over {x} and {y}: {found['recipe']}", spec, told)


def by_benchmark(found: Row, results: list[Row], x: str | None) -> Figure | None:
    """Each benchmark on its own; None for one benchmark, or where another axis takes the colours."""
    names = list(dict.fromkeys(name for row in results for name in row.get("benchmarks", {})))
    axes = [axis["label"] for axis in found["axes"]]
    if len(names) < 2 or (x and len(axes) > 1):
        return None
    values = [
        {
            "at": place(found, row, x) if x else words(found, row, axes),
            "benchmark": name,
            "score": percent(row.get("benchmarks", {}).get(name, {}).get("accuracy")),
        }
        for row in (ordered(found, results, x) if x else results)
        for name in names
    ]
    colour = {"field": "benchmark", "type": "nominal", "title": None, "sort": names}
    hover = [{"field": name} for name in ("at", "benchmark", "score")]
    if x:
        horizontal = {"field": "at", **x_of(x, [one["at"] for one in values])}
        spec: Row = {"height": 280, "mark": {"type": "line", "point": True}}
        spec["encoding"] = {"x": horizontal, "y": vertical("score"), "color": colour, "tooltip": hover}
    else:
        points = list(dict.fromkeys(one["at"] for one in values))
        spec = {"height": {"step": 28}, "mark": {"type": "point", "filled": True, "size": 60}}
        spec["encoding"] = {
            "x": {**vertical("score"), "title": PERCENT},
            "y": {"field": "at", "type": "nominal", "sort": points, "title": ", ".join(axes)},
            "color": colour,
            "tooltip": hover,
        }
    title = f"Accuracy on each benchmark: {found['recipe']}"
    return Figure("sweep-benchmarks", title, {"data": {"values": values}, **spec}, "Means over seeds.")


def over_steps(found: Row) -> Figure | None:
    """Accuracy against the steps of the last phase, where models were kept and evaluated on the way."""
    summary = found["summary"]
    if not any(row["role"] == "snapshot" and "score" in row for row in summary):
        return None
    axes, drawn, rows = [axis["label"] for axis in found["axes"]], set[str](), list[Row]()
    held: list[str] = []
    for point in found["points"]:
        here = {row["model"]: row for row in summary if row["point"] == point and row["model"]}
        for row in [row for row in here.values() if row["role"] in ("result", "control")]:
            name = words(found, row, axes) if row["role"] == "result" else row["name"]
            if row["role"] == "control":
                name = name if row["shared"] else f"{name}, {words(found, row, axes)}"
                held.append(name)
            if name not in drawn:
                drawn.add(name)
                rows += [{"series": name, "control": row["role"] == "control", **one} for one in trajectory(row, here)]
    held = list(dict.fromkeys(held))
    own = [name for name in dict.fromkeys(row["series"] for row in rows) if name not in held]
    hover = [{"field": name} for name in ("series", "steps", "score", "low", "high")]
    dash = {"condition": {"test": "datum.control", "value": [6, 4]}, "value": [1, 0]}
    spec = {
        "height": 280,
        "data": {"values": rows},
        "encoding": {
            "x": {"field": "steps", "type": "quantitative", "title": "optimizer steps of its last training"},
            "color": {
                "field": "series",
                "type": "nominal",
                "title": None,
                "scale": scale_of(own, held),
                "legend": LEGEND,
            },
        },
        "layer": [
            {"mark": {"type": "area", "opacity": 0.12}, "encoding": {"y": vertical("low"), "y2": {"field": "high"}}},
            {
                "mark": {"type": "line", "point": True},
                "encoding": {"y": vertical("score"), "strokeDash": dash, "tooltip": hover},
            },
        ],
    }
    told = f"Means over benchmarks and {len(found['seeds'])} seeds. Band: {BAND}. At 0: what training starts from."
    told += " Dashed: SFT." if held else ""
    return Figure("sweep-steps", f"Accuracy over the steps: {found['recipe']}", spec, told)


def trajectory(row: Row, here: dict[str, Row]) -> list[Row]:
    """Where a training started, its snapshots and its end, by steps."""
    family = str(row["model"])
    turn = int(family.removeprefix("round-")) if family.startswith("round-") else 1
    start = (
        here.get("sft" if turn == 1 else f"round-{turn - 1}", {}) if family != "baseline-sft" else here.get("base", {})
    )
    kept = [one for name, one in here.items() if snapshot(name)[0] == family and "steps" in one]
    points = [{"steps": 0, **mark_of(start)}] * ("score" in start)
    return points + sorted(({"steps": one["steps"], **mark_of(one)} for one in kept), key=lambda one: one["steps"])


def ordered(found: Row, rows: list[Row], x: str) -> list[Row]:
    return sorted(rows, key=lambda row: place(found, row, x))


def vertical(field: str) -> Row:
    return {"field": field, "type": "quantitative", "title": PERCENT, "scale": {"zero": False}}


def x_of(title: str, values: list[float]) -> Row:
    """An axis with a tick at each value, logarithmic where they span more than a factor of 20."""
    wide = min(values) > 0 and max(values) > 20 * min(values)
    ticks = {"values": sorted(set(values)), "format": "~g", "labelOverlap": True, "grid": False}
    scale = {"type": "log"} if wide else {"zero": False, "nice": False, "padding": 12}
    return {"type": "quantitative", "title": title, "axis": ticks, "scale": scale}


def scale_of(own: list[str], control: list[str]) -> Row:
    colours = [SERIES[place % len(SERIES)] for place in range(len(own))]
    names = list(dict.fromkeys([*own, *control]))
    return {"domain": names, "range": [*colours, *[CONTROL] * (len(names) - len(own))]}


def tooltip(x: str) -> list[Row]:
    return [
        {"field": "series", "title": "model"},
        {"field": "x", "title": x},
        {"field": "score", "title": PERCENT},
        {"field": "low"},
        {"field": "high"},
    ]
