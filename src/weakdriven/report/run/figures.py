"""The figures of one run, by section of its page: losses, selection, accuracy, stages. Values in, `Figure`s out."""

from typing import Any

from weakdriven.report.figure import Figure
from weakdriven.report.format import colour, duration, model_name, number, score, stage_kind
from weakdriven.report.plots import Curve, category, interval_figure, layer, line_figure, number_tip, present, quantity
from weakdriven.report.read import SCATTER_POINTS
from weakdriven.runs.directory import VALIDATION_LOSS

Rows = list[dict[str, Any]]
OTHERS = ("purple", "grey", "green", "blue", "orange")
STEP = "optimizer step"
LOSS = "loss per token, nats"


def logged(rows: Rows, key: str, name: str, colour: str, *, dashed: bool = False, complement: bool = False) -> Curve:
    """A logged number, or 1 minus it, over the steps; a resumed run logs some twice, and the later line counts."""
    found = {step: number(row[key]) for row in rows if key in row and (step := number(row.get("step"))) is not None}
    points = [(step, 1 - y if complement and y is not None else y) for step, y in sorted(found.items())]
    return Curve(name, colour, points, dashed)


def loss_figures(data: dict[str, Any]) -> list[Figure]:
    logs: dict[str, Rows] = data["metrics"]
    first = [
        *with_validation(logs.get("sft", []), model_name("sft"), "green"),
        *with_validation(logs.get("baselines/sft", []), model_name("baseline-sft"), "orange"),
    ]
    figures = [line_figure("loss-sft", "Supervised fine-tuning", first, x=STEP, y=LOSS)]
    figures += [round_losses(one["number"], logs.get(f"round-{one['number']}/strong", [])) for one in data["rounds"]]
    others = [name for name in logs if name.startswith("baselines/") and name != "baselines/sft"]
    names = {one: model_name(one.replace("baselines/", "baseline-")) for one in others}
    for number_, begin in enumerate(range(0, len(others), len(OTHERS)), 1):
        chosen = zip(others[begin : begin + len(OTHERS)], OTHERS, strict=False)
        curves = [curve for one, css in chosen for curve in with_validation(logs[one], names[one], css)]
        title = "Other methods" + (f", part {number_}" if len(others) > len(OTHERS) else "")
        note = "Each solid curve is its method's own loss; the losses of different methods are not comparable."
        figures.append(line_figure(f"loss-others-{number_}", title, curves, x=STEP, y="loss", caption=note))
    return present(figures)


def with_validation(rows: Rows, name: str, colour: str) -> list[Curve]:
    """The loss of a training, and dashed that of its evaluations."""
    validation = logged(rows, VALIDATION_LOSS, f"{name}, validation", colour, dashed=True)
    return [logged(rows, "loss", name, colour), validation]


def round_losses(round_number: int, rows: Rows) -> Figure | None:
    joint = any("weak_loss" in row for row in rows)
    curves = [
        logged(rows, "loss", "mixed" if joint else "loss", "purple"),
        logged(rows, "strong_loss", "strong alone", "blue"),
        logged(rows, "weak_loss", "weak alone", "grey"),
        logged(rows, VALIDATION_LOSS, "strong alone, validation", "blue", dashed=True),
    ]
    title = f"{'Joint' if joint else 'Strong-only'} training, round {round_number}"
    return line_figure(f"loss-round-{round_number}", title, curves, x=STEP, y=LOSS)


def step_figures(data: dict[str, Any]) -> list[Figure]:
    """What joint training logged besides its losses: what is left to learn from, and where the logits drift."""
    note = "Negative mass: probability of all but the true token. Every gradient shrinks with it (shielding)."
    figures = []
    for t in (one["number"] for one in data["rounds"]):
        rows: Rows = data["metrics"].get(f"round-{t}/strong", [])
        if not any("mixed_probability" in row for row in rows):
            continue
        mass = [
            logged(rows, "mixed_probability", "mixture", "purple", complement=True),
            logged(rows, "strong_probability", "strong alone", "blue", complement=True),
            logged(rows, "margin_share", "margin condition holds", "orange", dashed=True),
        ]
        title, y = f"Negative mass and margins, round {t}", "share, mean over tokens"
        figures.append(line_figure(f"mass-round-{t}", title, mass, x=STEP, y=y, caption=note))
        for name, key, title, y in (
            ("gradient", "grad_norm", "Gradient norm", "norm of each model's gradient"),
            ("drift", "mean_logit", "Mean logit", "mean over vocabulary and tokens"),
        ):
            strong = logged(rows, f"strong_{key}", "strong", "blue")
            weak = logged(rows, f"weak_{key}", "weak", "grey", dashed=True)
            figures.append(line_figure(f"{name}-round-{t}", f"{title}, round {t}", [strong, weak], x=STEP, y=y))
    return present(figures)


def selection_figures(one: dict[str, Any], manifests: dict[str, Any]) -> list[Figure]:
    """Of one round: entropies, probabilities, and what the sampling weight consists of."""
    t = one["number"]
    counters = manifests.get(f"round-{t}/active", {}).get("counters", {})
    changes = {words: counters[key] for key, words in CHANGES.items() if key in counters}
    terms = stacked_shares("terms", t, "Sampling weight by term", counters.get("term_shares", {}))
    moved = stacked_shares("changes", t, "Entropy from weak to strong", changes, "examples")
    return present([entropy_scatter(one), odds_figure(one), terms, moved])


