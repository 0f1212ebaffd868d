"""Charts as SVG, 420 units wide, so that their text is still readable when a phone shrinks them."""

import math
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from weakdriven.report.examples import SCATTER_POINTS
from weakdriven.report.words import colour, model_name, number, score

CURVE_POINTS = 1000


class Axes:
    """Maps values to a drawing and draws the grid, with room for labels at the left and below."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], left: int = 48, height: int = 270) -> None:
        self.x_range, self.y_range, self.left, self.bottom = x, y, left, height - 40

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (408 - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.bottom - (value - low) / (high - low) * (self.bottom - 10)

    def draw(self, title: str, x_label: str, y_label: str, marks: list[Markup]) -> Markup:
        grid = Markup('<path class="grid" d="{}"/><text x="{:.1f}" y="{:.1f}" text-anchor="{}">{:g}</text>')
        parts = []
        for value in ticks(*self.x_range):
            x = self.x(value)
            parts.append(grid.format(f"M{x:.1f} 10V{self.bottom}", x, self.bottom + 16, "middle", value))
        for value in ticks(*self.y_range) if y_label else ():
            y = self.y(value)
            parts.append(grid.format(f"M{self.left} {y:.1f}H408", self.left - 6, y + 4, "end", value))
        name = Markup('<text class="label" transform="translate({} {}) rotate({})" text-anchor="middle">{}</text>')
        parts.append(name.format((self.left + 408) / 2, self.bottom + 34, 0, x_label))
        parts.append(name.format(11, self.bottom / 2 + 5, -90, y_label))
        svg = Markup('<svg viewBox="0 0 420 {}" role="img" aria-label="{}">{}</svg>')
        return svg.format(self.bottom + 40, title, Markup("").join(parts + marks))


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers inside a range.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def padded(values: list[float], share: float = 0.06) -> tuple[float, float]:
    spread = (max(values) - min(values) or abs(values[0]) or 1.0) * share
    return min(values) - spread, max(values) + spread


def loss_charts(data: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    sft, control = data["metrics"]["sft"], data["metrics"]["baselines/sft"]
    supervised = [
        (model_name("sft"), "green", sft, "loss"),
        (model_name("baseline-sft"), "orange dashed", control, "loss"),
    ]
    yield line_chart("Supervised fine-tuning", supervised)
    for one in data["rounds"]:
        rows = data["metrics"][f"round-{one['number']}/strong"]
        joint = any("weak_loss" in row for row in rows)
        branches = [("strong alone", "blue", rows, "strong_loss"), ("weak alone", "grey dashed", rows, "weak_loss")]
        title = f"{'Joint' if joint else 'Strong-only'} training, round {one['number']}"
        yield line_chart(title, [("mixed" if joint else "loss", "purple", rows, "loss"), *branches])


def line_chart(title: str, series: list[tuple[str, str, list[dict[str, Any]], str]]) -> dict[str, Any] | None:
    """Curves of (name, css, rows, key) over the optimizer step; a logged value that is no number leaves a gap."""
    curves, notes, gaps = [], [], 0
    for name, css, rows, key in series:
        # A resumed run logs some steps twice; the later line belongs to the weights that were kept.
        by_step = {
            step: number(row[key]) for row in rows if key in row and (step := number(row.get("step"))) is not None
        }
        points = sorted(by_step.items())
        gaps += sum(value is None for _, value in points)
        if (stride := math.ceil(len(points) / CURVE_POINTS)) > 1:
            groups = [points[i : i + stride] for i in range(0, len(points), stride)]
            points = [(group[-1][0], None if None in dict(group).values() else group[-1][1]) for group in groups]
            notes.append(f"{name}: one of every {stride} logged steps is drawn.")
        if any(value is not None for _, value in points):
            curves.append((name, css, points))
    if gaps:
        notes.append(f"Logged values that are not numbers: {gaps}, shown as gaps.")
    if not curves:
        return None
    drawn = [(step, value) for *_, points in curves for step, value in points if value is not None]
    axes = Axes(padded([step for step, _ in drawn], 0.02), padded([value for _, value in drawn]))
    marks = []
    for name, css, points in curves:
        path, pen, last = "", "M", ""
        for step, value in points:
            if value is not None:
                # h0 shows a lone point between two gaps as a dot.
                path += f"{pen}{axes.x(step):.1f} {axes.y(value):.1f}" + ("h0" if pen == "M" else "")
                last = f"{name}: {value:.4g} at step {step:g}"
            pen = "M" if value is None else "L"
        marks.append(Markup('<path class="curve {}" d="{}"><title>{}</title></path>').format(css, path, last))
    svg = axes.draw(title, "optimizer step", "loss per token, nats", marks)
    return {"title": title, "svg": svg, "legend": [(css, name) for name, css, _ in curves], "caption": " ".join(notes)}


def entropy_scatter(one: dict[str, Any]) -> dict[str, Any] | None:
    """A point per example: its entropy under the weak model against that under the strong one."""
    points = one["points"]
    if not points:
        return None
    notes = [f"{one['usable']:,} examples; below the diagonal the strong model is surer than the weak one."]
    if one["left_out"]:
        notes.append(f"{one['left_out']:,} more lack an entropy under one of the two and are left out.")
    if one["usable"] > len(points):
        notes.append(f"A random {SCATTER_POINTS:,} of them are drawn.")
    limit = padded([0.0, *(point[role] for point in points for role in ("weak", "strong"))], 0.03)[1]
    axes = Axes((0.0, limit), (0.0, limit), height=400)
    marks = [Markup('<path class="diagonal" d="M{} {}L408 10"/>').format(axes.left, axes.bottom)]
    mark = Markup('<circle class="point {}" cx="{:.1f}" cy="{:.1f}" r="2.6"><title>{}</title></circle>')
    for point in points:
        x, y, times = point["weak"], point["strong"], number(point["draws"])
        css = "blue chosen" if times else "grey"
        told = "draw not recorded" if times is None else f"drawn {times:g} time{'s' * (times != 1)}"
        title = f"{point['id']}: weak {x:.3f}, strong {y:.3f}, {told}\n{point['question']}"
        marks.append(mark.format(css, axes.x(x), axes.y(y), title))
    title = f"Entropy of each example, round {one['number']}"
    x_label, y_label = (f"{role}: {model_name(one[role])}, nats per token" for role in ("weak", "strong"))
    legend = [("blue", "chosen"), ("grey hollow", "not chosen")] if one["drawn"] else [("grey hollow", "no draw yet")]
    return {
        "title": title,
        "svg": axes.draw(title, x_label, y_label, marks),
        "legend": legend,
        "caption": " ".join(notes),
    }


def odds_chart(one: dict[str, Any]) -> dict[str, Any] | None:
    """A histogram of the sampling probability as a multiple of the uniform one."""
    bars, whole = one["bars"], sum(bar["examples"] for bar in one["bars"])
    if not whole:
        return None
    tallest = max(bar["examples"] for bar in bars)
    axes = Axes((0.0, bars[-1]["high"]), (0.0, 105 * tallest / whole))
    mark = Markup(
        '<g><title>{}</title><path class="bar grey" d="M{left:.1f} {base}V{all:.1f}H{right:.1f}V{base}"/>'
        '<path class="bar blue chosen" d="M{left:.1f} {base}V{chosen:.1f}H{right:.1f}V{base}"/></g>'
    )
    marks = []
    for bar in bars:
        told = f"{bar['low']:.2f} to {bar['to']:.2f} times uniform: {bar['examples']:,} examples"
        marks.append(
            mark.format(
                f"{told}, {bar['chosen']:,} of them chosen",
                left=axes.x(bar["low"]) + 0.8,
                right=axes.x(bar["high"]) - 0.8,
                base=axes.bottom,
                all=axes.y(100 * bar["examples"] / whole),
                chosen=axes.y(100 * bar["chosen"] / whole),
            )
        )
    title = f"Sampling probability, round {one['number']}"
    last = bars[-1]
    beyond = f" The last bar reaches to {last['to']:.3g} times." if last["to"] > last["high"] else ""
    return {
        "title": title,
        "svg": axes.draw(title, "probability in one draw, times uniform", "share of the examples, per cent", marks),
        "legend": [("blue", "chosen"), ("grey hollow", "not chosen")],
        "caption": f"1 is what each example would have if all were equally likely.{beyond}",
    }


def interval_chart(benchmark: str, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    rows = [row for row in rows if row["benchmark"] == benchmark and row["accuracy"] is not None]
    if not rows:
        return None
    ends = [100 * row[key] for row in rows for key in ("low", "accuracy", "high") if row[key] is not None]
    axes = Axes(padded(ends), (0.0, 1.0), left=166, height=58 + 28 * len(rows))
    mark = Markup(
        '<g class="{}"><title>{}</title><path class="whisker" d="M{:.1f} {y}H{:.1f}"/>'
        '<circle class="dot" cx="{:.1f}" cy="{y}" r="5"/></g><text x="156" y="{y}" dy="4" text-anchor="end">{}</text>'
    )
    marks = []
    for i, row in enumerate(rows):
        low, middle, high = (
            axes.x(100 * (row["accuracy"] if row[key] is None else row[key])) for key in ("low", "accuracy", "high")
        )
        title = f"{row['name']}: {score(row)}"
        marks.append(mark.format(colour(row["model"]), title, low, high, middle, row["name"], y=26 + 28 * i))
    svg = axes.draw(f"Accuracy on {benchmark}", "accuracy, per cent", "", marks)
    return {"title": benchmark, "svg": svg, "legend": [], "caption": "Dot: accuracy. Line: 95% interval."}
