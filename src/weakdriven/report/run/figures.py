"""The figures of one run, by section of its page: losses, selection, accuracy, stages. Values in, `Figure`s out."""

from collections.abc import Iterable
from typing import Any

from weakdriven.report.figure import Figure
from weakdriven.report.format import colour, duration, here, mapping, model_name, number, score
from weakdriven.report.plots import Curve, interval_figure, line_figure, number_tip
from weakdriven.report.run.examples import SCATTER_POINTS

Rows = list[dict[str, Any]]
OTHERS = ("purple", "grey", "green", "blue", "orange")
STEP = "optimizer step"
LOSS = "loss per token, nats"


def present(figures: Iterable[Figure | None]) -> list[Figure]:
    return [figure for figure in figures if figure is not None]


def by_step(rows: Rows, key: str, turn: Any = lambda value: value) -> list[tuple[float, float | None]]:
    """A logged number over the steps; a resumed run logs some twice, and the later line belongs to what was kept."""
    found = {step: number(row[key]) for row in rows if key in row and (step := number(row.get("step"))) is not None}
    return [(step, None if value is None else turn(value)) for step, value in sorted(found.items())]


def loss_figures(data: dict[str, Any]) -> list[Figure]:
    """Phase 1 with its control, every joint training, and the other methods."""
    logs: dict[str, Rows] = data["metrics"]
    first = [
        Curve(model_name("sft"), "green", by_step(logs.get("sft", []), "loss")),
        Curve(model_name("baseline-sft"), "orange", by_step(logs.get("baselines/sft", []), "loss"), dashed=True),
    ]
    figures = [line_figure("loss-sft", "Supervised fine-tuning", first, x=STEP, y=LOSS)]
    figures += [round_losses(one["number"], logs.get(f"round-{one['number']}/strong", [])) for one in data["rounds"]]
    others = [name for name in logs if name.startswith("baselines/") and name != "baselines/sft"]
    for begin in range(0, len(others), len(OTHERS)):
        chosen = zip(others[begin : begin + len(OTHERS)], OTHERS, strict=False)
        curves = [
            Curve(model_name(name.replace("baselines/", "baseline-")), colour, by_step(logs[name], "loss"))
            for name, colour in chosen
        ]
        note = "Each method's own loss; those of different methods are not the same quantity."
        part = "" if len(others) <= len(OTHERS) else f", part {begin // len(OTHERS) + 1}"
        name = f"loss-others-{begin // len(OTHERS) + 1}"
        figures.append(line_figure(name, f"Other methods{part}", curves, x=STEP, y="loss", caption=note))
    return present(figures)


def round_losses(turn: int, rows: Rows) -> Figure | None:
    joint = any("weak_loss" in row for row in rows)
    curves = [
        Curve("mixed" if joint else "loss", "purple", by_step(rows, "loss")),
        Curve("strong alone", "blue", by_step(rows, "strong_loss")),
        Curve("weak alone", "grey", by_step(rows, "weak_loss"), dashed=True),
    ]
    title = f"{'Joint' if joint else 'Strong-only'} training, round {turn}"
    return line_figure(f"loss-round-{turn}", title, curves, x=STEP, y=LOSS)


