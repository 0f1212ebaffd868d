"""Draws the figures of docs/background/theory*.md from the checks: python -m research.theory.figures [folder].

Each figure is an SVG file, readable on light and dark pages, and drawn without a plotting library.
"""

import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from markupsafe import Markup

import research.theory as theory
from research.theory import counterexamples as cases
from research.theory.counterexamples import Case

FOLDER = Path(__file__).parents[2] / "docs/background/theory"
COLOURS = {"blue": "#3b82f6", "orange": "#e07b1a", "green": "#2f9e5b", "purple": "#a05be0", "grey": "#8a8f98"}
STYLE = (
    "svg{color:#1f2328;font:12px system-ui,sans-serif}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}"
    "text{fill:currentColor}.grid{stroke:currentColor;stroke-opacity:.15}.zero{stroke:currentColor;stroke-opacity:.5}"
    + "".join(f".{name}{{stroke:{value};fill:{value}}}" for name, value in COLOURS.items())
    + ".curve{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4}.dotted{stroke-dasharray:1.5 3.5}"
    ".bar,.area{stroke:none}.area{fill-opacity:.28}.wide{stroke-width:12;stroke-opacity:.28}"
)
WEIGHTS = [i / 100 for i in range(101)]
"""Strong weights at which curves are computed."""
LEGEND_ROW = 18


class Axes:
    """Maps values to a drawing and draws the grid, with space for labels at the left and below."""

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
    """Return about five round numbers inside a range.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class Figure:
    """Marks over the report's axes, with a legend below them."""

    def __init__(self, title: str, x: tuple[str, float, float], y: tuple[str, float, float]) -> None:
        self.title, self.labels = title, (x[0], y[0])
        self.axes = Axes(x[1:], y[1:], left=54)
        self.marks: list[Markup] = []
        self.legend: list[tuple[str, str]] = []

    def curve(self, css: str, points: Iterable[tuple[float, float]], name: str = "") -> None:
        """Draw a curve; points outside of the axes are left out."""
        low, high = self.axes.y_range
        places = [f"{self.axes.x(x):.1f} {self.axes.y(y):.1f}" for x, y in points if low <= y <= high]
        self.marks.append(Markup('<path class="curve {}" d="M{}"/>').format(css, "L".join(places)))
        self._explain(css, name)

    def across(self, css: str, y: float, name: str = "") -> None:
        self.curve(css, [(x, y) for x in self.axes.x_range], name)

    def upright(self, css: str, x: float, name: str = "") -> None:
        self.curve(css, [(x, y) for y in self.axes.y_range], name)

    def dot(self, css: str, x: float, y: float, text: str, side: str = "right") -> None:
        mark = Markup(
            '<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="4"/><text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>'
        )
        across, down, anchor = {"right": (8, 4, "start"), "above": (0, -9, "middle"), "below": (-4, 18, "start")}[side]
        place = self.axes.x(x), self.axes.y(y)
        self.marks.append(mark.format(css, *place, place[0] + across, place[1] + down, anchor, text))

    def area(self, css: str, corners: tuple[float, float, float, float], name: str = "") -> None:
        left, right, low, high = corners
        mark = Markup('<path class="area {}" d="M{:.1f} {:.1f}H{:.1f}V{:.1f}H{:.1f}"/>')
        x, y = self.axes.x, self.axes.y
        self.marks.append(mark.format(css, x(left), y(low), x(right), y(high), x(left)))
        self._explain(f"wide {css}", name)

    def bar(self, css: str, left: float, right: float, height: float, name: str = "") -> None:
        mark = Markup('<path class="bar {}" d="M{:.1f} {:.1f}V{:.1f}H{:.1f}V{:.1f}"/>')
        x, y = self.axes.x, self.axes.y
        self.marks.append(mark.format(css, x(left), y(0), y(height), x(right), y(0)))
        self._explain(css, name)

    def _explain(self, css: str, name: str) -> None:
        if name:
            self.legend.append((css, name))

    def svg(self) -> str:
        bottom = self.axes.bottom + 40
        height = bottom + LEGEND_ROW * len(self.legend) + 4
        row = Markup('<path class="curve {}" d="M{left} {y}H{right}"/><text x="{text}" y="{y}" dy="4">{}</text>')
        marks = self.marks + [
            row.format(css, name, left=self.axes.left, right=self.axes.left + 24, text=self.axes.left + 32, y=y)
            for y, (css, name) in zip(range(bottom + 12, height, LEGEND_ROW), self.legend, strict=False)
        ]
        drawn = str(self.axes.draw(self.title, *self.labels, marks))
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="560" height="{round(height * 560 / 420)}" '
        drawn = drawn.replace("<svg ", head, 1).replace(f'viewBox="0 0 420 {bottom}"', f'viewBox="0 0 420 {height}"', 1)
        return drawn.replace(">", f"><style>{STYLE}</style>", 1).replace("><", ">\n<") + "\n"


