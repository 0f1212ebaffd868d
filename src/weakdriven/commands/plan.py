"""`weakdriven plan`: memory, time and disk of a recipe, before it runs."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from weakdriven.commands.common import Debug, Output, Overrides, RecipeArgument, quieten_libraries
from weakdriven.config.file import load_recipe

if TYPE_CHECKING:
    from weakdriven.planning.advice import Advice
    from weakdriven.planning.costs import Cost
    from weakdriven.planning.plan import Plan

GIB, GB = 2**30, 1e9
WIDTH = 140
"""Columns that tables need to stay whole; a narrower terminal breaks lines, a pipe does not."""


def plan(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    gpus: Annotated[str | None, typer.Option(help="Devices, such as 8xH100-80G; unset: this machine.")] = None,
    sharding: Annotated[str | None, typer.Option(help="On several devices: fsdp, or ddp (with lora).")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of training data that is not here.")] = None,
    output: Output = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Predict what a recipe costs before it runs: memory, hours and disk of each stage, from config.json alone."""
    settings = load_recipe(recipe, overrides)
    quieten_libraries()
    from weakdriven.pipeline.run import all_stages
    from weakdriven.planning.plan import plan_recipe

    root = output or Path("runs") / settings.name
    found = plan_recipe(settings, root, all_stages, gpus=gpus, sharding=sharding, rows=rows)
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        console = Console()
        print_plan(found, Console(width=max(console.width, WIDTH)))


def print_plan(plan: "Plan", console: Console) -> None:
    """Two tables, what does not fit, the sum, and what was assumed."""
    device, costs = plan.machine.device, grouped(plan.costs)
    print(f"{plan.recipe.name} on {plan.machine}, {device.memory_gib:.1f} GiB each\n")
    parts = ("weights", "grads", "optim.", "activ.", "loss", "reserve")
    memory = Table(Column("stage", no_wrap=True), "parameters", "trained", "micro", *parts, "GiB", "largest micro")
    for name, cost in costs.items():
        if cost.memory:
            sizes = [f"{size / GIB:.1f}" for size in cost.memory.parts().values()]
            total = f"{cost.memory.total / GIB:.1f}" + ("" if cost.memory.total <= device.memory else " !")
            largest = plan.micro.get(cost.workload.name)
            most = "" if largest is None else str(largest or "none")
            counts = (count(cost.parameters), count(cost.trained), str(cost.micro_batch or ""))
            memory.add_row(name, *counts, *sizes, total, most)
    console.print(memory)
    time = Table(
        Column("stage", no_wrap=True), "steps", "tokens", "FLOPs", "hours", "range", "disk GB", "while it runs"
    )
    for name, cost in costs.items():
        time.add_row(
            name,
            str(cost.steps or ""),
            count(cost.tokens),
            f"{cost.flops:.1e}" if cost.flops else "",
            hours(cost.seconds),
            f"{hours(cost.low)} to {hours(cost.high)}" if cost.seconds else "",
            f"{cost.kept / GB:.2f}",
            f"+{cost.work / GB:.1f}" if cost.work else "",
        )
    console.print(time)
    for advice in plan.advice:
        print_advice(advice, plan.micro.get(advice.stage))
    low, about, high = plan.seconds
    kept, most = plan.disk
    gpu = "" if device.is_cpu else f", {plan.machine.count * about / 3600:,.1f} GPU hours"
    disk = f"disk {kept / GB:,.1f} GB, at most {most / GB:,.1f} GB while it runs"
    print(f"Total: {hours(about)} hours ({hours(low)} to {hours(high)}){gpu}; {disk}.")
    for title, lines in (("Assumed", plan.assumptions), ("Guessed", plan.guesses)):
        if lines:
            print(f"{title}:\n" + "\n".join(f"  {line}" for line in lines))


def grouped(costs: "list[Cost]") -> "dict[str, Cost]":
    """One cost for stages that differ by the model alone, by name: evaluations and scans cost the same for each."""
    groups: dict[tuple[str, ...], list[Cost]] = {}
    for cost in costs:
        parts = cost.workload.name.split("/")
        key = {"eval": ("eval", "*", parts[-1]), "entropy": ("entropy", "*")}.get(parts[0], tuple(parts))
        groups.setdefault(key, []).append(cost)
    return {
        same[0].workload.name if len(same) == 1 else f"{'/'.join(key)}, each of {len(same)}": same[0]
        for key, same in groups.items()
    }


def print_advice(advice: "Advice", micro: int | None) -> None:
    needs, has = advice.needs / GIB, advice.has / GIB
    print(f"{advice.stage} does not fit: about {needs:.1f} GiB of {has:.1f}.", end=" ")
    if micro:
        print(f"The largest micro_batch_size that does is {micro}.")
    else:
        print("No micro_batch_size does.")
    for change in advice.changes:
        verdict = "fits" if change.fits else "not enough alone"
        saves = f"-{change.saves_bytes / GIB:.1f} GiB"
        print(f"  {change.override:46} {saves:>11}  time x{change.time:.2f}  {change.result}, {verdict}")
    if advice.together:
        print(f"  Together these fit: {shlex.join(advice.together)}")
    elif not any(change.fits for change in advice.changes):
        print("  No settings together fit; take more or larger devices (--gpus), or a smaller model.")
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


def hours(seconds: float) -> str:
    """
    >>> hours(36), hours(36000), hours(0)
    ('0.01', '10.0', '')
    """
    value = seconds / 3600
    if value >= 1:
        return f"{value:,.1f}"
    return f"{value:.2f}" if value >= 0.01 else "<0.01" if seconds else ""
