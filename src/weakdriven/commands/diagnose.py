"""`weakdriven diagnose`: measure the logits of a run's models, and how mixing changes gradients."""

from typing import Annotated

import typer
from rich.console import Console

from weakdriven.commands.common import Debug, Quiet, Replace, Round, RunArgument, announce, progress_of


def diagnose(
    run: RunArgument,
    examples: Annotated[int, typer.Option(help="Number of random examples to measure.")] = 200,
    rows: Annotated[str | None, typer.Option(help="Source of the examples (default: the training set).")] = None,
    split: Annotated[str, typer.Option(help="Split of --rows, if that is a Hub dataset.")] = "train",
    round_number: Round = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the random draw (default: the recipe's).")] = None,
    replace: Replace = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure the logits of a run's models, and how mixing them changes the gradients."""
    announce(f"Measuring the models of {run}", quiet=quiet)
    progress = progress_of(quiet)
    from weakdriven.diagnose.diagnose import diagnose_run, read_diagnosis
    from weakdriven.report.run.diagnosis import print_diagnosis

    options = {"rows": rows, "split": split, "round_number": round_number, "seed": seed, "replace": replace}
    folder, console = diagnose_run(run, progress, examples=examples, **options), Console()
    print_diagnosis(read_diagnosis(folder), console)
    print(f"All numbers with their standard errors, and a view of single tokens: {folder}")
