"""`weakdriven compare`: train several methods from the same M0 and M1, with several seeds.

Each seed is an ordinary run directory with all methods in it, so stages that methods share are computed once. Stages
that seeds share, such as the tokens and the base model's completions, are reused from one seed by the next.
"""

import difflib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import METHODS, Recipe
from weakdriven.errors import UserError, explain
from weakdriven.pipeline.parallel import LOCKS, run_all
from weakdriven.pipeline.run import (
    RunOptions,
    carry_out,
    evaluate_models,
    is_finished,
    method_models,
    refuse_replacing_in,
    stages_for,
)
from weakdriven.report import write_report
from weakdriven.report.card import write_cards
from weakdriven.report.compare.table import COMPARE_FILE, REFERENCE, write_comparison
from weakdriven.runs.directory import RUN_FILE, Progress
from weakdriven.runs.files import read_json, write_json
from weakdriven.runs.machine import hardware, library_versions
from weakdriven.runs.redact import redact
from weakdriven.runs.stage import Stage
from weakdriven.runs.take_over import Siblings
from weakdriven.stages.context import Context
from weakdriven.stages.data import data_stage
from weakdriven.stages.model import Model


def compare_methods(
    source: str,
    overrides: list[str],
    root: Path | None,
    progress: Progress,
    *,
    methods: list[str],
    seeds: int,
    jobs: int = 1,
    options: RunOptions = RunOptions(),  # noqa: B008
) -> Path:
    """Train and evaluate what is missing; return the folder with the runs and the comparison.

    Args:
        seeds: Number of seeds, counting up from the recipe's seed; `jobs` of them run in parallel.
    """
    methods = known_methods(methods)
    first = recipe_of(source, overrides, methods)
    root = root or Path("runs") / f"{first.name}-compare"
    if (root / RUN_FILE).exists():
        raise UserError(f"{root} is a run directory; give another --output for the comparison.")
    runs = seed_recipes(source, overrides, methods, seeds)
    others = [*(root / name for name in runs), *options.siblings.runs]
    options = replace(options, siblings=Siblings(others, root / LOCKS))
    refuse_replacing_in(root, runs, partial(one_by_one, methods=methods), options)
    facts: dict[str, Any] = {"recipe": first.name, **still_done(root, runs), "failed": {}}
    facts |= {"hardware": hardware(), "jobs": jobs, "versions": library_versions()}

    def record(name: str, found: Any, why: str) -> None:
        seed = str(runs[name].seed)
        if why:
            found = {"failed": dict.fromkeys(methods, why)}
            facts["seeds"].pop(seed, None)
        else:
            facts["methods"] = found["methods"]
            facts["seeds"] = dict(sorted({**facts["seeds"], seed: name}.items()))
        for method, why in found["failed"].items():
            facts["failed"].setdefault(method, {})[seed] = why
        if facts["seeds"]:
            write_json(root / COMPARE_FILE, facts)
            write_comparison(root)

    tasks = {
        name: partial(run_seed, root / name, recipe, methods=methods, options=options) for name, recipe in runs.items()
    }
    run_all(tasks, progress, record, root=root, jobs=jobs)
    if not facts["seeds"]:
        raise UserError(next(iter(facts["failed"][methods[0]].values())))
    return root


def run_seed(
    root: Path, recipe: Recipe, progress: Progress, *, methods: list[str], options: RunOptions
) -> dict[str, Any]:
    """Run all methods with one seed; return the stages of each method, and the error of each that failed."""
    found = carry_out(recipe, root, progress, partial(one_by_one, methods=methods), evaluates=True, options=options)
    write_report(root)
    write_cards(root)
    return found


def still_done(root: Path, runs: dict[str, Recipe]) -> dict[str, Any]:
    """Return the seeds of an earlier call that are finished with the same recipe; the table keeps them."""
    earlier = read_json(root / COMPARE_FILE) if (root / COMPARE_FILE).is_file() else {"seeds": {}}
    seeds = {
        seed: name for seed, name in earlier["seeds"].items() if name in runs and is_finished(root / name, runs[name])
    }
    return {"seeds": seeds, "methods": earlier["methods"] if seeds else {}}


def known_methods(names: list[str]) -> list[str]:
    """Check the names of methods; return them without repeats, after the reference that all are tested against."""
    for name in names:
        if name not in METHODS:
            near = difflib.get_close_matches(name, METHODS, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UserError(f"--methods: {name} is not a method.{hint} Methods: {', '.join(METHODS)}.")
    return list(dict.fromkeys([REFERENCE, *names]))


def split_methods(text: str) -> list[str]:
    """Return the methods of a comma-separated list, with the reference."""
    return known_methods([name.strip() for name in text.split(",") if name.strip()])


def seed_recipes(source: str, overrides: list[str], methods: list[str], seeds: int) -> dict[str, Recipe]:
    """Map the folder of each seed to its recipe; seeds count up from the recipe's."""
    first = recipe_of(source, overrides, methods).seed
    numbers = range(first, first + seeds)
    return {f"seed-{number}": recipe_of(source, [*overrides, f"seed={number}"], methods) for number in numbers}


def recipe_of(source: str, overrides: list[str], methods: list[str]) -> Recipe:
    """Load the recipe with these methods: wmss, or else the first, as its method and the others as its baselines."""
    method = "wmss" if "wmss" in methods else methods[0]
    others = ", ".join(name for name in methods if name != method)
    recipe = load_recipe(source, overrides, varied=[f"method={method}", f"baselines=[{others}]"])
    if not recipe.eval.benchmarks and not recipe.data.validates:
        raise UserError(
            f"{source}: eval.benchmarks is empty and there are no validation rows, so methods cannot be compared; set "
            "eval.benchmarks, data.validation or data.validation_share."
        )
    return recipe


def one_by_one(context: Context, *, methods: list[str]) -> dict[str, Any]:
    """Train and evaluate every method; if one fails, the others continue."""
    found: dict[str, Any] = {"methods": {}, "failed": {}}
    data = data_stage(context)
    for method in methods:
        found["methods"][method] = needs(context, method)
        try:
            evaluate_models(context, method_models(context, data, method))
        except Exception as error:
            if not context.run.computes or (sentence := explain(error)) is None:
                raise
            found["failed"][method] = redact(sentence)  # it is written into comparison.json
            context.progress.note(f"{method} has no result: {sentence}")
    return found


def needs(context: Context, method: str) -> dict[str, Any]:
    """Return the final model of a method and the stages it was made from."""
    return made_from(*stages_for(context, method))


def made_from(model: Model, stages: dict[str, Stage]) -> dict[str, Any]:
    """Return a model and those of `stages` that it was made from, without the data.

    Inputs of a budget do not count: they only determine how long the method trains.
    """
    by_key, used, left = {stage.key: stage for stage in stages.values()}, set[str](), [model.key]
    while left:
        stage = by_key.get(left.pop())
        if stage and stage.name not in used:
            used.add(stage.name)
            left += [key for name, key in stage.facts["inputs"].items() if name != "budget"]
    return {"model": model.name, "stages": [name for name in stages if name in used and name != "data"]}
