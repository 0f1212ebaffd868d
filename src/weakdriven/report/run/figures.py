"""The figures of one run, by section of its page: losses, selection, accuracy, stages. Values in, `Figure`s out."""

from typing import Any

import numpy as np

from weakdriven.report.figure import Figure
from weakdriven.report.format import colour, duration, gibibytes, model_name, number, score
from weakdriven.report.plots import Curve, category, interval_figure, layer, line_figure, number_tip, present, quantity
from weakdriven.report.read import SCATTER_POINTS
from weakdriven.runs.directory import VALIDATION_LOSS

Rows = list[dict[str, Any]]
STEP = "optimizer step"
LOSS = "loss per token, nats"


def logged(rows: Rows, key: str, name: str, colour: str, *, dashed: bool = False, complement: bool = False) -> Curve:
    """Make a curve of a logged number, or of 1 minus it; a step logged twice by a resumed run keeps its later value."""
    found = {step: number(row[key]) for row in rows if key in row and (step := number(row.get("step"))) is not None}
    points = [(step, 1 - y if complement and y is not None else y) for step, y in sorted(found.items())]
    return Curve(name, colour, points, dashed)


def loss_figures(data: dict[str, Any]) -> list[Figure]:
    logs: dict[str, Rows] = data["metrics"]
    baselines = {name: name.replace("baselines/", "baseline-") for name in logs if name.startswith("baselines/")}
    first = [
        *with_validation(logs.get("sft", []), "sft"),
        *with_validation(logs.get("baselines/sft", []), "baseline-sft"),
    ]
    figures = [line_figure("loss-sft", "Supervised fine-tuning", first, x=STEP, y=LOSS, log="y")]
    figures += [round_losses(one, logs.get(f"round-{one['number']}/strong", [])) for one in data["rounds"]]
    charts: list[list[Curve]] = []
    for curves in (with_validation(logs[name], one) for name, one in baselines.items() if one != "baseline-sft"):
        free = (chart for chart in charts if curves[0].colour not in {one.colour for one in chart})
        if (chart := next(free, None)) is None:
            charts.append(chart := [])
        chart += curves
    for place, chart in enumerate(charts, 1):
        title = "Other methods" + (f", part {place}" if len(charts) > 1 else "")
        note = "Each solid curve is the method's own loss; losses of different methods are not comparable."
        figures.append(line_figure(f"loss-others-{place}", title, chart, x=STEP, y="loss", caption=note, log="y"))
    return present(figures)


def with_validation(rows: Rows, model: str) -> list[Curve]:
    """Make the curves of a training's loss and of its validation loss (dashed)."""
    name, css = model_name(model), colour(model)
    validation = logged(rows, VALIDATION_LOSS, f"{name}, validation", css, dashed=True)
    return [logged(rows, "loss", name, css), validation]


def round_losses(one: dict[str, Any], rows: Rows) -> Figure | None:
    t, joint = one["number"], any("weak_loss" in row for row in rows)
    strong = colour(f"round-{t}")
    curves = [
        logged(rows, "loss", "mixed" if joint else "loss", "ink"),
        logged(rows, "strong_loss", "strong alone", strong),
        logged(rows, "weak_loss", "weak alone", colour(one["weak"])),
        logged(rows, VALIDATION_LOSS, "strong alone, validation", strong, dashed=True),
    ]
    title = f"{'Joint' if joint else 'Strong-only'} training, round {t}"
    return line_figure(f"loss-round-{t}", title, curves, x=STEP, y=LOSS, log="y")


def step_figures(data: dict[str, Any]) -> list[Figure]:
    """Draw what joint training logs besides losses: negative mass, margins, gradient norms and mean logits."""
    note = "Negative mass: probability of all but the true token. As it shrinks, so does every gradient (shielding)."
    figures = []
    for one in data["rounds"]:
        t, strong_css, weak_css = one["number"], colour(f"round-{one['number']}"), colour(one["weak"])
        rows: Rows = data["metrics"].get(f"round-{t}/strong", [])
        if not any("mixed_probability" in row for row in rows):
            continue
        mass = [
            logged(rows, "mixed_probability", "mixture", "ink", complement=True),
            logged(rows, "strong_probability", "strong alone", strong_css, complement=True),
            logged(rows, "margin_share", "margin condition holds", "soft", dashed=True),
        ]
        title, y = f"Negative mass and margins, round {t}", "share, mean over tokens"
        figures.append(line_figure(f"mass-round-{t}", title, mass, x=STEP, y=y, caption=note))
        for name, key, title, y in (
            ("gradient", "grad_norm", "Gradient norm", "norm of each model's gradient"),
            ("drift", "mean_logit", "Mean logit", "mean over vocabulary and tokens"),
        ):
            strong = logged(rows, f"strong_{key}", "strong", strong_css)
            weak = logged(rows, f"weak_{key}", "weak", weak_css, dashed=True)
            figures.append(line_figure(f"{name}-round-{t}", f"{title}, round {t}", [strong, weak], x=STEP, y=y))
    return present(figures)


