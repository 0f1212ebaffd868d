"""Figures of a sweep: the numbers of its table, gaps where there is none, and pictures that can be drawn."""

import pytest

from weakdriven.report.figure import write_figures
from weakdriven.report.sweep.figures import figures_of
from weakdriven.report.sweep.files import as_cells, as_markdown, tables


def row(point, model, role, score=None, *, shared=False, seeds=("42", "43"), **more):
    made = {"point": point, "model": model, "name": model, "role": role, "shared": shared, "seeds": []}
    if score is not None:
        spread = {"interval": [score - 0.1, score + 0.1], "by_seed": [score - 0.02, score + 0.02]}
        halves = {name: {"accuracy": score + by, **spread} for name, by in (("easy", 0.1), ("hard", -0.1))}
        made |= {"seeds": list(seeds), "score": score, **spread, "benchmarks": halves}
    return made | more


def sweep(points, summary, *axes, start=None):
    """What sweep.json holds; `points` maps a name to its places on the axes."""
    return {
        "recipe": "demo",
        "grids": ["grid"],
        "axes": [{"label": axis, "keys": [], "start": start} for axis in axes],
        "points": {
            name: {"values": dict(zip(axes, values, strict=True)), "settings": {}} for name, values in points.items()
        },
        "seeds": ["42", "43"],
        "default": None,
        "runs": {f"{name}/seed-{seed}": {"status": "done", "model": "round-1"} for name in points for seed in (42, 43)},
        "summary": summary,
    }


def weights(scores=(0.3, 0.5, None, 0.6)):
    """Four values in no order, one without a result, and a control that is the same everywhere."""
    points = {f"w{value}": (value,) for value in (0.5, 0.1, 0.9, 0.3)}
    summary = [row(name, "round-1", "result", score) for name, score in zip(points, scores, strict=True)]
    summary += [row(name, "baseline-sft", "control", 0.4, shared=True) for name in points]
    return sweep(points, summary, "weight")


def values(figure, layer=None):
    return (figure.spec if layer is None else figure.spec["layer"][layer])["data"]["values"]


def drawn(figures, folder):
    """Files of the figures; every mark that should be there is."""
    paths = write_figures(figures, folder)
    assert all(path.stat().st_size > 1000 for path in paths) and len(paths) == 2 * len(figures)
    return {path.stem: path.read_text() for path in paths if path.suffix == ".svg"}


def test_a_numeric_axis_gives_a_curve_in_order_with_the_tables_numbers(tmp_path):
    curve, benchmarks = figures_of(weights())
    own = [one for one in values(curve) if not one.get("control")]
    assert [(one["x"], one["score"]) for one in own] == [(0.1, 50), (0.3, 60), (0.5, 30), (0.9, None)]
    assert own[0]["low"] == 40 and own[0]["high"] == 60
    held = [one for one in values(curve) if one.get("control")]
    assert [one["score"] for one in held] == [40] * 4 and "baseline-sft, the same at every point" in curve.caption
    seeds = {(one["x"], one["seed"]): one["score"] for one in values(curve, 3)}
    assert seeds[0.1, "42"] == 48 and seeds[0.1, "43"] == 52 and len(seeds) == 6
    assert [one["score"] for one in values(benchmarks) if one["benchmark"] == "hard"] == [40, 50, 20, None]
    assert drawn([curve, benchmarks], tmp_path)["sweep"].count("<path") > 8


@pytest.mark.parametrize("broken", [None, float("nan"), float("inf")])
def test_what_is_no_number_is_a_gap(tmp_path, broken):
    found = weights((0.3, 0.5, 0.7, 0.6))
    found["summary"][3] |= {"score": broken, "interval": [broken, broken]}
    curve, _ = figures_of(found)
    at = {one["x"]: one for one in values(curve) if not one.get("control")}
    assert at[0.3]["score"] is None and at[0.3]["low"] is None and at[0.5]["score"] == 30
    svg = drawn([curve], tmp_path)["sweep"]
    assert "NaN" not in svg and "Infinity" not in svg
    line = svg.split("mark-line role-mark layer_1")[1].split(' d="')[1].split('"')[0]
    assert line.count("M") == 2, "the line breaks at the gap"


def test_values_over_magnitudes_get_a_logarithmic_axis(tmp_path):
    points = {f"r{rate}": (rate,) for rate in (1e-6, 1e-5, 1e-4)}
    curve = figures_of(sweep(points, [row(name, "round-1", "result", 0.5) for name in points], "rate"))[0]
    assert curve.spec["encoding"]["x"]["scale"]["type"] == "log"
    drawn([curve], tmp_path)


def test_a_start_puts_m1_before_both_curves(tmp_path):
    points = {f"epochs-{n}": (n,) for n in (2, 3)}
    summary = [row(name, f"round-{n}", "result", 0.5 + n / 10) for n, name in enumerate(points, 1)]
    summary += [row(name, "baseline-sft", "control", 0.5 - n / 10) for n, name in enumerate(points, 1)]
    summary += [row(name, "sft", "other", 0.25, shared=True) for name in points]
    curve = figures_of(sweep(points, summary, "epochs", start=1))[0]
    for control in (False, True):
        path = [(one["x"], one["score"]) for one in values(curve) if bool(one.get("control")) == control]
        assert path == [(1, 25), (2, 60 - 20 * control), (3, 70 - 40 * control)]
    assert len({one["series"] for one in values(curve)}) == 2, "rounds of one method are one curve"
    drawn([curve], tmp_path)