def over_weights(value: Callable[[float], float]) -> list[tuple[float, float]]:
    return [(weight, value(weight)) for weight in WEIGHTS]


STRONG_WEIGHT = ("strong weight", 0.0, 1.0)


def gradients() -> Figure:
    figure = Figure("Gradient by each logit", ("token (0 is the target)", -0.6, 3.6), ("gradient", -0.25, 0.18))
    sft = theory.branch_gradients(*cases.TYPICAL, strong_weight=1.0).strong.left[0]
    strong, weak = (check.left[0] for check in theory.branch_gradients(*cases.TYPICAL))
    shown = [
        ("grey", "SFT of the strong model", sft),
        ("purple", "by the mixed logits", strong + weak),
        ("blue", "by the strong logits (strong weight 0.5)", strong),
    ]
    for place, (css, name, values) in enumerate(shown):
        for token, height in enumerate(values.tolist()):
            left = token - 0.36 + 0.24 * place
            figure.bar(css, left, left + 0.22, height, "" if token else name)
    figure.across("zero", 0)
    return figure


def margins() -> Figure:
    figure = Figure("Margins of the mixture", STRONG_WEIGHT, ("margin of the mixed logits", 0, 5.4))
    for token, css in ((1, "blue"), (2, "orange"), (3, "green")):
        mixed = [(w, theory.mixed_margins(*cases.TYPICAL, strong_weight=w).left[0, token].item()) for w in (0, 0.5, 1)]
        figure.curve(css, mixed, f"token {token}, from its weak to its strong margin")
    return figure


def negative_mass() -> Figure:
    figure = Figure("Probability of all tokens but the target", STRONG_WEIGHT, ("negative mass", 0, 0.52))
    shown: list[tuple[str, Case, str]] = [
        ("blue", cases.TYPICAL, "TYPICAL: every margin narrows"),
        ("green", cases.ONE_EXCEPTION, "ONE_EXCEPTION: one widens, the mean narrows"),
        ("orange", cases.TWO_SIDED, "TWO_SIDED: the mean widens"),
        ("purple", cases.SURER_WEAK, "SURER_WEAK: every margin widens"),
    ]
    for css, case, name in shown:
        figure.curve(
            css + " dashed" * (css == "green"),
            over_weights(lambda w, case=case: theory.negative_mass(*case, strong_weight=w).mixed_T.item()),
            name,
        )
    figure.across("grey dotted", theory.negative_mass(*cases.TYPICAL).strong_T.item(), "strong model alone")
    return figure


def amplification() -> Figure:
    wide = 3.6
    title, steps = "Which negatives gain, at strong weight 0.5", [wide * i / 100 for i in range(101)]
    figure = Figure(title, ("narrowing: strong margin less weak margin", 0, wide), ("P_mix(y) / P_strong(y)", 0, 1.25))
    for css, check, name in (
        ("purple", theory.token_amplification, "above it, the token's probability grows"),
        ("blue", theory.branch_amplification, "above it, the strong branch's gradient grows"),
    ):
        # two tokens with equal strong logits, of which the weak model raises the second by the narrowing
        figure.curve(css, [(x, check([0.0, 0], [0.0, x], 0).threshold_TV[0, 1].item()) for x in steps], name)
    for case, token, css, text, side in (
        (cases.TYPICAL, 1, "green", "TYPICAL 1, 2", "above"),
        (cases.TYPICAL, 3, "green", "3", "right"),
        (cases.NOT_AMPLIFIED, 1, "orange", "NOT_AMPLIFIED 1", "below"),
        (cases.NOT_AMPLIFIED, 2, "orange", "2", "right"),
        (cases.NET_LOSS, 1, "grey", "NET_LOSS 1", "right"),
    ):
        found = theory.token_amplification(*case)
        narrowing = -2 * math.log(found.threshold_TV[0, token].item())
        figure.dot(css, narrowing, found.target_ratio_T.item(), text, side)
    return figure


def convexity() -> Figure:
    figure = Figure("Loss of the mixture", STRONG_WEIGHT, ("cross-entropy, nats", 0, 0.75))
    found = [(w, theory.convexity(*cases.TYPICAL, strong_weight=w)) for w in WEIGHTS]
    figure.curve("purple", [(w, check.left.item()) for w, check in found], "mixed loss")
    figure.curve("grey dashed", [(w, check.right.item()) for w, check in found], "chord of the two models' losses")
    return figure


def gap_bound() -> Figure:
    title = "A token that both models find unlikely"
    figure = Figure(title, STRONG_WEIGHT, ("|P_mix - P_strong| on it", -0.004, 0.045))
    found = [(w, theory.entry_gap_bound(*cases.BOTH_UNLIKELY, strong_weight=w)) for w in WEIGHTS]
    figure.curve("orange", [(w, check.left[0, 2].item()) for w, check in found], "the effect of mixing")
    figure.curve("grey dashed", [(w, check.right[0, 2].item()) for w, check in found], "the bound that is claimed")
    return figure


