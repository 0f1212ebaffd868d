"""The runs of a sweep -> one tidy row for each point, seed, model and benchmark; and each point over its seeds."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.eval.statistics import by_seed, compare_seeds, interval_of, score_of
from weakdriven.report.format import CONTROLS, model_name, split_snapshot, stage_of
from weakdriven.report.read import accuracy_rows, current_manifests
from weakdriven.report.results import Evaluated, Row, complete_models, costs, scores
from weakdriven.runs.directory import PLAN_FILE

NOT_RUN = "not run yet"
MEASURED = ["items", "correct", "accuracy", "low", "high"]
COSTS = ["seconds", "trained_tokens", "peak_bytes"]
OURS = ["point", "seed", "model", "share_of_steps", "steps", "benchmark", *MEASURED, *COSTS, "status", "reason"]

BySeed = dict[str, Evaluated]
Models = dict[tuple[str, str], dict[str, Evaluated]]
"""(point, seed) to the models of its run."""


def runs_of(facts: Row, root: Path) -> dict[tuple[str, str], Path]:
    """(point, seed) to run directory, of all that were asked for."""
    return {(name, seed): root / name / f"seed-{seed}" for name in facts["points"] for seed in facts["seeds"]}


def state_of(facts: Row, point: str, seed: str) -> Row:
    return facts["runs"].get(f"{point}/seed-{seed}", {"status": NOT_RUN})


def tidy_rows(root: Path, facts: Row) -> list[Row]:
    """Every number of a sweep, one benchmark a row; a run without its result has a row that says why."""
    rows = []
    for (point, seed), run in runs_of(facts, root).items():
        known = state_of(facts, point, seed)
        about = {"point": point, **columns_at(facts, point), "seed": int(seed)}
        about |= {"status": known["status"], "reason": known.get("reason")}
        begun = known["status"] != NOT_RUN and (run / PLAN_FILE).is_file()
        manifests = current_manifests(run) if begun else {}
        for one in accuracy_rows(run) if begun else []:
            measured = {name: one[name] for name in ("model", "benchmark", *MEASURED)}
            rows.append(about | measured | training_of(one["model"], manifests))
        if known["status"] != "done":
            rows.append(about | {"model": result_of(facts, point)})
    columns = columns_of(facts)
    return [{name: row.get(name) for name in columns} for row in rows]


def columns_of(facts: Row) -> list[str]:
    swept = dict.fromkeys(key for point in facts["points"] for key in columns_at(facts, point))
    return ["point", *swept, *OURS[1:]]


def columns_at(facts: Row, point: str) -> Row:
    """Place on each axis and every swept setting, under names that no column of ours has."""
    one = facts["points"][point]
    swept = one["values"] | one["settings"]
    return {f"setting {key}" if key in OURS else key: value for key, value in swept.items()}


def result_of(facts: Row, point: str) -> str | None:
    """Name of the model that the method ends with, as a finished run of this point reported it."""
    folders = [f"{point}/seed-{seed}" for seed in facts["seeds"]]
    return next((facts["runs"][one]["model"] for one in folders if "model" in facts["runs"].get(one, {})), None)


def training_of(model: str, manifests: dict[str, Row]) -> Row:
    """How far a model's own training had come, as share of the steps and steps; and the cost of all before it."""
    whole, percent = split_snapshot(model)
    share = 1.0 if percent is None else percent / 100
    steps, cost = manifests.get(stage_of(whole), {}).get("counters", {}).get("steps"), costs(model, manifests)
    if steps is None:
        return cost
    done = steps if percent is None else max(round(share * steps), 1)
    return {"share_of_steps": share, "steps": done, **cost}


