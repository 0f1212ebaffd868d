"""`weakdriven compare`: several methods from the same M0 and M1, under several seeds.

Each seed is an ordinary run directory with all methods in it, so that what they share is computed once; what seeds
share, such as the tokens and the base model's answers, is taken over from one to the next.
"""

import difflib
from functools import partial
from pathlib import Path
from typing import Any, get_args

from weakdriven.errors import UserError, explain
from weakdriven.pipeline.run import carry_out, evaluate_models, method_models
from weakdriven.pipeline.stages import Stages
from weakdriven.recipe import Baseline, Recipe
from weakdriven.recipe_file import load_recipe
from weakdriven.report import write_report
from weakdriven.report.comparison import COMPARE_FILE, REFERENCE, write_comparison
from weakdriven.rundir import RUN_FILE, Progress, Run, hardware, library_versions, write_json

METHODS: tuple[str, ...] = ("wmss", *get_args(Baseline))


def compare_methods(
    source: str, overrides: list[str], root: Path | None, progress: Progress, *, methods: list[str], seeds: int
) -> Path:
    """Train and evaluate what is not done yet, seed by seed; returns the folder with the runs and the comparison.

    Args:
        source: A recipe, as `load_recipe` takes it.
        seeds: How many: the recipe's, and those after it.
    """
    methods = known_methods(methods)
    first = recipe_of(source, overrides, methods)
    root = root or Path("runs") / f"{first.name}-compare"
    if (root / RUN_FILE).exists():
        raise UserError(f"{root} is the directory of one run; give another --output for the comparison.")
    numbers = range(first.seed, first.seed + seeds)
    runs = {number: recipe_of(source, [*overrides, f"seed={number}"], methods) for number in numbers}
    facts: dict[str, Any] = {"recipe": first.name, "seeds": {}, "methods": {}, "failed": {}}
    facts |= {"hardware": hardware(), "versions": library_versions()}
    for number, recipe in runs.items():
        folder = root / f"seed-{number}"
        work = partial(one_by_one, methods=methods, facts=facts)
        siblings = [root / f"seed-{other}" for other in numbers if other != number]
        carry_out(recipe, folder, progress, work, evaluates=True, siblings=siblings)
        write_report(folder)
        facts["seeds"][str(number)] = folder.name
        write_json(root / COMPARE_FILE, facts)
        write_comparison(root)  # after each seed, so that there is something to look at
    return root


def known_methods(names: list[str]) -> list[str]:
    """The methods in order, without repeats, and with the one that all others are tested against."""
    for name in names:
        if name not in METHODS:
            near = difflib.get_close_matches(name, METHODS, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UserError(f"--methods: {name} is not a method.{hint} Expected some of {', '.join(METHODS)}.")
    return list(dict.fromkeys([REFERENCE, *names]))


def recipe_of(source: str, overrides: list[str], methods: list[str]) -> Recipe:
    """The recipe with these methods as its own and its baselines."""
    method = "wmss" if "wmss" in methods else methods[0]
    others = ", ".join(name for name in methods if name != method)
    recipe = load_recipe(source, [*overrides, f"method={method}", f"baselines=[{others}]"])
    if not recipe.eval.benchmarks:
        raise UserError(f"{source}: eval.benchmarks names none, so there is nothing to compare methods by; name some.")
    return recipe


def one_by_one(stages: Stages, *, methods: list[str], facts: dict[str, Any]) -> None:
    """Every method trained and evaluated; one that cannot be leaves the others alone."""
    data = stages.data()
    for method in methods:
        facts["methods"][method] = needs(stages, method)
        try:
            evaluate_models(stages, method_models(stages, data, method))
        except Exception as error:
            if stages.run.dry or (sentence := explain(error)) is None:
                raise
            facts["failed"].setdefault(method, {})[str(stages.recipe.seed)] = sentence
            stages.run.progress.note(f"{method} has no result: {sentence}")


def needs(stages: Stages, method: str) -> dict[str, Any]:
    """The model that a method ends with, and the stages from the data to it."""
    run, stages.run = stages.run, Run(stages.run.root, stages.recipe.seed, dry=True)
    try:
        model = method_models(stages, stages.data(), method)[-1]
        return {"model": model.name, "stages": [one.name for one in stages.run.planned if one.name != "data"]}
    finally:
        stages.run = run
