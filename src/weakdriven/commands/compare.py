"""`weakdriven compare`: several methods from the same models and data, one table."""

from pathlib import Path
from typing import Annotated

import typer

from weakdriven.commands.common import (
    Debug,
    Force,
    Overrides,
    Quiet,
    RecipeArgument,
    Rehearse,
    Seeds,
    TakeFrom,
    here,
    print_table,
    progress_of,
    refuse_failures,
)

COMPARED = "sft,sft_restart,neftune,undial,spin,ssb,dpo,wmss"


def compare(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas; sft_restart is always included.")
    ] = COMPARED,
    seeds: Seeds = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Seeds to run in parallel, spread over the GPUs.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the runs; unset: runs/NAME-compare.", callback=here)
    ] = None,
    take_from: TakeFrom = None,
    force: Force = False,
    rehearsal: Rehearse = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train several methods from the same models and data, under several seeds: one table of scores and costs."""
    progress = progress_of(quiet)
    from weakdriven.pipeline.compare import compare_methods
    from weakdriven.pipeline.run import RunOptions
    from weakdriven.runs.take_over import Siblings

    names = [name.strip() for name in methods.split(",") if name.strip()]
    options = RunOptions(Siblings(take_from or []), force, rehearsal)
    shared = {"seeds": seeds, "jobs": jobs, "options": options}
    print_comparison(compare_methods(recipe, overrides or [], output, progress, methods=names, **shared))


def print_comparison(root: Path) -> None:
    """Print the tables of a comparison; a method without a result makes the command fail."""
    from weakdriven.report.compare.table import COMPARISON, caption, failures, tables
    from weakdriven.runs.files import read_json

    found = read_json(root / f"{COMPARISON}.json")
    for titles, rows in tables(found):
        print_table(titles, rows)
    print(f"{caption(found)}\n\nAlso as .md, .csv and .json: {root / COMPARISON}.*")
    refuse_failures(failures(found))