def summarise(root: Path, facts: Row) -> list[Row]:
    """One row for each point and model: mean over seeds and benchmarks, interval, and what it is tested against."""
    runs = {at: run for at, run in runs_of(facts, root).items() if state_of(facts, *at)["status"] != NOT_RUN}
    found = {at: complete_models(run) if (run / PLAN_FILE).is_file() else {} for at, run in runs.items()}
    manifests = {at: current_manifests(runs[at]) for at, models in found.items() if models}

    def runs_at(point: str) -> dict[str, dict[str, Evaluated]]:
        return {seed: found[point, seed] for seed in facts["seeds"] if (point, seed) in found}

    default = of_model(result_of(facts, facts["default"]), runs_at(facts["default"]))
    rows = []
    for point in facts["points"]:
        here = runs_at(point)
        models, result = list(dict.fromkeys(name for one in here.values() for name in one)), result_of(facts, point)
        control = next((name for name in CONTROLS if name in models and name != result), None)
        for model in [*models, *([result] if result not in models else [])]:  # a failed point may not know its result
            role = "result" if model == result else "control" if model == control else "other"
            row: Row = {"point": point, **columns_at(facts, point), "model": model, "name": readable(model)}
            row |= {"role": role if model is None or split_snapshot(model)[1] is None else "snapshot"}
            by = of_model(model, here)
            row |= {"shared": is_shared(model, found, facts), "seeds": list(by)}
            if by and model:
                row |= measured(tuple(by.values()))
                row |= mean_of([training_of(model, manifests[point, seed]) for seed in by])
            if role == "result":
                row["against_control"] = against(by, of_model(control, here), control)
                row["against_default"] = against(by, {} if point == facts["default"] else default, facts["default"])
            rows.append(row)
    return rows


def of_model(model: str | None, found: dict[str, dict[str, Evaluated]]) -> BySeed:
    return {seed: one[model] for seed, one in found.items() if model in one}


def is_shared(model: str | None, found: Models, facts: Row) -> bool:
    """Whether every finished run has this model, and under each seed the same one."""
    done = [models for at, models in found.items() if state_of(facts, *at)["status"] == "done"]
    each = [[one[model] for (_, of), one in found.items() if of == seed and model in one] for seed in facts["seeds"]]
    return len(facts["points"]) > 1 and all(model in models for models in done) and all(len({*one}) < 2 for one in each)


def readable(model: str | None) -> str | None:
    if model is None:
        return None
    whole, percent = split_snapshot(model)
    return model_name(whole) if percent is None else f"{model_name(whole)}, after {percent}% of its steps"


def mean_of(rows: list[Row]) -> Row:
    names = [name for name in ("share_of_steps", "steps", *COSTS) if all(name in row for row in rows)]
    return {name: float((np.max if name == "peak_bytes" else np.mean)([row[name] for row in rows])) for name in names}


@cache
def measured(models: tuple[Evaluated, ...]) -> Row:
    whole = scores(models)
    interval = interval_of(whole)
    each = {
        name: {
            "accuracy": float(values_SP.mean()),
            "interval": interval if len(whole) == 1 else interval_of({name: values_SP}),
            "by_seed": values_SP.mean(axis=1).tolist(),
        }
        for name, values_SP in whole.items()
    }
    return {"score": score_of(whole), "interval": interval, "by_seed": by_seed(whole).tolist(), "benchmarks": each}


@cache
def difference(theirs: tuple[Evaluated, ...], own: tuple[Evaluated, ...]) -> Row | None:
    a, b = scores(theirs), scores(own)
    shapes = [{name: values_SP.shape for name, values_SP in one.items()} for one in (a, b)]
    return vars(compare_seeds(a, b)) if shapes[0] == shapes[1] else None  # a point may have other benchmarks


def against(own: BySeed, theirs: BySeed, name: str | None) -> Row | None:
    """A model against another under the seeds that both have."""
    seeds = [seed for seed in own if seed in theirs]
    if name is None or not seeds:
        return None
    found = difference(tuple(theirs[seed] for seed in seeds), tuple(own[seed] for seed in seeds))
    return found and found | {"name": name, "seeds": seeds}


def as_cells(values: Iterable[Any]) -> list[Any]:
    """A column that CSV and Parquet can hold: lists as JSON, numbers among words as words."""
    cells = [json.dumps(value) if isinstance(value, dict | list) else value for value in values]
    kinds = {type(value) for value in cells if value is not None}
    if kinds <= {int, float} or len(kinds) <= 1:
        return [float(value) if kinds == {int, float} and value is not None else value for value in cells]
    return [None if value is None else value if isinstance(value, str) else json.dumps(value) for value in cells]