def step_figures(data: dict[str, Any]) -> list[Figure]:
    """What joint training logged besides its losses: what is left to learn from, and where the logits drift."""
    figures = []
    for one in data["rounds"]:
        turn = one["number"]
        rows: Rows = data["metrics"].get(f"round-{turn}/strong", [])
        if not any("mixed_probability" in row for row in rows):
            continue
        mass = [
            Curve("mixture", "purple", by_step(rows, "mixed_probability", lambda share: 1 - share)),
            Curve("strong alone", "blue", by_step(rows, "strong_probability", lambda share: 1 - share)),
            Curve("margin condition holds", "orange", by_step(rows, "margin_share"), dashed=True),
        ]
        norms = [
            Curve("strong", "blue", by_step(rows, "strong_grad_norm")),
            Curve("weak", "grey", by_step(rows, "weak_grad_norm"), dashed=True),
        ]
        logits = [
            Curve("strong", "blue", by_step(rows, "strong_mean_logit")),
            Curve("weak", "grey", by_step(rows, "weak_mean_logit"), dashed=True),
        ]
        told = (
            "Negative mass: probability of all but the true token. As it shrinks, so does every gradient (shielding)."
        )
        titles = f"Negative mass and margins, round {turn}", f"Gradient norm, round {turn}", f"Mean logit, round {turn}"
        figures += [
            line_figure(f"mass-round-{turn}", titles[0], mass, x=STEP, y="share, mean over tokens", caption=told),
            line_figure(f"gradient-round-{turn}", titles[1], norms, x=STEP, y="norm of each model's gradient"),
            line_figure(f"drift-round-{turn}", titles[2], logits, x=STEP, y="mean over vocabulary and tokens"),
        ]
    return present(figures)


def selection_figures(one: dict[str, Any], counters: dict[str, Any]) -> list[Figure]:
    """Of one round: entropies, probabilities, and what the weight of the draw was made of."""
    return present([entropy_scatter(one), odds_figure(one), *share_figures(one["number"], counters)])


def entropy_scatter(one: dict[str, Any]) -> Figure | None:
    """A point for each example: its entropy under the weak model against that under the strong one."""
    points = one["points"]
    if not points:
        return None
    notes = [f"{one['usable']:,} examples; below the diagonal the strong model is surer than the weak one."]
    if one["left_out"]:
        notes.append(f"{one['left_out']:,} more lack an entropy under one of the two and are left out.")
    if one["usable"] > len(points):
        notes.append(f"A random {SCATTER_POINTS:,} of them are drawn.")
    rows = []
    for point in points:
        times = number(point["draws"])
        told = "draw not recorded" if times is None else f"{times:g} time{'s' * (times != 1)}"
        chosen = "no draw yet" if not one["drawn"] else "chosen" if times else "not chosen"
        values = {"weak": round(point["weak"], 5), "strong": round(point["strong"], 5)}
        rows.append({"id": point["id"], **values, "kind": chosen, "drawn": told, "question": point["question"]})
    limit = 1.03 * max((row[role] for row in rows for role in ("weak", "strong")), default=1.0) or 1.0
    titles = {role: f"{role}: {model_name(one[role])}, nats per token" for role in ("weak", "strong")}
    axes = {
        axis: {
            "field": role,
            "type": "quantitative",
            "title": titles[role],
            "scale": {"domain": [0, limit], "nice": False},
        }
        for axis, role in (("x", "weak"), ("y", "strong"))
    }
    kinds = {"chosen": "@blue", "not chosen": "@grey", "no draw yet": "@grey"}
    there = [kind for kind in kinds if any(row["kind"] == kind for row in rows)]
    colours = {"field": "kind", "type": "nominal", "scale": {"domain": there, "range": [kinds[kind] for kind in there]}}
    tips = [{"field": "id"}, number_tip("weak", "weak"), number_tip("strong", "strong")]
    tips += [{"field": "drawn"}, {"field": "question"}]
    ends = [{"x": 0, "y": 0}, {"x": limit, "y": limit}]
    diagonal = {"x": {"field": "x", "type": "quantitative"}, "y": {"field": "y", "type": "quantitative"}}
    layers = [
        {
            "data": {"values": ends},
            "mark": {"type": "line", "strokeDash": [4, 4], "strokeWidth": 1, "color": "@soft"},
            "encoding": diagonal,
        },
        {
            "data": {"values": rows},
            "mark": {"type": "point", "filled": True, "size": 22, "opacity": 0.5},
            "encoding": {**axes, "color": colours, "tooltip": tips},
        },
    ]
    title = f"Entropy of each example, round {one['number']}"
    return Figure(f"entropy-round-{one['number']}", title, {"height": 340, "layer": layers}, " ".join(notes))


