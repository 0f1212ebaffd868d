"""`weakdriven sweep`: one recipe at several points and under several seeds, one table."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from weakdriven.commands.common import Debug, Force, Quiet, Rehearse, TakeFrom, here, quieten_libraries
from weakdriven.config.file import describe
from weakdriven.config.sweep import shipped_sweeps
from weakdriven.errors import UserError


def sweep(
    recipe: Annotated[str | None, typer.Argument(help="A .yaml file, or the name of a shipped recipe.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.sub=value.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="KEY=0.1..0.9:9, KEY=a,b,c, a shipped sweep, or a sweep's .yaml; several make a product."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many: the recipe's, and those after it.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once; several GPUs are taken in turn.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the runs; unset: runs/NAME-sweep.", callback=here)
    ] = None,
    take_from: TakeFrom = None,
    force: Force = False,
    rehearsal: Rehearse = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Name the paper's sweeps, which come with the package.")
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a recipe at several values of its settings, under several seeds: one table and figures (docs/sweeps.md)."""
    if list_:
        shipped = shipped_sweeps()
        for name, path in shipped.items():
            print(f"{name:{max(map(len, shipped)) + 2}} {describe(path)}")
        return
    if recipe is None:
        raise UserError("Name a recipe: weakdriven sweep RECIPE --grid KEY=VALUES. --list names the paper's sweeps.")
    quieten_libraries()
    from weakdriven.pipeline.run import RunOptions
    from weakdriven.pipeline.sweep import sweep_recipe
    from weakdriven.runs.progress import choose_progress
    from weakdriven.runs.take_over import Siblings

    progress = choose_progress(Console(), quiet=quiet)
    root = sweep_recipe(
        recipe,
        overrides or [],
        output,
        progress,
        grids=grid or [],
        seeds=seeds,
        jobs=jobs,
        options=RunOptions(Siblings(take_from or []), force, rehearsal),
    )
    print_sweep(root)


def print_sweep(root: Path) -> None:
    """The tables of a sweep; a run without a result makes the command fail."""
    from weakdriven.report.sweep.files import FIGURES, SWEEP, caption, failures, read_sweep, tables

    found, console = read_sweep(root), Console()
    for title, (titles, rows) in tables(found).items():
        table = Table(*titles, title=title, title_justify="left")
        for cells in rows:
            table.add_row(*cells)
        console.print(table)
    print(f"{caption(found)}\n\nAlso as .md, .csv, .parquet and .json: {root / SWEEP}.*; figures in {root / FIGURES}")
    if failed := failures(found):
        raise UserError("Without a result: " + "; ".join(failed))
