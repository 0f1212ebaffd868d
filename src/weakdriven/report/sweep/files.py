"""The results of a sweep as files: sweep.csv and .parquet for programs, .json and .md, and its figures."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from weakdriven.errors import UserError
from weakdriven.report.figure import write_figures
from weakdriven.report.format import MISSING, csv_text, duration, markdown_table, model_name, with_brackets
from weakdriven.report.results import Row
from weakdriven.report.sweep.figures import figures_of
from weakdriven.report.sweep.table import as_cells, columns_of, runs_of, state_of, summarise, tidy_rows
from weakdriven.runs.files import PART, read_json, write_json, write_text

SWEEP, FIGURES = "sweep", "figures"
Table = tuple[list[str], list[list[str]]]


def write_sweep(root: Path, facts: Row | None = None) -> Row:
    """Write every file of a sweep from its runs; returns what sweep.json holds.

    Args:
        facts: What was asked for and the state of each run; unset: those of sweep.json.
    """
    facts = facts or {key: value for key, value in read_sweep(root).items() if key != "summary"}
    root.mkdir(parents=True, exist_ok=True)
    rows, found = tidy_rows(root, facts), facts | {"summary": summarise(root, facts)}
    columns = {name: as_cells(row[name] for row in rows) for name in columns_of(facts)}
    write_text(root / f"{SWEEP}.csv", csv_text([list(columns), *zip(*columns.values(), strict=True)]))
    pq.write_table(pa.table(columns), part := root / f"{SWEEP}.parquet{PART}")
    part.replace(root / f"{SWEEP}.parquet")
    write_text(root / f"{SWEEP}.md", as_markdown(found))
    write_json(root / f"{SWEEP}.json", found)
    write_figures(figures_of(found), root / FIGURES)
    return found


def read_sweep(root: Path) -> Row:
    """What sweep.json holds: the facts of the sweep, and `summary`, a row for each point and model."""
    if not (root / f"{SWEEP}.json").is_file():
        raise UserError(f"{root} holds no sweep: it has no {SWEEP}.json.")
    return read_json(root / f"{SWEEP}.json")


def as_markdown(found: Row) -> str:
    parts = [f"# {found['recipe']}: {', '.join(found['grids'])}", "", caption(found)]
    for title, (titles, rows) in tables(found).items():
        parts += ["", f"{title}:", "", *markdown_table(titles, rows)]
    if failed := failures(found):
        parts += ["", "Without a result:", "", *(f"- {one}" for one in failed)]
    return "\n".join([*parts, ""])


def tables(found: Row) -> dict[str, Table]:
    """By title: the points, the models that all points share, and the other models; empty tables are left out."""
    summary = found["summary"]
    others = [row for row in summary if row["role"] != "result"]
    shared, more = {row["model"]: row for row in others if row["shared"]}, [row for row in others if not row["shared"]]
    axes = [axis["label"] for axis in found["axes"]]
    control = next((row["against_control"]["name"] for row in summary if row.get("against_control")), None)
    titles = [*axes, "seeds", "score", "to the default", f"to {model_name(control)}" if control else "to SFT", "time"]
    made = {
        "Points": (titles, [result_cells(row, found) for row in summary if row["role"] == "result"]),
        "The same at every point": (["model", "seeds", "score", "time"], [model_cells(row) for row in shared.values()]),
        "Other models": (
            [*axes, "model", "seeds", "score", "time"],
            [[*places(row, found), *model_cells(row)] for row in more],
        ),
    }
    return {title: table for title, table in made.items() if table[1]}


def result_cells(row: Row, found: Row) -> list[str]:
    changes = [
        with_brackets(against["difference"], against["interval"], "+") if (against := row.get(name)) else MISSING
        for name in ("against_default", "against_control")
    ]
    if row["point"] == found["default"]:
        changes[0] = "the default"
    return [*places(row, found), str(len(row["seeds"])), score(row), *changes, duration(row.get("seconds"))]


def model_cells(row: Row) -> list[str]:
    return [str(row["name"]), str(len(row["seeds"])), score(row), duration(row.get("seconds"))]


def places(row: Row, found: Row) -> list[str]:
    values = found["points"][row["point"]]["values"]
    return [str(values[axis["label"]]) for axis in found["axes"]]


def score(row: Row) -> str:
    return with_brackets(row["score"], row["interval"]) if "score" in row else MISSING


def caption(found: Row) -> str:
    benchmarks = list(dict.fromkeys(name for row in found["summary"] for name in row.get("benchmarks", {})))
    states = [state_of(found, *place)["status"] for place in runs_of(found, Path())]
    seeds = len(found["seeds"])
    return (
        f"Score: mean accuracy in percent over {', '.join(benchmarks) or 'the benchmarks'} and up to {seeds} "
        f"seed{'s' * (seeds != 1)}. Brackets: 95% bootstrap interval over seeds and problems. Differences are in "
        "points, on the same seeds and problems, and not corrected for the number of points. Time: all that leads to "
        f"the model, as if computed for it alone. Runs: {states.count('done')} of {len(states)} done, "
        f"{states.count('failed')} failed."
    )


def failures(found: Row) -> list[str]:
    """Each reason once, with the runs that have it."""
    reasons: dict[str, list[str]] = {}
    for folder, state in found["runs"].items():
        if state["status"] == "failed":
            reasons.setdefault(state["reason"], []).append(folder)
    return [f"{', '.join(folders)}: {why}" for why, folders in reasons.items()]