def selection_figures(one: dict[str, Any], manifests: dict[str, Any]) -> list[Figure]:
    """Draw a round's entropies, sampling probabilities, and the terms of its sampling weight."""
    t = one["number"]
    counters = manifests.get(f"round-{t}/active", {}).get("counters", {})
    changes = {words: counters[key] for key, words in CHANGES.items() if key in counters}
    terms = stacked_shares("terms", t, "Sampling weight by term", counters.get("term_shares", {}))
    moved = stacked_shares("changes", t, "Entropy from weak to strong", changes, "examples")
    return present([entropy_scatter(one), odds_figure(one), terms, moved])


CHANGES = {"falling": "fell", "equal": "stayed", "rising": "rose"}
PARTS = {"consolidation": "pick", "difficulty": "pick2", "repair": "pick3"}
PARTS |= {"fell": "pick", "stayed": "pick2", "rose": "pick3"}
SHAPES = {"chosen": "circle", "not chosen": "triangle-up", "no draw yet": "triangle-up"}
KINDS = {"chosen": "pick", "not chosen": "skip", "no draw yet": "skip"}


def entropy_scatter(one: dict[str, Any]) -> Figure | None:
    points = one["points"]
    if not points:
        return None
    notes = [f"{one['usable']:,} examples; below the diagonal the strong model is more certain than the weak one."]
    if one["left_out"]:
        notes.append(f"{one['left_out']:,} more are left out because one of the entropies is missing.")
    if one["usable"] > len(points):
        notes.append(f"A random sample of {SCATTER_POINTS:,} is shown.")
    rows = []
    for point in points:
        draws = point["draws"]
        drawn = "draw not recorded" if draws is None else f"{draws:g} time{'s' * (draws != 1)}"
        chosen = "no draw yet" if not one["drawn"] else "chosen" if draws else "not chosen"
        values = {"weak": round(point["weak"], 5), "strong": round(point["strong"], 5)}
        rows.append({"id": point["id"], **values, "kind": chosen, "drawn": drawn, "question": point["question"]})
    ends = {role: zoomed([row[role] for row in rows]) for role in ("weak", "strong")}
    if beyond := sum(any(not low <= row[role] <= high for role, (low, high) in ends.items()) for row in rows):
        notes.append(f"{beyond:,} with the largest or smallest entropies are outside the frame.")
    line = [{"x": x, "y": x} for x in (min(low for low, _ in ends.values()), max(high for _, high in ends.values()))]
    titles = {role: f"{role}: {model_name(one[role])}, nats per token" for role in ("weak", "strong")}
    x, y = (
        quantity(role, title, scale={"domain": ends[role], "nice": False, "zero": False})
        for role, title in titles.items()
    )
    used = {kind: css for kind, css in KINDS.items() if any(row["kind"] == kind for row in rows)}
    tips = [{"field": "id"}, number_tip("weak", "weak"), number_tip("strong", "strong")]
    tips += [{"field": "drawn"}, {"field": "question"}]
    dashes = {"type": "line", "strokeDash": [4, 4], "strokeWidth": 1, "color": "@soft", "clip": True}
    diagonal = {axis: {"field": axis, "type": "quantitative"} for axis in ("x", "y")}
    dot = {"type": "point", "filled": True, "size": 26, "opacity": 0.65, "clip": True}
    shape = {"field": "kind", "type": "nominal", "scale": {"domain": [*used], "range": [SHAPES[kind] for kind in used]}}
    layers = [
        {"data": {"values": line}, **layer(dashes, **diagonal)},
        {"data": {"values": rows}, **layer(dot, x=x, y=y, color=category("kind", used), shape=shape, tooltip=tips)},
    ]
    name, title = f"entropy-round-{one['number']}", f"Entropy of each example, round {one['number']}"
    return Figure(name, title, {"height": 340, "layer": layers}, " ".join(notes))


def zoomed(values: list[float]) -> list[float]:
    """Choose the ends of an axis that shows 99% of the values, with a margin."""
    low, high = np.quantile(values, [0.005, 0.995]).tolist()
    room = 0.04 * (high - low) or 0.5
    return [max(0.0, low - room), high + room]


