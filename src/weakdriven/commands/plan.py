"""`weakdriven plan`: predict memory, time and disk of a recipe before it runs."""

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from weakdriven.commands.common import Debug, Output, Overrides, RecipeArgument, quieten_libraries
from weakdriven.config.file import load_recipe
from weakdriven.errors import UserError

if TYPE_CHECKING:
    from weakdriven.config.recipe import Recipe
    from weakdriven.planning.advice import Advice
    from weakdriven.planning.costs import Cost
    from weakdriven.planning.plan import Plan

GIB, GB = 2**30, 1e9
SHOWN = 0.05
"""Without --all, a stage that does not train is shown only if it takes at least this share of the time."""


def plan(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    gpus: Annotated[str | None, typer.Option(help="Devices, such as 8xH100-80G (default: this machine).")] = None,
    sharding: Annotated[str | None, typer.Option(help="Several devices: fsdp, or ddp (with lora).")] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Number of training rows, if the data is not on this machine.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Plan `compare` with these methods.")] = None,
    grid: Annotated[list[str] | None, typer.Option(help="Plan `sweep` over this grid.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds of `compare` or `sweep`.")] = 3,
    output: Output = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show all stages, the parts of memory, and all assumptions.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Predict whether a recipe fits into memory, how long it takes and how much disk it needs.

    Exits with 1 if it does not fit.
    """
    quieten_libraries()
    recipes = planned_recipes(recipe, overrides or [], methods, grid or [], seeds)
    from weakdriven.pipeline.run import all_stages
    from weakdriven.planning.plan import plan_runs

    root = output or Path("runs") / recipes[0].name
    found = plan_runs(recipes, root, all_stages, gpus=gpus, sharding=sharding, rows=rows)
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        print_plan(found, Console(), every=every)
    if not found.fits:
        raise typer.Exit(1)


def planned_recipes(
    recipe: str, overrides: list[str], methods: str | None, grid: list[str], seeds: int
) -> "list[Recipe]":
    """Return the recipe of one run, or all recipes of a comparison or a sweep."""
    if methods and grid:
        raise UserError("--methods plans a comparison and --grid a sweep; give one of them.")
    if methods:
        from weakdriven.pipeline.compare import seed_recipes, split_methods

        return list(seed_recipes(recipe, overrides, split_methods(methods), seeds).values())
    if grid:
        from weakdriven.pipeline.sweep import grid_recipes

        return list(grid_recipes(recipe, overrides, grid, seeds).values())
    return [load_recipe(recipe, overrides)]


def print_plan(plan: "Plan", console: Console, *, every: bool = False) -> None:
    """Print whether the plan fits, its stages, and settings that would make it fit."""
    print_verdict(plan)
    if every:
        print_memory(plan, console)
        print_time(plan, console)
    else:
        print_stages(plan, console)
    for advice in plan.advice:
        print_advice(advice, plan.micro.get(advice.stage), console)
    if not every:
        print("--all shows every stage, the parts of its memory, and what was assumed and guessed.")
        return
    for title, lines in (("Assumed", plan.assumptions), ("Guessed", plan.guesses)):
        if lines:
            print(f"{title}:\n" + "\n".join(f"  {line}" for line in lines))


def print_verdict(plan: "Plan") -> None:
    """Print two lines: whether the plan fits, and its total cost."""
    device, name = plan.machine.device, plan.recipe.name + (f" ({plan.runs} runs)" if plan.runs > 1 else "")
    room = f"{plan.machine} ({device.memory_gib:.1f} GiB{' each' if plan.machine.count > 1 else ''})"
    if plan.advice:
        worst = max(plan.advice, key=lambda one: one.needs)
        lack = f"{worst.stage} needs {(worst.needs - worst.has) / GIB:.1f} GiB more"
        print(f"{name} does not fit on {room}: {lack}.")
    else:
        print(f"{name} fits on {room}.")
    low, about, high = plan.seconds
    kept, most = plan.disk
    gpu = "" if device.is_cpu else f", {plan.machine.count * about / 3600:,.1f} GPU hours"
    hours = f"About {duration(about)} ({duration(low)} to {duration(high)}){gpu}"
    print(f"{hours}; disk {kept / GB:,.1f} GB, at most {most / GB:,.1f} GB while it runs.\n")


def print_stages(plan: "Plan", console: Console) -> None:
    """Print the stages that train, do not fit, or take long."""
    total, tight = plan.seconds[1], {advice.stage for advice in plan.advice}
    table = slim("stage", "GiB", "micro/max", "time", "range", "disk GB")
    for name, same in grouped(plan.costs).items():
        cost, seconds = same[0], sum(one.seconds for one in same)
        long = seconds >= SHOWN * total > 0
        if cost.workload.kind == "train" or cost.workload.name in tight or long:
            memory = f"{cost.memory.total / GIB:.1f}{mark(plan, cost)}" if cost.memory else ""
            disk = f"{sum(one.kept for one in same) / GB:.1f}"
            table.add_row(name, memory, micro(plan, cost), duration(seconds), span(same), disk)
    if table.row_count:
        console.print(table)


def print_memory(plan: "Plan", console: Console) -> None:
    table = slim("stage", "weights", "grads", "optim.", "activ.", "loss", "reserve", "GiB", "micro/max")
    for name, (cost, *_) in grouped(plan.costs).items():
        if cost.memory:
            sizes = [f"{size / GIB:.1f}" for size in cost.memory.parts().values()]
            table.add_row(name, *sizes, f"{cost.memory.total / GIB:.1f}{mark(plan, cost)}", micro(plan, cost))
    console.print(table)


def print_time(plan: "Plan", console: Console) -> None:
    table = slim("stage", "steps", "tokens", "FLOPs", "time", "range", "disk GB", "more")
    for name, same in grouped(plan.costs).items():
        cost = same[0]
        flops = sum(one.flops for one in same)
        table.add_row(
            name,
            str(cost.steps or ""),
            count(sum(one.tokens for one in same)),
            f"{flops:.0e}".replace("e+", "e") if flops else "",
            duration(sum(one.seconds for one in same)),
            span(same),
            f"{sum(one.kept for one in same) / GB:.2f}",
            f"+{cost.work / GB:.1f}" if cost.work else "",
        )
    console.print(table)


def slim(first: str, *titles: str) -> Table:
    """Return a table without vertical lines: a column of text, then columns of numbers."""
    columns = (Column(title, justify="right", no_wrap=True) for title in titles)
    return Table(Column(first, overflow="fold"), *columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def mark(plan: "Plan", cost: "Cost") -> str:
    """Return an exclamation mark if the stage does not fit."""
    return "!" if cost.memory and cost.memory.total > plan.machine.device.memory else ""


def micro(plan: "Plan", cost: "Cost") -> str:
    """Return the micro-batch size and the largest one that fits."""
    most = plan.micro.get(cost.workload.name)
    return "" if most is None else f"{cost.micro_batch}/{most or 'none'}"


def span(same: "list[Cost]") -> str:
    low, high = sum(cost.low for cost in same), sum(cost.high for cost in same)
    return f"{duration(low)} to {duration(high)}" if high else ""


def grouped(costs: "list[Cost]") -> "dict[str, list[Cost]]":
    """Group stages of the same kind and cost, such as one benchmark on several models, under one label."""
    groups: dict[tuple[Any, ...], list[Cost]] = {}
    for cost in costs:
        parts = cost.workload.name.split("/")
        name = {"eval": f"eval/*/{parts[-1]}", "entropy": "entropy/*"}.get(parts[0], cost.workload.name)
        numbers = (cost.steps, cost.seconds, cost.memory and cost.memory.total, cost.kept)
        groups.setdefault((name, numbers), []).append(cost)
    named: dict[str, list[Cost]] = {}
    labels = Counter[str]()
    for (name, _), same in groups.items():
        label = same[0].workload.name if len(same) == 1 else f"{name} ({len(same)})"
        labels[label] += 1  # a stage may cost more at one point of a sweep than at another
        named[f"{label} #{labels[label]}" if labels[label] > 1 else label] = same
    return named


def print_advice(advice: "Advice", most: int | None, console: Console) -> None:
    needs, has = advice.needs / GIB, advice.has / GIB
    print(f"{advice.stage} does not fit: it needs about {needs:.1f} GiB of {has:.1f}.", end=" ")
    print(f"The largest micro_batch_size that fits is {most}." if most else "No micro_batch_size fits.")
    table = slim("setting", "GiB", "time", "result", "fits")
    for change in advice.changes:
        saved, result = f"-{change.saves_bytes / GIB:.1f}", change.result.removesuffix(" result")
        table.add_row(change.override, saved, f"x{change.time:.2f}", result, "yes" if change.fits else "not alone")
    console.print(table)
    if advice.together:
        print(f"  With all of these it fits: {shlex.join(advice.together)}")
    elif not any(change.fits for change in advice.changes):
        print("  No combination of settings fits; use more or larger devices (--gpus), or a smaller model.")
    print()


def count(number: float) -> str:
    """
    >>> count(4022468096), count(33030144), count(0)
    ('4.02B', '33.0M', '')
    """
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:#.3g}".rstrip(".") + letter
    return f"{number:.0f}" if number else ""


def duration(seconds: float) -> str:
    """
    >>> duration(36), duration(2200), duration(36000), duration(0)
    ('36 s', '37 min', '10.0 h', '')
    """
    if seconds >= 5400:
        return f"{seconds / 3600:,.1f} h"
    if seconds >= 90:
        return f"{seconds / 60:.0f} min"
    return f"{max(seconds, 1):.0f} s" if seconds else ""