def odds_figure(one: dict[str, Any]) -> Figure | None:
    """A histogram of the sampling probability as a multiple of the uniform one."""
    bars, whole = one["bars"], sum(bar["examples"] for bar in one["bars"])
    if not whole:
        return None
    rows = []
    for bar in bars:
        parts = {"chosen": bar["chosen"], "not chosen": bar["examples"] - bar["chosen"]}
        span = f"{bar['low']:.2f} to {bar['to']:.2f} times uniform"
        for kind, count in parts.items():
            share = 100 * count / whole
            rows.append(
                {"low": bar["low"], "high": bar["high"], "kind": kind, "count": count, "share": share, "span": span}
            )
    encoding = {
        "x": {
            "field": "low",
            "bin": {"binned": True},
            "type": "quantitative",
            "title": "probability in one draw, times uniform",
        },
        "x2": {"field": "high"},
        "y": {"field": "share", "type": "quantitative", "stack": True, "title": "share of the examples, per cent"},
        "color": {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": ["chosen", "not chosen"], "range": ["@blue", "@line"]},
        },
        "order": {"field": "kind"},
        "tooltip": [{"field": "span", "title": "probability"}, {"field": "kind", "title": "these"}, {"field": "count"}],
    }
    last = bars[-1]
    beyond = f" The last bar reaches to {last['to']:.3g} times." if last["to"] > last["high"] else ""
    spec = {"height": 220, "data": {"values": rows}, "mark": {"type": "bar", "binSpacing": 1}, "encoding": encoding}
    caption = f"1 is what each example would have if all were equally likely.{beyond}"
    return Figure(f"odds-round-{one['number']}", f"Sampling probability, round {one['number']}", spec, caption)


TERMS = {"consolidation": "green", "difficulty": "blue", "repair": "orange"}
CHANGES = {"falling": "fell", "equal": "stayed", "rising": "rose"}


def share_figures(turn: int, counters: dict[str, Any]) -> list[Figure | None]:
    """What the sampling weight is made of, and where entropies went from weak to strong."""
    terms = mapping(counters.get("term_shares"))
    parts = {name: terms.get(name) for name in TERMS}
    weights = stacked_shares(f"terms-round-{turn}", f"Sampling weight by term, round {turn}", parts, TERMS)
    changes = {words: counters.get(key) for key, words in CHANGES.items()}
    colours = {"fell": "green", "stayed": "grey", "rose": "orange"}
    entropies = stacked_shares(
        f"changes-round-{turn}", f"Entropy from weak to strong, round {turn}", changes, colours, "examples"
    )
    return [weights, entropies]


def stacked_shares(
    name: str, title: str, parts: dict[str, Any], colours: dict[str, str], unit: str = ""
) -> Figure | None:
    """One bar, cut by share."""
    values = {part: value for part, value in parts.items() if number(value) is not None}
    whole = sum(values.values())
    if not whole:
        return None
    labels = {part: f"{part} {100 * value / whole:.1f}%" for part, value in values.items()}
    rows = [
        {"part": labels[part], "value": value, "share": value / whole, "place": place}
        for place, (part, value) in enumerate(values.items())
    ]
    scale = {"domain": list(labels.values()), "range": [f"@{colours[part]}" for part in labels]}
    tips = [{"field": "part", "title": "part"}, number_tip("share", "share")]
    encoding = {
        "x": {"field": "share", "type": "quantitative", "stack": True, "title": None, "axis": {"format": "%"}},
        "color": {"field": "part", "type": "nominal", "scale": scale},
        "order": {"field": "place"},
        "tooltip": [*tips, *([number_tip("value", unit)] if unit else [])],
    }
    return Figure(name, title, {"height": 26, "data": {"values": rows}, "mark": "bar", "encoding": encoding})


