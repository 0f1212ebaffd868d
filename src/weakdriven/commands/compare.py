"""`weakdriven compare`: train several methods on the same models and data, and print one table."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from weakdriven.commands import common

COMPARED = "sft,sft_restart,neftune,undial,spin,ssb,dpo,wmss"


def compare(
    recipe: common.RecipeArgument,
    overrides: common.Overrides = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas; sft_restart is always added.")] = COMPARED,
    seeds: common.Seeds = 3,
    jobs: common.Jobs = 1,
    output: common.RunsOutput = None,
    take_from: common.TakeFrom = None,
    force: common.Force = False,
    replace: common.Replace = False,
    rehearsal: common.Rehearse = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> None:
    """Train several methods on the same models and data with several seeds, and print scores and costs."""
    common.announce(f"{recipe}: methods {methods}, {seeds} seeds", quiet=quiet)
    progress = common.progress_of(quiet)
    from weakdriven.pipeline.compare import compare_methods, split_methods
    from weakdriven.pipeline.run import RunOptions
    from weakdriven.runs.take_over import Siblings

    options = RunOptions(Siblings(take_from or []), force, rehearsal, replace)
    shared = {"seeds": seeds, "jobs": jobs, "options": options}
    print_comparison(
        compare_methods(recipe, overrides or [], output, progress, methods=split_methods(methods), **shared)
    )


def print_comparison(root: Path) -> None:
    """Print the tables and the verdict of a comparison; raise an error if a method has no result."""
    from weakdriven.report.compare.page import verdict
    from weakdriven.report.compare.table import COMPARISON, caption, failures, tables
    from weakdriven.runs.files import read_json

    found = read_json(root / f"{COMPARISON}.json")
    common.print_tables(tables(found))
    print(f"\n{caption(found)}\n\n{' '.join(verdict(found))}\n\nTables (.md, .csv, .json): {root / COMPARISON}.*")
    print(f"As a page:                 weakdriven report compare {shlex.quote(str(root))}")
    common.refuse_failures(failures(found))