def test_two_numeric_axes_give_a_heat_map_with_an_empty_cell_for_a_failure(tmp_path):
    points = {f"{x}-{y}": (x, y) for x in (1, 2) for y in (0.1, 0.2)}
    scores = dict(zip(points, (0.1, 0.2, 0.3, None), strict=True))
    (heat,) = figures_of(sweep(points, [row(n, "round-1", "result", s) for n, s in scores.items()], "x", "y"))
    cells = {(one["x"], one["y"]): one["label"] for one in values(heat)}
    assert cells == {(1, 0.1): "10.0", (1, 0.2): "20.0", (2, 0.1): "30.0", (2, 0.2): "–"}
    svg = drawn([heat], tmp_path)["sweep"]
    assert svg.split("mark-rect role-mark")[1].split("</g>")[0].count("<path") == 3


def test_a_numeric_axis_beside_words_gives_a_curve_for_each_word(tmp_path):
    points = {f"{x}-{w}": (x, w) for x in (0.1, 0.2) for w in ("joint", "frozen")}
    curve = figures_of(sweep(points, [row(name, "round-1", "result", 0.5) for name in points], "x", "weak"))[0]
    assert {one["series"] for one in values(curve)} == {"joint", "frozen"}
    drawn([curve], tmp_path)


def test_words_give_dots_with_intervals_in_the_order_of_the_sweep(tmp_path):
    points = {name: (name,) for name in ("default", "A", "B")}
    summary = [row(name, "round-1", "result", score) for name, score in zip(points, (0.5, None, 0.4), strict=True)]
    summary += [row(name, "baseline-sft", "control", 0.3, shared=True) for name in points]
    figures = figures_of(sweep(points, summary, "setup"))
    assert [figure.name for figure in figures] == ["sweep", "sweep-benchmarks"]
    own = {one["point"]: one["score"] for one in values(figures[0]) if one["series"] == "WMSS, round 1"}
    assert own == {"default": 50, "A": None, "B": 40}
    assert figures[0].spec["encoding"]["y"]["sort"] == ["default", "A", "B", "baseline-sft"], "one line for the control"
    assert len(values(figures[0])) == 4
    drawn(figures, tmp_path)
    for one in summary[3:]:
        one |= {"shared": False, "score": one["score"] + 0.01 * len(one["point"])}
    dots = figures_of(sweep(points, summary, "setup"))[0]
    held = {one["point"]: one["score"] for one in values(dots) if one.get("control")}
    assert held == {"default": 37, "A": 31, "B": 31} and dots.spec["encoding"]["y"]["sort"] == ["default", "A", "B"]
    drawn([dots], tmp_path)


def test_snapshots_are_a_line_over_the_steps_for_each_point(tmp_path):
    points, summary = {"with": ("with",), "without": ("without",)}, []
    for name, steps in (("with", 100), ("without", 200)):
        summary += [row(name, "sft", "other", 0.2, shared=True, steps=150)]
        summary += [row(name, "round-1-at-50", "snapshot", 0.3, steps=steps / 2)]
        summary += [row(name, "round-1", "result", 0.5, steps=steps)]
        summary += [row(name, "baseline-sft_restart", "control", 0.3, shared=True, steps=200)]
        summary += [row(name, "baseline-sft_restart-at-50", "snapshot", 0.25, shared=True, steps=100)]
    figures = figures_of(sweep(points, summary, "selection"))
    steps = figures[-1]
    assert steps.name == "sweep-steps"
    lines = {}
    for one in values(steps):
        lines.setdefault(one["series"], []).append((one["steps"], one["score"]))
    assert lines == {
        "with": [(0, 20), (50, 30), (100, 50)],
        "without": [(0, 20), (100, 30), (200, 50)],
        "baseline-sft_restart": [(0, 20), (100, 25), (200, 30)],
    }
    drawn(figures, tmp_path)


def test_a_sweep_without_a_result_has_no_figure_and_a_table_that_says_so():
    found = weights((None,) * 4) | {"runs": {"w0.5/seed-42": {"status": "failed", "reason": "no memory left"}}}
    assert figures_of(found) == []
    text = as_markdown(found)
    assert "- w0.5/seed-42: no memory left" in text and "Runs: 0 of 8 done, 1 failed." in text
    assert [cells[1:3] for cells in tables(found)["Points"][1]] == [["0", "–"]] * 4


def test_columns_hold_what_csv_and_parquet_can():
    assert as_cells([1, 2.5, None]) == [1.0, 2.5, None] and as_cells([1, 2]) == [1, 2]
    assert as_cells([[1, 2], None]) == ["[1, 2]", None]
    assert as_cells(["a", 1, True]) == ["a", "1", "true"]