def total_variation() -> Figure:
    figure = Figure("Distance of the mixture from the strong model", STRONG_WEIGHT, ("total variation", 0, 1.05))
    for css, case, name in (("orange", cases.BOTH_UNLIKELY, "BOTH_UNLIKELY"), ("blue", cases.TYPICAL, "TYPICAL")):
        found = [(w, theory.total_variation_bound(*case, strong_weight=w)) for w in WEIGHTS]
        figure.curve(css, [(w, check.left.item()) for w, check in found], f"{name}: P_mix from P_strong")
        figure.curve(css + " dashed", [(w, check.right.item()) for w, check in found], "P_weak from P_strong")
    return figure


def step() -> Figure:
    figure = Figure("One step on the logits", ("learning rate", 0, 12), ("change of the mixed loss", -0.42, 0.22))
    found = [(i / 10, theory.sgd_step(*cases.TYPICAL, learning_rate=i / 10)) for i in range(0, 121)]
    figure.curve("purple", [(rate, x.exact_T.item()) for rate, x in found], "exact")
    figure.curve("grey dashed", [(rate, x.predicted_T.item()) for rate, x in found], "first order")
    figure.curve("grey dotted", [(rate, x.highest_T.item()) for rate, x in found], "plus the most that curvature adds")
    figure.across("zero", 0)
    return figure


def shielding() -> Figure:
    figure = Figure("Gradient and curvature as the mixture becomes sure", ("P_mix(y)", 0, 1), ("size", 0, 2.05))

    def at(p: float, rivals: int):
        """Spread the probability that is not the target's evenly over some rivals."""
        row = [math.log(p), *[math.log((1 - p) / rivals)] * rivals]
        return theory.shielding(row, row, 0)

    inside = [i / 100 for i in range(1, 100)] + [0.999]
    figure.curve("blue", [(p, at(p, 1).gradient_T.item()) for p in inside], "sum of |gradient|")
    figure.curve("orange", [(p, at(p, 1).trace_T.item()) for p in inside], "trace of the Hessian, one rival")
    figure.curve("orange dashed", [(p, at(p, 200).trace_T.item()) for p in inside], "trace of the Hessian, 200 rivals")
    return figure


def rate() -> Figure:
    ratio = theory.sensitivity_ratio(1240.10, 1191.33)
    figure = Figure("Rate of a step and the crossover", STRONG_WEIGHT, ("S(strong weight)", 0.45, 1.12))
    figure.area("green", (0.42, 0.50, 0.45, 1.12), "best weights in the paper's sweep")
    figure.curve(
        "purple",
        over_weights(lambda w: theory.first_order_rate(w, ratio)),
        "first-order rate, sensitivity ratio 1.0836",
    )
    figure.upright("orange", theory.slowest_weight(ratio), f"slowest weight {theory.slowest_weight(ratio):.3f}")
    figure.upright("blue dashed", theory.crossover(ratio), f"crossover {theory.crossover(ratio):.3f}")
    return figure


def residual() -> Figure:
    title = "What the strong branch contributes"
    figure = Figure(title, STRONG_WEIGHT, ("fall of the mixed loss, thousandths", 0, 18.5))

    def share(weight: float) -> float:
        """Return the strong model's contribution, at first order and learning rate 1."""
        step = theory.sgd_step(*cases.TYPICAL, learning_rate=1, strong_weight=weight, freeze_weak=True)
        return -1000 * step.predicted_T.item()

    figure.curve("blue", over_weights(share), "TYPICAL, its residual at each strong weight")
    figure.curve("grey dashed", over_weights(lambda w: w**2 * share(1)), "the same, residual held fixed as in S")
    return figure


def gamma_unique(variation: float) -> float:
    """Compute the share of distinct rows in N draws with gamma-distributed weights, for large N.

    >>> round(gamma_unique(1e-4), 4), round(gamma_unique(1.0), 4)
    (0.6321, 0.5)
    """
    return -math.expm1(-math.log1p(variation**2) / variation**2)


def unique() -> Figure:
    title = "Rows that a draw of N from N rows holds"
    figure = Figure(title, ("coefficient of variation of the weights", 0, 1.5), ("share of the rows", 0.38, 0.66))
    figure.area("green", (0, 1.5, 123 * 512 / 111_657, (124 * 512 - 1) / 111_657), "the paper's 123 steps of 512")
    uniform = theory.unique_rows([1 / 111_657] * 111_657).fraction
    figure.across("grey dotted", uniform, f"uniform weights: {uniform:.4f}")
    figure.curve("purple", [(i / 100, gamma_unique(i / 100)) for i in range(1, 151)], "gamma-distributed weights")
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "gradients": gradients,
    "margins": margins,
    "negative-mass": negative_mass,
    "amplification": amplification,
    "convexity": convexity,
    "gap-bound": gap_bound,
    "total-variation": total_variation,
    "step": step,
    "shielding": shielding,
    "rate": rate,
    "residual": residual,
    "unique": unique,
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
