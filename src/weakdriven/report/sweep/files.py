"""Compute a sweep's results and write them: .csv and .parquet for programs, .json, .md, and figures."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weakdriven.errors import UserError
from weakdriven.report import format, validation
from weakdriven.report.figure import write_figures
from weakdriven.report.read import accuracy_rows, current_manifests
from weakdriven.report.results import BySeed, Evaluated, Row, compare, complete_models, costs, describe, scores
from weakdriven.report.sweep.figures import figures_of
from weakdriven.runs.directory import make_directory
from weakdriven.runs.files import PART, read_json, write_json, write_text

SWEEP, SWEEP_FILE, FIGURES = "sweep", "sweep.json", "figures"
NOT_RUN = "not run yet"
MEASURED = ["items", "correct", "accuracy", "low", "high"]
COSTS = ["seconds", "trained_tokens", "peak_bytes"]
OURS = ["point", "seed", "model", "share_of_steps", "steps", "benchmark", *MEASURED, *COSTS, "status", "reason"]


def write_sweep(root: Path, facts: Row | None = None) -> Row:
    """Write every file of a sweep from its runs; return the content of sweep.json.

    Args:
        facts: The sweep's definition and the state of each run; by default read from sweep.json.
    """
    facts = facts or {key: value for key, value in read_sweep(root).items() if key != "summary"}
    make_directory(root)
    rows, found = tidy_rows(root, facts), facts | {"summary": summarise(root, facts)}
    columns = {name: as_cells(row[name] for row in rows) for name in columns_of(facts)}
    write_text(root / f"{SWEEP}.csv", format.csv_text([list(columns), *zip(*columns.values(), strict=True)]))
    pq.write_table(pa.table(columns), part := root / f"{SWEEP}.parquet{PART}")
    part.replace(root / f"{SWEEP}.parquet")
    write_text(root / f"{SWEEP}.md", as_markdown(found))
    write_json(root / SWEEP_FILE, found)
    write_figures(figures_of(found), root / FIGURES)
    return found


def read_sweep(root: Path) -> Row:
    """Read sweep.json: the facts of the sweep, and `summary`, a row for each point and model."""
    if not (root / SWEEP_FILE).is_file():
        raise UserError(f"{root} is not a sweep's folder: it has no {SWEEP_FILE}.")
    return read_json(root / SWEEP_FILE)


def as_markdown(found: Row) -> str:
    parts = [f"# {found['recipe']}: {', '.join(found['grids'])}", "", caption(found)]
    for title, (titles, rows) in tables(found).items():
        parts += ["", f"{title}:", "", *format.markdown_table(titles, rows)]
    if failed := failures(found):
        parts += ["", "Without a result:", "", *(f"- {one}" for one in failed)]
    return "\n".join([*parts, ""])


def tables(found: Row) -> dict[str, format.Table]:
    """Return the tables by title: the points, the models that all points share, and others; leave out empty tables."""
    axes, key = [axis["label"] for axis in found["axes"]], reference_of(found)
    points, shared, others = [], {}, []
    lossy = [validation.BOARD[0]] if any("validation" in row for row in found["summary"]) else []
    for row in found["summary"]:
        place = [str(value) for value in place_of(found, row).values()]
        score = format.with_brackets(row["score"], row["interval"]) if "score" in row else format.MISSING
        seeds, time = str(len(row["seeds"])), format.duration(row.get("seconds"))
        loss = validation.board_cells(row)[:1] if lossy else []
        if row["role"] == "result":
            points.append([*place, seeds, score, change(row.get(key)), time, *loss])
        elif row["shared"]:
            shared[row["model"]] = [format.in_prose(row["model"]), seeds, score, time, *loss]
        else:
            others.append([*place, format.in_prose(row["model"]), seeds, score, time, *loss])
    of_model = ["model", "seeds", "score", "time", *lossy]
    made: dict[str, format.Table] = {
        "Points": ([*axes, "seeds", "score", "difference", "time", *lossy], points),
        "The same at every point": (of_model, list(shared.values())),
        "Other models": ([*axes, *of_model], others),
    }
    return {title: table for title, table in made.items() if table[1]}


def place_of(found: Row, row: Row) -> Row:
    return {axis["label"]: found["points"][row["point"]]["values"][axis["label"]] for axis in found["axes"]}


def reference_of(found: Row) -> str:
    """Choose what all points are tested against: the SFT control if there is one, else the default point."""
    controlled = any(row.get("against_control") for row in found["summary"])
    return "against_control" if controlled else "against_default"


def reference_name(found: Row) -> str:
    tested = (row[reference_of(found)] for row in found["summary"] if row.get(reference_of(found)))
    name = next((one["name"] for one in tested), "")
    return format.in_prose(name) if name in format.CONTROLS else f"the point {name}" if name else "a control"


def change(against: Row | None) -> str:
    return format.with_brackets(against["difference"], against["interval"], "+") if against else format.MISSING


def caption(found: Row) -> str:
    benchmarks = list(dict.fromkeys(name for row in found["summary"] for name in row.get("benchmarks", {})))
    states = [state_of(found, *place)["status"] for place in runs_of(found, Path())]
    seeds = len(found["seeds"])
    return (
        f"Score: mean accuracy in percent over {', '.join(benchmarks) or 'the benchmarks'} and up to {seeds} "
        f"seed{'s' * (seeds != 1)}. Brackets: 95% interval over seeds and items. Difference: from "
        f"{reference_name(found)}, in points, on the same seeds and items, not corrected for the number of "
        "points. Time: every stage behind the model; shared stages count for each. "
        f"Runs: {states.count('done')} of {len(states)} done, "
        f"{states.count('failed')} failed.{validation.board_caption(found['summary'])}"
    )


def failures(found: Row) -> list[str]:
    """List each reason once, with the runs that failed for it."""
    reasons: dict[str, list[str]] = {}
    for folder, state in found["runs"].items():
        if state["status"] == "failed":
            reasons.setdefault(state["reason"], []).append(folder)
    return [f"{', '.join(folders)}: {why}" for why, folders in reasons.items()]


def runs_of(facts: Row, root: Path) -> dict[tuple[str, str], Path]:
    """Return the run directory of each (point, seed) of the sweep."""
    return {(name, seed): root / name / f"seed-{seed}" for name in facts["points"] for seed in facts["seeds"]}


def state_of(facts: Row, point: str | None, seed: str) -> Row:
    return facts["runs"].get(f"{point}/seed-{seed}", {"status": NOT_RUN})


def tidy_rows(root: Path, facts: Row) -> list[Row]:
    """Make one row per run, model and benchmark; a run without its result has a row that says why."""
    rows = []
    for (point, seed), run in runs_of(facts, root).items():
        known = state_of(facts, point, seed)
        about = {"point": point, **columns_at(facts, point), "seed": int(seed)}
        about |= {"status": known["status"], "reason": known.get("reason")}
        if known["status"] != NOT_RUN:
            manifests = current_manifests(run)
            rows += [about | one | training_of(one["model"], manifests) for one in accuracy_rows(run)]
        if known["status"] != "done":
            rows.append(about | {"model": result_of(facts, point)})
    columns = columns_of(facts)
    return [{name: row.get(name) for name in columns} for row in rows]


def columns_of(facts: Row) -> list[str]:
    swept = dict.fromkeys(key for point in facts["points"] for key in columns_at(facts, point))
    return ["point", *swept, *OURS[1:]]


def columns_at(facts: Row, point: str) -> Row:
    """Return the value on each axis and of every swept setting, under names that no other column has."""
    one = facts["points"][point]
    swept = one["values"] | one["settings"]
    return {f"setting {key}" if key in OURS else key: value for key, value in swept.items()}


def result_of(facts: Row, point: str | None) -> str | None:
    """Name the model that the method ends with, as a finished run of this point reported it."""
    states = (state_of(facts, point, seed) for seed in facts["seeds"])
    return next((state["model"] for state in states if "model" in state), None)


def training_of(model: str, manifests: dict[str, Row]) -> Row:
    """Return how far a model's own training had come, in share and steps, and the cost of the stages before it."""
    whole, percent = format.split_snapshot(model)
    share = 1.0 if percent is None else percent / 100
    steps, cost = manifests.get(format.stage_of(whole), {}).get("counters", {}).get("steps"), costs(model, manifests)
    return cost if steps is None else {"share_of_steps": share, "steps": max(round(share * steps), 1), **cost}


