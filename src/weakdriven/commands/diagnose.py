"""`weakdriven diagnose`: measure a run and print the paper's two logit tables and what mixing does."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weakdriven.commands.common import Debug, Quiet, here, quieten_libraries


def diagnose(
    run: Annotated[Path, typer.Argument(help="A run directory, finished or not.", callback=here)],
    examples: Annotated[int, typer.Option(help="Examples to look at, drawn at random.")] = 200,
    rows: Annotated[str | None, typer.Option(help="Source of the examples; unset: what was trained on.")] = None,
    split: Annotated[str, typer.Option(help="Of that source, where it has several.")] = "train",
    turn: Annotated[
        int | None, typer.Option("--round", help="Round; unset: the last finished one of the recipe as it is now.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the draw; unset: the recipe's.")] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Look into the logits: what each model's are like, and what mixing does to gradients (docs/diagnostics.md)."""
    quieten_libraries()
    from weakdriven.diagnose.diagnose import diagnose_run, read_diagnosis
    from weakdriven.report.run.diagnosis import print_diagnosis
    from weakdriven.runs.progress import choose_progress

    console = Console()
    progress = choose_progress(console, quiet=quiet)
    folder = diagnose_run(run, progress, examples=examples, rows=rows, split=split, round_number=turn, seed=seed)
    print_diagnosis(read_diagnosis(folder), console)
    console.print(
        f"Every number, with errors, and tokens one by one: {folder}", soft_wrap=True, highlight=False, markup=False
    )
