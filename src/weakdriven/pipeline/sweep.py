"""`weakdriven sweep`: run one recipe at several points and with several seeds, each in an ordinary run directory.

Stages that runs share, such as the tokens, M1 and its entropies, are computed once: a run reuses what another has
finished, and waits for what another is computing.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.config.sweep import Axis, Point, as_overrides, axes_of, points_of
from weakdriven.errors import UserError
from weakdriven.pipeline.parallel import LOCKS, run_all, try_to_write
from weakdriven.pipeline.run import RunOptions, all_stages, carry_out, is_finished, refuse_replacing_in, stages_for
from weakdriven.report import write_report
from weakdriven.report.sweep.files import SWEEP, read_sweep, write_sweep
from weakdriven.runs.directory import RUN_FILE, Progress
from weakdriven.runs.machine import hardware, library_versions
from weakdriven.runs.take_over import Siblings
from weakdriven.stages.context import Context


def sweep_recipe(
    source: str,
    overrides: list[str],
    root: Path | None,
    progress: Progress,
    *,
    grids: list[str],
    seeds: int,
    jobs: int = 1,
    options: RunOptions = RunOptions(),  # noqa: B008
) -> Path:
    """Train and evaluate what is missing; return the folder with the runs and the table.

    Args:
        seeds: Number of seeds, counting up from the recipe's seed.
    """
    axes = axes_of(grids)
    points = points_of(axes)
    default, recipes = recipes_of(source, overrides, axes, points)
    first = default or next(iter(recipes.values()))
    named = [word for word in grids if "=" not in word]
    root = root or Path("runs") / "-".join([first.name, "sweep", *(Path(word).stem for word in named)])
    if (root / RUN_FILE).exists():
        raise UserError(f"{root} is a run directory; give another --output for the sweep.")
    earlier = read_sweep(root) if (root / f"{SWEEP}.json").is_file() else {"runs": {}}
    refuse_other_axes(root, earlier, axes)
    numbers = range(first.seed, first.seed + seeds)
    runs = runs_of(recipes, numbers)
    facts: dict[str, Any] = {
        "recipe": first.name,
        "grids": grids,
        "axes": [{"label": axis.label, "keys": axis.keys, "start": axis.start} for axis in axes],
        "seeds": [str(number) for number in numbers],
        "points": {
            one.name: {"values": one.values, "settings": settings_at(recipes[one.name], axes)} for one in points
        },
        "default": next((name for name, recipe in recipes.items() if recipe == default), None),
        "runs": still_known(root, earlier["runs"], runs),
        "hardware": hardware(),
        "jobs": jobs,
        "versions": library_versions(),
    }
    others = [*(root / folder for folder in runs), *earlier_runs(root, runs), *options.siblings.runs]
    options = replace(options, siblings=Siblings(others, root / LOCKS))
    refuse_replacing_in(root, runs, all_stages, options)

    def record(folder: str, model: Any, why: str) -> None:
        facts["runs"][folder] = {"status": "failed", "reason": why} if why else {"status": "done", "model": model}
        if why:
            progress.note(f"{folder} has no result: {why}")
        write_sweep(root, facts)

    done = {folder for folder, one in facts["runs"].items() if one["status"] == "done"}
    missing_first = sorted(runs.items(), key=lambda run: run[0] in done)
    tasks = {folder: partial(run_point, root / folder, recipe, options=options) for folder, recipe in missing_first}
    if facts["runs"]:
        try_to_write(partial(write_sweep, root, facts), progress)
    run_all(tasks, progress, record, root=root, jobs=jobs)
    return root


def run_point(root: Path, recipe: Recipe, progress: Progress, *, options: RunOptions) -> str:
    """Run one point with one seed; return the name of its final model."""

    def work(context: Context) -> str:
        all_stages(context)
        return stages_for(context, recipe.method)[0].name

    model = carry_out(recipe, root, progress, work, evaluates=True, options=options)
    write_report(root)
    return model


def grid_recipes(source: str, overrides: list[str], grids: list[str], seeds: int) -> dict[str, Recipe]:
    """Map the folder of each run of a sweep to its recipe."""
    axes = axes_of(grids)
    default, recipes = recipes_of(source, overrides, axes, points_of(axes))
    first = (default or next(iter(recipes.values()))).seed
    return runs_of(recipes, range(first, first + seeds))


def recipes_of(
    source: str, overrides: list[str], axes: list[Axis], points: list[Point]
) -> tuple[Recipe | None, dict[str, Recipe]]:
    """Return the recipe without the sweep, or None if it is invalid on its own, and the recipe of each point.

    It can be invalid on its own: eval.samples above 1, for example, needs the temperature that the points set.
    """
    for override in overrides:
        key = override.partition("=")[0]
        if any(key in axis.keys for axis in axes):
            raise UserError(f"{key} is both in a grid and in your overrides; remove one of them.")
    common = [*(word for axis in axes for word in as_overrides(axis.settings)), *overrides]
    recipes = {one.name: load_recipe(source, common, varied=as_overrides(one.overrides)) for one in points}
    for recipe in recipes.values():
        if not recipe.eval.benchmarks and not recipe.data.validates:
            raise UserError(
                f"{source}: eval.benchmarks is empty and there are no validation rows, so there is nothing to measure; "
                "set eval.benchmarks, data.validation or data.validation_share."
            )
    try:
        return load_recipe(source, common), recipes
    except UserError:
        return None, recipes


def refuse_other_axes(root: Path, earlier: dict[str, Any], axes: list[Axis]) -> None:
    """Raise an error if the folder has a sweep over other axes, whose table would be lost."""
    there, asked = [axis["label"] for axis in earlier.get("axes", [])], [axis.label for axis in axes]
    if there and sorted(there) != sorted(asked):
        raise UserError(
            f"{root} contains a sweep over {', '.join(there)}, but this one is over {', '.join(asked)}; give another "
            "--output, or remove that folder."
        )


def still_known(root: Path, earlier: dict[str, Any], runs: dict[str, Recipe]) -> dict[str, Any]:
    """Return the runs of an earlier call that failed, or finished with the same recipe; the table keeps them."""
    return {
        folder: earlier[folder]
        for folder, recipe in runs.items()
        if folder in earlier and (earlier[folder]["status"] != "done" or is_finished(root / folder, recipe))
    }


def runs_of(recipes: dict[str, Recipe], seeds: range) -> dict[str, Recipe]:
    """Map folders to recipes, in the order in which they run.

    The first point runs first, with every seed, because the others reuse its stages; then follow the rest, by seed.
    """
    first, *rest = recipes
    pairs = [*((first, seed) for seed in seeds), *((name, seed) for seed in seeds for name in rest)]
    return {f"{name}/seed-{seed}": recipes[name].model_copy(update={"seed": seed}) for name, seed in pairs}


def settings_at(recipe: Recipe, axes: list[Axis]) -> dict[str, Any]:
    """Return the values of the swept settings in the recipe of a point, including defaults."""
    settings = recipe.model_dump(mode="json")
    return {key: value_at(settings, key) for axis in axes for key in axis.keys}


def value_at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def earlier_runs(root: Path, runs: dict[str, Recipe]) -> list[Path]:
    """Return the runs in this folder that are not part of the command; their stages can be reused."""
    found = sorted(path.parent for path in root.glob(f"*/*/{RUN_FILE}"))
    return [path for path in found if path.relative_to(root).as_posix() not in runs]