def summarise(root: Path, facts: Row) -> list[Row]:
    """Make one row per point and model: mean over seeds and benchmarks, interval, and test against the reference."""
    runs = {at: run for at, run in runs_of(facts, root).items() if state_of(facts, *at)["status"] != NOT_RUN}
    found = {at: complete_models(run) for at, run in runs.items()}
    manifests = {at: current_manifests(run) for at, run in runs.items()}
    losses = {at: validation.validated_models(run, manifests[at]) for at, run in runs.items()}
    either = {at: dict.fromkeys([*found[at], *losses[at]]) for at in runs}
    both = {at: {name: (found[at].get(name), losses[at].get(name)) for name in names} for at, names in either.items()}

    def by_seed(point: str | None, model: str | None) -> BySeed:
        each = {seed: models for (at, seed), models in found.items() if at == point}
        return {seed: models[model] for seed, models in each.items() if model in models}

    start, rows = facts["default"], []
    default = by_seed(start, result_of(facts, start))
    for point in facts["points"]:
        models = list(dict.fromkeys(name for (at, _), one in both.items() if at == point for name in one))
        result = result_of(facts, point)
        control = next((name for name in format.CONTROLS if name in models and name != result), None)
        for model in [*models, *([result] if result not in models else [])]:  # a failed point may not have its result
            own, name = by_seed(point, model), model and format.model_name(model)
            seeds = [seed for (at, seed), one in both.items() if at == point and model in one]
            role = "result" if model == result else "control" if model == control else "other"
            if model and format.split_snapshot(model)[1] is not None:
                role = "snapshot"
            row: Row = {"point": point, **columns_at(facts, point), "model": model, "name": name, "role": role}
            row |= {"shared": is_shared(model, both, facts), "seeds": seeds}
            if seeds and model:
                trained = [training_of(model, manifests[point, seed]) for seed in seeds]
                row |= measured(tuple(own.values())) if own else {}
                lossy = {seed: losses[point, seed][model] for seed in seeds if model in losses[point, seed]}
                row |= validation.compared(lossy, {})
                for name in ("share_of_steps", "steps", *COSTS):
                    if all(name in one for one in trained):
                        mean = np.max if name == "peak_bytes" else np.mean
                        row[name] = float(mean([one[name] for one in trained]))
            if own and model != "base" and (below := compare(own, by_seed(point, "base"))):
                row["against_base"] = below
            if role == "result":
                row["against_control"] = compare(own, by_seed(point, control), name=control)
                row["against_default"] = None if point == start else compare(own, default, name=start)
            rows.append(row)
    return rows


