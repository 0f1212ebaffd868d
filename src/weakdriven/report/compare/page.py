"""`weakdriven report compare`: several runs, a comparison or a sweep -> one page: leaderboard, tests, cost and gain."""

from collections.abc import Sequence
from pathlib import Path

from weakdriven.errors import UserError
from weakdriven.report.compare.runs import runs_compared
from weakdriven.report.compare.table import COMPARE_FILE, caption, compare_runs, failures, tables
from weakdriven.report.figure import Figure, drawn_by_page, write_figures
from weakdriven.report.format import duration, in_prose, number, with_brackets
from weakdriven.report.html import render
from weakdriven.report.plots import interval_figure, layer, number_tip, present, quantity
from weakdriven.report.results import Row
from weakdriven.report.sweep.figures import figures_of
from weakdriven.report.sweep.files import caption as sweep_caption
from weakdriven.report.sweep.files import failures as sweep_failures
from weakdriven.report.sweep.files import read_sweep
from weakdriven.report.sweep.files import tables as sweep_tables
from weakdriven.runs.directory import RUN_FILE
from weakdriven.runs.files import write_text

PAGE = "compare.html"
SWEEP_FILE = "sweep.json"


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
    write_text(page, render("compare.html.j2", board | {"figures": drawn_by_page(board["drawn"])}))
    write_figures(board["drawn"], page.with_name(f"{page.stem}-figures"))
    return page


def board_of(paths: Sequence[Path], against: str | None) -> Row:
    kinds = {path: kind_of(path) for path in paths}
    if unknown := [str(path) for path, kind in kinds.items() if kind is None]:
        raise UserError(
            f"{', '.join(unknown)}: not a run directory ({RUN_FILE}), and no folder of weakdriven compare "
            f"({COMPARE_FILE}) or weakdriven sweep ({SWEEP_FILE})."
        )
    folders = [path for path, kind in kinds.items() if kind != RUN_FILE]
    if folders and (len(paths) > 1 or against):
        raise UserError(f"{folders[0]} holds several runs already; give it alone, without --against.")
    if not folders:
        return board_of_rows(runs_compared(paths, against))
    return board_of_rows(compare_runs(paths[0])) if kinds[paths[0]] == COMPARE_FILE else board_of_sweep(paths[0])


def kind_of(path: Path) -> str | None:
    return next((name for name in (RUN_FILE, COMPARE_FILE, SWEEP_FILE) if (path / name).is_file()), None)


def board_of_rows(found: Row) -> Row:
    scored = [row for row in found["rows"] if "score" in row]
    (titles, rows), (cost_titles, cost_rows) = tables(found)
    best_first = sorted(scored, key=lambda row: -row["score"])
    order = [row["method"] for row in best_first]
    rows.sort(key=lambda cells: order.index(cells[0]) if cells[0] in order else len(order))
    scores = [dot(row["method"], row["score"], row["interval"]) for row in best_first]
    tested = [(row["method"], row["against"]) for row in found["rows"] if row.get("against")]
    gains = [dot(method, one["difference"], one["interval"], sign="+") for method, one in tested]
    figures = [
        interval_figure("scores", "Score", scores, x="score, percent"),
        interval_figure("gains", f"Difference from {found['against']}", gains, x="points", rule=0.0),
        cost_figure(found["rows"]),
    ]
    return {
        "name": f"{found['recipe']}: compared",
        "words": headline(scored, found["against"]),
        "caption": found.get("caption") or caption(found),
        "tables": [("Leaderboard", titles, rows), ("Cost of each", cost_titles, cost_rows)],
        "drawn": present(figures),
        "missing": found["missing"] if "missing" in found else failures(found),
    }


def board_of_sweep(root: Path) -> Row:
    found = read_sweep(root)
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
        "caption": sweep_caption(found),
        "tables": [(title, titles, rows) for title, (titles, rows) in sweep_tables(found).items()],
        "drawn": present([*figures_of(found), cost_figure(results)]),
        "missing": sweep_failures(found),
    }


def headline(scored: list[Row], against: str) -> list[str]:
    """The best, which rows differ significantly from the reference, and how many would by chance."""
    if not scored:
        return ["Nothing has been evaluated yet, so there is nothing to compare."]
    best = max(scored, key=lambda row: row["score"])
    sentences = [f"Highest score: {best['method']}, {with_brackets(best['score'], best['interval'])} percent."]
    tested = [row for row in scored if row.get("against")]
    sure = [row for row in tested if is_significant(row["against"])]
    for word, chosen in (
        ("better", [row for row in sure if row["against"]["difference"] > 0]),
        ("worse", [row for row in sure if row["against"]["difference"] <= 0]),
    ):
        if chosen:
            names = ", ".join(f"{row['method']} ({100 * row['against']['difference']:+.1f} points)" for row in chosen)
            sentences.append(f"Significantly {word} than {against}: {names}.")
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
    values = [
        {
            "name": row["method"],
            "minutes": row["seconds"] / 60,
            "gain": 100 * row["against"]["difference"],
            "low": 100 * row["against"]["interval"][0],
            "high": 100 * row["against"]["interval"][1],
            "took": duration(row["seconds"]),
        }
        for row in rows
        if row.get("against") and number(row.get("seconds")) is not None
    ]
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
