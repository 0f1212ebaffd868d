"""`weakdriven sweep`: train one recipe at several points with several seeds, and print one table."""

from pathlib import Path
from typing import Annotated

import typer

from weakdriven.commands import common
from weakdriven.config.sweep import shipped_sweeps
from weakdriven.errors import UserError


def sweep(
    recipe: Annotated[str | None, typer.Argument(help="A recipe: a .yaml file, or the name of a shipped one.")] = None,
    overrides: common.Overrides = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="KEY=0.1..0.9:9 (nine values), KEY=a,b,c or a sweep; several grids are multiplied."),
    ] = None,
    seeds: common.Seeds = 3,
    jobs: common.Jobs = 1,
    output: common.RunsOutput = None,
    take_from: common.TakeFrom = None,
    force: common.Force = False,
    replace: common.Replace = False,
    rehearsal: common.Rehearse = None,
    list_: Annotated[bool, typer.Option("--list", help="List the shipped sweeps, which are the paper's.")] = False,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> None:
    """Train a recipe with several values of a setting and several seeds, and print a table; also writes figures."""
    if list_:
        common.print_described(shipped_sweeps())
        return
    if recipe is None:
        raise UserError("Name a recipe: weakdriven sweep RECIPE --grid KEY=VALUES. --list shows the shipped sweeps.")
    common.announce(f"{recipe}: grid {' '.join(grid or [])}, {seeds} seeds", quiet=quiet)
    progress = common.progress_of(quiet)
    from weakdriven.pipeline.run import RunOptions
    from weakdriven.pipeline.sweep import sweep_recipe
    from weakdriven.runs.take_over import Siblings

    options = RunOptions(Siblings(take_from or []), force, rehearsal, replace)
    shared = {"seeds": seeds, "jobs": jobs, "options": options}
    print_sweep(sweep_recipe(recipe, overrides or [], output, progress, grids=grid or [], **shared))


def print_sweep(root: Path) -> None:
    """Print the tables of a sweep; raise an error if a run has no result."""
    from weakdriven.report.sweep.files import FIGURES, SWEEP, caption, failures, read_sweep, tables

    found = read_sweep(root)
    common.print_tables(tables(found))
    print(f"\n{caption(found)}\n\nTables (.md, .csv, .parquet, .json): {root / SWEEP}.*; figures: {root / FIGURES}")
    common.refuse_failures(failures(found))
