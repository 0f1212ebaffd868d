"""`weakdriven report compare`: one page for several runs, a comparison or a sweep: scores, tests, costs and gains."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from weakdriven.errors import UserError
from weakdriven.report import validation
from weakdriven.report.compare import table
from weakdriven.report.figure import Figure, write_figures
from weakdriven.report.format import colour, duration, with_brackets
from weakdriven.report.html import render
from weakdriven.report.plots import category, interval_figure, layer, number_tip, present, quantity
from weakdriven.report.results import Row
from weakdriven.report.settings import read_settings, sources_of
from weakdriven.report.sweep import files as sweep
from weakdriven.report.sweep.figures import figures_of
from weakdriven.runs.directory import RECIPE_FILE, RUN_FILE
from weakdriven.runs.files import write_text

PAGE = "compare.html"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


def write_compare(paths: Sequence[Path], out: Path | None = None, *, against: str | None = None) -> Path:
    """Write the page and its figures; return the page's path.

    Args:
        paths: Run directories, or one folder of `weakdriven compare` or `weakdriven sweep`.
        out: Path of the page; by default compare.html in the one folder, else in the working directory.
        against: Label of the reference, for run directories.
    """
    board = board_of(paths, against)
    page = out or (paths[0] if len(paths) == 1 else Path()) / PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, render("compare.html.j2", board, board["drawn"]))
    write_figures(board["drawn"], page.with_name(f"{page.stem}-figures"))
    return page


def board_of(paths: Sequence[Path], against: str | None) -> Row:
    if all((path / RUN_FILE).is_file() for path in paths):
        found = table.runs_compared(paths, against)
        return board_of_rows(found, table.CAPTION, found["missing"]) | what_was_run(paths, found["common"])
    if len(paths) == 1 and not against and (paths[0] / table.COMPARE_FILE).is_file():
        found = table.compare_runs(paths[0])
        runs = [paths[0] / folder for folder in found["seeds"].values()]
        board = board_of_rows(found, table.caption(found), table.failures(found))
        return board | what_was_run(runs, table.benchmarks_of(found["rows"]))
    if len(paths) == 1 and not against and (paths[0] / sweep.SWEEP_FILE).is_file():
        return board_of_sweep(paths[0])
    raise UserError(
        f"{', '.join(map(str, paths))}: expected run directories (with {RUN_FILE}), or, without --against, one folder "
        f"of weakdriven compare (with {table.COMPARE_FILE}) or weakdriven sweep (with {sweep.SWEEP_FILE})."
    )


def what_was_run(runs: Iterable[Path], benchmarks: Sequence[str]) -> Row:
    """List the models and data of the runs without repeats."""
    files = [run / RECIPE_FILE for run in runs]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()]
    recipes = [read_settings({"recipe_text": text}) for text in texts]
    models = dict.fromkeys(str(recipe["model"]) for recipe in recipes if recipe.get("model"))
    sources = dict.fromkeys(source for recipe in recipes for source in sources_of(recipe))
    return {"model": ", ".join(models), "sources": ", ".join(sources), "benchmarks": ", ".join(benchmarks)}


def board_of_rows(found: Row, caption: str, missing: list[str]) -> Row:
    rows, against = found["rows"], found["against_name"]
    scored = sorted((row for row in rows if "score" in row), key=lambda row: -row["score"])
    losses = validation.loss_dots(rows)
    tested = [
        dot(row, row["against"]["difference"], row["against"]["interval"], "+") for row in scored if "against" in row
    ]
    figures = [
        interval_figure("scores", "Score", [dot(row, row["score"], row["interval"]) for row in scored], x="percent"),
        interval_figure("gains", f"Difference from {against}", tested, x="points", rule=0.0),
        interval_figure("losses", "Validation loss", losses, x="nats per token"),
        cost_figure(rows),
    ]
    return {
        "name": f"{found['recipe']}: compared",
        "words": verdict(found),
        "outcome": outcome(scored),
        "caption": caption,
        "tables": table.tables(found),
        "drawn": present(figures),
        "missing": missing,
    }


def verdict(found: Row) -> list[str]:
    """Summarize the scores, or the validation losses if there are no scores."""
    rows, against = found["rows"], found["against_name"]
    scored = sorted((row for row in rows if "score" in row), key=lambda row: -row["score"])
    losses = any("validation" in row for row in rows)
    return validation.headline(rows, against) if losses and not scored else headline(scored, against)


def board_of_sweep(root: Path) -> Row:
    found = sweep.read_sweep(root)
    key = sweep.reference_of(found)
    results = []
    for row in (row for row in found["summary"] if row["role"] == "result"):
        place = {name: str(value) for name, value in sweep.place_of(found, row).items()}
        names = {
            "name": ", ".join(f"{name} {value}" for name, value in place.items()),
            "short": ", ".join(place.values()),
        }
        results.append(row | names | {"against": row.get(key)})
    board = {
        "name": f"{found['recipe']}: sweep",
        "words": headline([row for row in results if "score" in row], sweep.reference_name(found)),
        "caption": sweep.caption(found),
        "tables": sweep.tables(found),
        "drawn": present([*figures_of(found), cost_figure(results)]),
        "missing": sweep.failures(found),
    }
    return board | what_was_run(sweep.runs_of(found, root).values(), table.benchmarks_of(found["summary"]))


def headline(scored: list[Row], against: str) -> list[str]:
    """Compare WMSS with the reference; name the best row, the significant rows, and how many to expect by chance."""
    if not scored:
        return ["Nothing has been evaluated yet, so there is nothing to compare."]
    tested = [row for row in scored if row.get("against")]
    ours = wmss_rows(tested)
    best = max(scored, key=lambda row: row["score"])
    first = [row["name"] for row in scored if f"{100 * row['score']:.1f}" == f"{100 * best['score']:.1f}"]
    sentences = [against_words(row, against) for row in ours]
    if len(first) > 1:
        sentences.append(f"Highest score: {100 * best['score']:.1f} percent, by {' and '.join(first)}.")
    else:
        sentences.append(f"Highest score: {best['name']}, {with_brackets(best['score'], best['interval'])} percent.")
    if below := [row for row in scored if row.get("against_base") and row["against_base"]["difference"] < 0]:
        names = ", ".join(f"{row['name']} ({points_words(row['against_base'])})" for row in below)
        sentences.append(f"Below the untrained base model: {names}.")
    others = [row for row in tested if row not in ours]
    sure = {row["name"]: row["against"]["difference"] for row in others if is_significant(row["against"])}
    for word, sign in (("better", 1), ("worse", -1)):
        if names := [f"{name} ({100 * gain:+.1f} points)" for name, gain in sure.items() if gain * sign > 0]:
            sentences.append(f"Significantly {word} than {against}: {', '.join(names)}.")
    if rest := [row["name"] for row in others if row["name"] not in sure]:
        sentences.append(f"No significant difference from {against}: {', '.join(rest)}.")
    if len(tested) > 1:
        chance = f"about {0.05 * len(tested):.1g} would be significant by chance alone"
        sentences.append(f"{len(tested)} tests at the 5% level, not corrected: {chance}.")
    return sentences


def wmss_rows(tested: list[Row]) -> list[Row]:
    """Return the WMSS rows if there are at most two; a sweep has more, and its headline only lists them."""
    found = [row for row in tested if re.fullmatch(r"round-\d+", row.get("model") or "")]
    return found if len(found) < 3 else []


def outcome(scored: list[Row]) -> str:
    """Compare the one WMSS model with the reference, as on the page of a run."""
    found = [row["against"] for row in wmss_rows([row for row in scored if row.get("against")])]
    if len(found) != 1 or not is_significant(found[0]):
        return "open"
    return "better" if found[0]["difference"] > 0 else "worse"


def against_words(row: Row, against: str) -> str:
    one = row["against"]
    low, high = (100 * end for end in one["interval"])
    if is_significant(one):
        opening = f"{row['name']} is significantly {'better' if one['difference'] > 0 else 'worse'} than {against}"
    else:
        opening = f"No significant difference between {row['name']} and {against}"
    return f"{opening}: {100 * one['difference']:+.1f} points, 95% interval {low:+.1f} to {high:+.1f}."


def points_words(against: Row) -> str:
    sure = "" if is_significant(against) else ", not significant"
    return f"{100 * against['difference']:+.1f} points{sure}"


def is_significant(against: Row) -> bool:
    """Return whether the test over items is significant, and the test over seeds if there are several."""
    return against["p_items"] < 0.05 and (against["p_seeds"] is None or against["p_seeds"] < 0.05)


def dot(row: Row, value: float, interval: Sequence[float], sign: str = "") -> Row:
    low, high = (100 * end for end in interval)
    text, css = with_brackets(value, interval, sign), colour(row["model"])
    return {"label": row["name"], "colour": css, "value": 100 * value, "low": low, "high": high, "text": text}


def cost_figure(rows: list[Row]) -> Figure | None:
    values, colours = [], dict[str, str]()
    for row in (row for row in rows if row.get("against") and row.get("seconds") is not None):
        gain, (low, high) = row["against"]["difference"], row["against"]["interval"]
        value = {"name": row["name"], "minutes": row["seconds"] / 60, "gain": 100 * gain, "short": row.get("short", "")}
        values.append(value | {"low": 100 * low, "high": 100 * high, "took": duration(row["seconds"])})
        colours[row["name"]] = colour(row["model"])
    if not values:
        return None
    columns = 1 if max(map(len, colours)) > 24 else 2
    x = quantity("minutes", "minutes, without evaluation", scale={"zero": False, "padding": 24})
    y, css = quantity("gain", "points from the reference"), category("name", colours, legend={"columns": columns})
    tips = [{"field": "name"}, number_tip("gain", "points"), {"field": "took"}]
    mark = {"type": "point", "filled": True, "size": 80, "opacity": 1}
    shapes = [SHAPES[place % len(SHAPES)] for place in range(len(colours))]  # models of several runs share colours
    shape = {"field": "name", "type": "nominal", "scale": {"domain": [*colours], "range": shapes}}
    layers = [
        layer({"type": "rule", "strokeDash": [4, 4]}, y={"datum": 0}),
        layer({"type": "rule"}, x=x, y=y | {"field": "low"}, y2={"field": "high"}, color=css),
        layer(mark, x=x, y=y, color=css, shape=shape, tooltip=tips),
        layer({"type": "text", "align": "left", "dx": 8}, x=x, y=y, text={"field": "short"}),
    ]
    note = "Time from the base model on; shared stages count for each model."
    return Figure("cost-gain", "Cost against gain", {"height": 280, "data": {"values": values}, "layer": layers}, note)