def odds_figure(one: dict[str, Any]) -> Figure | None:
    bars, whole = one["bars"], sum(bar["examples"] for bar in one["bars"])
    if not whole:
        return None
    rows = []
    for bar in bars:
        ends = {"low": bar["low"], "high": bar["high"], "span": f"{bar['low']:.2f} to {bar['to']:.2f} times uniform"}
        for kind, count in (("chosen", bar["chosen"]), ("not chosen", bar["examples"] - bar["chosen"])):
            rows.append({**ends, "kind": kind, "count": count, "share": 100 * count / whole})
    spec = layer(
        {"type": "bar", "binSpacing": 1},
        x=quantity("low", "probability in one draw, times uniform", bin={"binned": True}),
        x2={"field": "high"},
        y=quantity("share", "share of the examples, percent", stack=True),
        color=category("kind", {"chosen": "pick", "not chosen": "skip"}),
        order={"field": "kind"},
        tooltip=[{"field": "span", "title": "probability"}, {"field": "kind", "title": "these"}, {"field": "count"}],
    )
    last = bars[-1]
    beyond = f" The last bar reaches to {last['to']:.3g} times." if last["to"] > last["high"] else ""
    name, title = f"odds-round-{one['number']}", f"Sampling probability, round {one['number']}"
    caption = f"1 is the probability in a uniform draw.{beyond}"
    return Figure(name, title, {"height": 220, "data": {"values": rows}, **spec}, caption)


def stacked_shares(name: str, t: int, title: str, parts: dict[str, float], unit: str = "") -> Figure | None:
    whole = sum(parts.values())
    if not whole:
        return None
    labels = {part: f"{part} {100 * value / whole:.1f}%" for part, value in parts.items()}
    rows = [
        {"part": labels[part], "value": value, "share": value / whole, "place": place}
        for place, (part, value) in enumerate(parts.items())
    ]
    tips = [{"field": "part", "title": "part"}, number_tip("share", "share")]
    spec = layer(
        "bar",
        x=quantity("share", None, stack=True, axis={"format": "%"}),
        color=category("part", {label: PARTS[part] for part, label in labels.items()}),
        order={"field": "place"},
        tooltip=tips + ([number_tip("value", unit)] if unit else []),
    )
    spec = {"height": 26, "data": {"values": rows}, **spec}
    return Figure(f"{name}-round-{t}", f"{title}, round {t}", spec)


def accuracy_figures(benchmark: str, rows: Rows) -> list[Figure]:
    rows = [row for row in rows if row["benchmark"] == benchmark]
    ends = {"value": "accuracy", "low": "low", "high": "high"}
    dots = [
        {"label": row["name"], "colour": colour(row["model"]), "text": score(row)}
        | {name: None if row[key] is None else 100 * row[key] for name, key in ends.items()}
        for row in rows
    ]
    note = "Dot: accuracy. Line: 95% interval."
    sampled = [row for row in rows if row["pass_at_k"]]
    curves = []
    for row in sampled:
        chances = ((int(k), share) for k, share in row["pass_at_k"].items())
        curves.append(Curve(row["name"], colour(row["model"]), [(1.0, row["accuracy"]), *chances]))
    title = f"{benchmark}: chance that one of k samples is right"
    accuracy = interval_figure(f"accuracy-{benchmark}", benchmark, dots, x="accuracy, percent", caption=note)
    return present([accuracy, line_figure(f"pass-{benchmark}", title, curves, x="k", y="pass@k", log="x")])


def timeline(done: dict[str, Any]) -> list[Figure]:
    """Draw the time of each finished stage end to end, in the order of finishing, and its peak memory."""
    rows, clock = [], 0.0
    for name, manifest in done.items():
        if manifest.get("taken_from"):
            continue
        seconds, memory = (manifest.get(key) for key in ("wall_seconds", "peak_memory_bytes"))
        end = clock + (seconds or 0.0)
        row = {"stage": name, "begin": clock / 60, "end": end / 60, "took": duration(seconds)}
        rows.append(row | {"gib": None if memory is None else memory / 2**30, "memory": gibibytes(memory)})
        clock = end
    if not rows:
        return []
    shared = {
        "y": {"field": "stage", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 150}},
        "tooltip": [{"field": "stage"}, {"field": "took"}, {"field": "memory", "title": "peak memory"}],
    }
    view = {"height": 22 * len(rows), "data": {"values": rows}}
    bar, begin = {"type": "bar", "minBandSize": 2, "color": "@soft"}, quantity("begin", "minutes of work")
    spans = layer(bar, x=begin, x2={"field": "end"}, **shared)
    note = "Bars are in the order in which stages finished, without pauses; stages from other runs are left out."
    figures = [Figure("stages-time", "Time of each stage", view | spans, note)]
    if any(row["gib"] is not None for row in rows):
        heights = layer({"type": "bar", "color": "@soft"}, x=quantity("gib", "peak memory, GiB"), **shared)
        note = "Memory of the GPU if there is one, else of the process since it started."
        figures.append(Figure("stages-memory", "Peak memory of each stage", view | heights, note))
    return figures