CHANGES = {"falling": "fell", "equal": "stayed", "rising": "rose"}
PARTS = {"consolidation": "green", "difficulty": "blue", "repair": "orange"}
PARTS |= {"fell": "green", "stayed": "grey", "rose": "orange"}
KINDS = {"chosen": "blue", "not chosen": "grey", "no draw yet": "grey"}


def entropy_scatter(one: dict[str, Any]) -> Figure | None:
    points = one["points"]
    if not points:
        return None
    notes = [f"{one['usable']:,} examples; below the diagonal the strong model is more certain than the weak one."]
    if one["left_out"]:
        notes.append(f"{one['left_out']:,} more lack an entropy under one of the two and are left out.")
    if one["usable"] > len(points):
        notes.append(f"A random sample of {SCATTER_POINTS:,} is shown.")
    rows = []
    for point in points:
        draws = point["draws"]
        drawn = "draw not recorded" if draws is None else f"{draws:g} time{'s' * (draws != 1)}"
        chosen = "no draw yet" if not one["drawn"] else "chosen" if draws else "not chosen"
        values = {"weak": round(point["weak"], 5), "strong": round(point["strong"], 5)}
        rows.append({"id": point["id"], **values, "kind": chosen, "drawn": drawn, "question": point["question"]})
    limit = 1.03 * max(row[role] for row in rows for role in ("weak", "strong")) or 1.0
    scale = {"domain": [0, limit], "nice": False}
    titles = {role: f"{role}: {model_name(one[role])}, nats per token" for role in ("weak", "strong")}
    x, y = (quantity(role, title, scale=scale) for role, title in titles.items())
    used = {kind: css for kind, css in KINDS.items() if any(row["kind"] == kind for row in rows)}
    tips = [{"field": "id"}, number_tip("weak", "weak"), number_tip("strong", "strong")]
    tips += [{"field": "drawn"}, {"field": "question"}]
    line = {"type": "line", "strokeDash": [4, 4], "strokeWidth": 1, "color": "@soft"}
    diagonal = {axis: {"field": axis, "type": "quantitative"} for axis in ("x", "y")}
    dot = {"type": "point", "filled": True, "size": 22, "opacity": 0.5}
    layers = [
        {"data": {"values": [{"x": 0, "y": 0}, {"x": limit, "y": limit}]}, **layer(line, **diagonal)},
        {"data": {"values": rows}, **layer(dot, x=x, y=y, color=category("kind", used), tooltip=tips)},
    ]
    name, title = f"entropy-round-{one['number']}", f"Entropy of each example, round {one['number']}"
    return Figure(name, title, {"height": 340, "layer": layers}, " ".join(notes))


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
        color=category("kind", {"chosen": "blue", "not chosen": "line"}),
        order={"field": "kind"},
        tooltip=[{"field": "span", "title": "probability"}, {"field": "kind", "title": "these"}, {"field": "count"}],
    )
    last = bars[-1]
    beyond = f" The last bar reaches to {last['to']:.3g} times." if last["to"] > last["high"] else ""
    name, title = f"odds-round-{one['number']}", f"Sampling probability, round {one['number']}"
    caption = f"At 1 an example has the probability of a uniform draw.{beyond}"
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
    for row, css in zip(sampled, OTHERS * len(sampled), strict=False):
        chances = ((int(k), share) for k, share in row["pass_at_k"].items())
        curves.append(Curve(row["name"], css, [(1.0, row["accuracy"]), *chances]))
    title = f"{benchmark}: chance that one of k samples is right"
    accuracy = interval_figure(f"accuracy-{benchmark}", benchmark, dots, x="accuracy, percent", caption=note)
    return present([accuracy, line_figure(f"pass-{benchmark}", title, curves, x="k", y="pass@k", log_x=True)])


STAGE_COLOURS = {"evaluation": "grey", "WD-DS": "orange", "training": "blue", "baselines": "purple", "other": "green"}


def timeline(done: dict[str, Any]) -> list[Figure]:
    """Time of each finished stage, end to end in the order in which they finished, and its peak memory."""
    rows, clock = [], 0.0
    for name, manifest in done.items():
        if manifest.get("taken_from"):
            continue
        seconds, memory = (manifest.get(key) for key in ("wall_seconds", "peak_memory_bytes"))
        end, gb = clock + (seconds or 0.0), None if memory is None else memory / 1e9
        row = {"stage": name, "kind": stage_kind(name), "begin": clock / 60, "end": end / 60}
        row |= {"took": duration(seconds), "gb": gb, "memory": "not recorded" if gb is None else f"{gb:.2f} GB"}
        rows.append(row)
        clock = end
    if not rows:
        return []
    kinds = {kind: css for kind, css in STAGE_COLOURS.items() if any(row["kind"] == kind for row in rows)}
    shared = {
        "y": {"field": "stage", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 150}},
        "color": category("kind", kinds),
        "tooltip": [{"field": "stage"}, {"field": "took"}, {"field": "memory", "title": "peak memory"}],
    }
    view = {"height": 22 * len(rows), "data": {"values": rows}}
    bar, begin = {"type": "bar", "minBandSize": 2}, quantity("begin", "minutes of work")
    spans = layer(bar, x=begin, x2={"field": "end"}, **shared)
    note = "Bars are in the order in which stages finished, without pauses; stages from other runs are left out."
    figures = [Figure("stages-time", "Time of each stage", view | spans, note)]
    if any(row["gb"] is not None for row in rows):
        heights = layer("bar", x=quantity("gb", "peak memory, GB"), **shared)
        note = "Of the GPU if there is one, else of the process since it started."
        figures.append(Figure("stages-memory", "Peak memory of each stage", view | heights, note))
    return figures