def is_shared(model: str | None, found: dict[tuple[str, str], dict[str, Any]], facts: Row) -> bool:
    """Return whether every finished run has this model, and runs with the same seed have the same one."""
    done = [models for at, models in found.items() if state_of(facts, *at)["status"] == "done"]
    each = [{one[model] for (_, of), one in found.items() if of == seed and model in one} for seed in facts["seeds"]]
    return len(facts["points"]) > 1 and all(model in models for models in done) and all(len(one) < 2 for one in each)


@cache
def measured(models: tuple[Evaluated, ...]) -> Row:
    """Average over seeds and benchmarks, and for each benchmark."""
    each = {}
    for name, values_SP in (whole := scores(models)).items():
        spread = describe({name: values_SP})
        each[name] = {"accuracy": float(values_SP.mean()), "interval": spread["interval"], "by_seed": spread["by_seed"]}
    return {**describe(whole), "benchmarks": each}


def as_cells(values: Iterable[Any]) -> list[Any]:
    """Convert a column for CSV and Parquet: lists become JSON; if some values are strings, all become strings."""
    cells = [json.dumps(value) if isinstance(value, dict | list) else value for value in values]
    kinds = {type(value) for value in cells if value is not None}
    if kinds <= {int, float} or len(kinds) <= 1:
        return [float(value) if kinds == {int, float} and value is not None else value for value in cells]
    return [None if value is None else value if isinstance(value, str) else json.dumps(value) for value in cells]