def accuracy_figures(benchmark: str, rows: Rows) -> list[Figure]:
    """Accuracy of every model with its interval, and pass@k where several samples were drawn."""
    rows = [row for row in rows if row["benchmark"] == benchmark]
    dots = [
        {
            "label": row["name"],
            "colour": colour(row["model"]),
            "told": score(row),
            **{
                field: None if row[key] is None else 100 * row[key]
                for field, key in (("value", "accuracy"), ("low", "low"), ("high", "high"))
            },
        }
        for row in rows
    ]
    told = "Dot: accuracy. Line: 95% interval."
    figures = [interval_figure(f"accuracy-{benchmark}", benchmark, dots, x="accuracy, per cent", caption=told)]
    chosen = zip([row for row in rows if row["pass_at_k"]], (*OTHERS, *OTHERS, *OTHERS, *OTHERS), strict=False)
    curves = [
        Curve(row["name"], css, [(1.0, row["accuracy"]), *((int(k), share) for k, share in row["pass_at_k"].items())])
        for row, css in chosen
    ]
    title = f"{benchmark}: chance that one of k samples is right"
    figures.append(line_figure(f"pass-{benchmark}", title, curves, x="k", y="pass@k", log_x=True))
    return present(figures)


STAGE_COLOURS = {
    "evaluation": "grey",
    "WD-DS": "orange",
    "training": "blue",
    "baselines": "purple",
    "other": "green",
}


def stage_kind(name: str) -> str:
    """
    >>> [stage_kind(name) for name in ("eval/base/gsm8k", "entropy/base", "sft", "baselines/sft", "data")]
    ['evaluation', 'WD-DS', 'training', 'baselines', 'other']
    """
    if name.startswith("eval/"):
        return "evaluation"
    if name.startswith("entropy/") or name.endswith("/active"):
        return "WD-DS"
    if name.startswith("baselines/"):
        return "baselines"
    return "training" if name == "sft" or name.endswith("/strong") else "other"


def timeline(stages: Rows) -> list[Figure]:
    """What each finished stage took, end to end in the order in which they finished, and how much memory."""
    rows, clock = [], 0.0
    done = [stage for stage in stages if stage["status"] == "done" and here(stage)]
    for stage in sorted(done, key=lambda stage: str(stage["manifest"].get("finished"))):
        seconds, memory = (number(stage["manifest"].get(key)) for key in ("wall_seconds", "peak_memory_bytes"))
        told = {"took": duration(seconds), "memory": "not recorded" if memory is None else f"{memory / 1e9:.2f} GB"}
        span = {"begin": clock / 60, "end": (clock + (seconds or 0.0)) / 60}
        kind = stage_kind(stage["name"])
        peak = None if memory is None else memory / 1e9
        rows.append({"stage": stage["name"], "kind": kind, **span, **told, "gb": peak})
        clock += seconds or 0.0
    if not rows:
        return []
    kinds = [kind for kind in STAGE_COLOURS if any(row["kind"] == kind for row in rows)]
    scale = {"domain": kinds, "range": [f"@{STAGE_COLOURS[kind]}" for kind in kinds]}
    labels = {"field": "stage", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 150}}
    tips = [{"field": "stage"}, {"field": "took"}, {"field": "memory", "title": "peak memory"}]
    shared = {"y": labels, "color": {"field": "kind", "type": "nominal", "scale": scale}, "tooltip": tips}
    minutes = {"field": "begin", "type": "quantitative", "title": "minutes of work"}
    bars = {"x": minutes, "x2": {"field": "end"}, **shared}
    heights = {"x": {"field": "gb", "type": "quantitative", "title": "peak memory, GB"}, **shared}
    height = 22 * len(rows)
    figures = [
        Figure(
            "stages-time",
            "Time of each stage",
            {"height": height, "data": {"values": rows}, "mark": {"type": "bar", "minBandSize": 2}, "encoding": bars},
            "Bars lie end to end in the order in which stages finished, without pauses or what another run computed.",
        )
    ]
    if any(row["gb"] is not None for row in rows):
        spec = {"height": height, "data": {"values": rows}, "mark": "bar", "encoding": heights}
        told = "Of the GPU where there is one, else of the process since it began."
        figures.append(Figure("stages-memory", "Peak memory of each stage", spec, told))
    return figures
