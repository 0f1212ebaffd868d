"""`weakdriven report compare`: several runs, a comparison or a sweep -> one page: leaderboard, tests, cost and gain."""

from collections.abc import Sequence
from pathlib import Path

from weakdriven.errors import UserError
from weakdriven.report import validation
from weakdriven.report.compare import table
from weakdriven.report.figure import Figure, write_figures
from weakdriven.report.format import duration, in_prose, with_brackets
from weakdriven.report.html import render
from weakdriven.report.plots import interval_figure, layer, number_tip, present, quantity
from weakdriven.report.results import Row
from weakdriven.report.sweep import files as sweep
from weakdriven.report.sweep.figures import figures_of
from weakdriven.runs.directory import RUN_FILE
from weakdriven.runs.files import write_text

PAGE = "compare.html"


def write_compare(paths: Sequence[Path], out: Path | None = None, *, against: str | None = None) -> Path:
    """Write the page and its figures; returns the page.

    Args:
        paths: Run directories, or one folder of `weakdriven compare` or `weakdriven sweep`.
        out: The page; unset: compare.html in the one folder, else in the working directory.
        against: Label of what the others are tested against, for run directories.
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
        return board_of_rows(found, table.CAPTION, found["missing"])
    if len(paths) == 1 and not against and (paths[0] / table.COMPARE_FILE).is_file():
        found = table.compare_runs(paths[0])
        return board_of_rows(found, table.caption(found), table.failures(found))
    if len(paths) == 1 and not against and (paths[0] / sweep.SWEEP_FILE).is_file():
        return board_of_sweep(paths[0])
    raise UserError(
        f"{', '.join(map(str, paths))}: expected run directories ({RUN_FILE}), or, alone and without --against, one "
        f"folder of weakdriven compare ({table.COMPARE_FILE}) or weakdriven sweep ({sweep.SWEEP_FILE})."
    )


def board_of_rows(found: Row, caption: str, missing: list[str]) -> Row:
    (titles, rows), costs = table.tables(found)
    scored = [row for row in found["rows"] if "score" in row]
    best_first, losses = sorted(scored, key=lambda row: -row["score"]), validation.loss_dots(found["rows"])
    order = [row["method"] for row in best_first] or [one["label"] for one in losses]
    rows.sort(key=lambda cells: order.index(cells[0]) if cells[0] in order else len(order))
    scores = [dot(row["method"], row["score"], row["interval"]) for row in best_first]
    tested = [(row["method"], row["against"]) for row in found["rows"] if "against" in row]
    gains = [dot(method, one["difference"], one["interval"], sign="+") for method, one in tested]
    figures = [
        interval_figure("scores", "Score", scores, x="score, percent"),
        interval_figure("gains", f"Difference from {found['against']}", gains, x="points", rule=0.0),
        interval_figure("losses", "Validation loss", losses, x="nats per token"),
        cost_figure(found["rows"]),
    ]
    return {
        "name": f"{found['recipe']}: compared",
        "words": verdict(found),
        "caption": caption,
        "tables": [("Leaderboard", titles, rows), ("Cost of each", *costs)],
        "drawn": present(figures),
        "missing": missing,
    }


def verdict(found: Row) -> list[str]:
    """What the scores say, or the validation losses if there are no scores."""
    scored = [row for row in found["rows"] if "score" in row]
    if not scored and validation.loss_dots(found["rows"]):
        return validation.headline(found["rows"], found["against"])
    return headline(scored, found["against"])


def board_of_sweep(root: Path) -> Row:
    found = sweep.read_sweep(root)
    results = [
        {**row, "method": row["point"], "against": row.get("against_control") or row.get("against_default")}
        for row in found["summary"]
        if row["role"] == "result"
    ]
    scored = [row for row in results if "score" in row]
    name = next((row["against"]["name"] for row in scored if row["against"]), "")
    reference = in_prose(name) if name.startswith("baseline-") else f"the point {name}" if name else "a control"
    return {
        "name": f"{found['recipe']}: sweep",
        "words": headline(scored, reference),
        "caption": sweep.caption(found),
        "tables": [(title, *table) for title, table in sweep.tables(found).items()],
        "drawn": present([*figures_of(found), cost_figure(results)]),
        "missing": sweep.failures(found),
    }


def headline(scored: list[Row], against: str) -> list[str]:
    """The best, which rows differ significantly from the reference, and how many would by chance."""
    if not scored:
        return ["Nothing has been evaluated yet, so there is nothing to compare."]
    best = max(scored, key=lambda row: row["score"])
    sentences = [f"Highest score: {best['method']}, {with_brackets(best['score'], best['interval'])} percent."]
    tested = [row for row in scored if row.get("against")]
    sure = [row for row in tested if is_significant(row["against"])]
    points = {row["method"]: 100 * row["against"]["difference"] for row in sure}
    for word, sign in (("better", 1), ("worse", -1)):
        if names := [f"{name} ({gain:+.1f} points)" for name, gain in points.items() if (gain > 0) == (sign > 0)]:
            sentences.append(f"Significantly {word} than {against}: {', '.join(names)}.")
    if rest := [row["method"] for row in tested if row not in sure]:
        sentences.append(f"No significant difference from {against}: {', '.join(rest)}.")
    if len(tested) > 1:
        chance = f"about {0.05 * len(tested):.1g} would be significant by chance alone"
        sentences.append(f"{len(tested)} tests at the 5% level, not corrected: {chance}.")
    return sentences


def is_significant(against: Row) -> bool:
    """Whether the test over problems and, if there are several seeds, the one over seeds are significant."""
    return against["p_items"] < 0.05 and (against["p_seeds"] is None or against["p_seeds"] < 0.05)


def dot(label: str, value: float, interval: Sequence[float], sign: str = "") -> Row:
    low, high = (100 * end for end in interval)
    text = with_brackets(value, interval, sign)
    return {"label": label, "colour": "blue", "value": 100 * value, "low": low, "high": high, "text": text}


def cost_figure(rows: list[Row]) -> Figure | None:
    values = []
    for row in (row for row in rows if row.get("against") and row.get("seconds") is not None):
        gain, (low, high) = row["against"]["difference"], row["against"]["interval"]
        value = {"name": row["method"], "minutes": row["seconds"] / 60, "gain": 100 * gain}
        values.append(value | {"low": 100 * low, "high": 100 * high, "took": duration(row["seconds"])})
    if not values:
        return None
    x = quantity("minutes", "minutes, without evaluation", scale={"zero": False})
    y = quantity("gain", "points gained")
    tips = [{"field": "name"}, number_tip("gain", "points"), {"field": "took"}]
    circle = {"type": "point", "filled": True, "size": 80, "opacity": 1, "color": "@blue"}
    layers = [
        layer({"type": "rule", "strokeDash": [4, 4]}, y={"datum": 0}),
        layer({"type": "rule", "color": "@blue"}, x=x, y=y | {"field": "low"}, y2={"field": "high"}),
        layer(circle, x=x, y=y, tooltip=tips),
        layer({"type": "text", "align": "left", "dx": 8, "dy": -6}, x=x, y=y, text={"field": "name"}),
    ]
    note = "Time from the base model on, as if shared stages had been computed for each alone."
    return Figure("cost-gain", "Cost against gain", {"height": 280, "data": {"values": values}, "layer": layers}, note)
