"""`weakdriven diagnose`: measure a run and print the paper's two logit tables and what mixing does."""

from typing import Annotated

import typer
from rich.console import Console

from weakdriven.commands.common import Debug, Quiet, Replace, Round, RunArgument, announce, progress_of


def diagnose(
    run: RunArgument,
    examples: Annotated[int, typer.Option(help="Examples to measure, drawn at random.")] = 200,
    rows: Annotated[str | None, typer.Option(help="Source of the examples; unset: the training set.")] = None,
    split: Annotated[str, typer.Option(help="Split of that source, if it has several.")] = "train",
    round_number: Round = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the draw; unset: the recipe's.")] = None,
    replace: Replace = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure the logits of each model of a run, and what mixing does to gradients (docs/how-to/diagnostics.md)."""
    announce(f"Measuring the models of {run}", quiet=quiet)
    progress = progress_of(quiet)
    from weakdriven.diagnose.diagnose import diagnose_run, read_diagnosis
    from weakdriven.report.run.diagnosis import print_diagnosis

    options = {"rows": rows, "split": split, "round_number": round_number, "seed": seed, "replace": replace}
    folder, console = diagnose_run(run, progress, examples=examples, **options), Console()
    print_diagnosis(read_diagnosis(folder), console)
    print(f"Every number, with its error, and the tokens one by one: {folder}")
