"""`weakdriven report`: write the page of one run or of several."""

from pathlib import Path
from typing import Annotated

import typer

from weakdriven.commands.common import Debug, announce, default_command, here
from weakdriven.errors import UserError

report_app = typer.Typer(
    short_help="Write the report of a run, or one page for several runs.",
    help="weakdriven report RUN writes RUN/report.html (short for report run RUN).",
    cls=default_command("run"),
)


@report_app.command("run")
def report_run(
    run: Annotated[Path, typer.Argument(help="A run directory, finished or not.", callback=here)],
    figures: Annotated[bool, typer.Option(help="Also write every figure as SVG and PNG into RUN/figures.")] = True,
    follow: Annotated[bool, typer.Option("--follow", help="Keep rewriting the page while the run continues.")] = False,
    debug: Debug = False,
) -> None:
    """Write report.html of a run, and the model card of what it trained."""
    from weakdriven.report import write_report
    from weakdriven.report.card import write_cards
    from weakdriven.report.run.page import follow_report
    from weakdriven.runs.directory import BENCHMARK_SCORES, REPORT, RUN_FILE

    if not (run / RUN_FILE).is_file():
        raise UserError(
            f"{run} is not a run directory: it has no {RUN_FILE}. For several runs: weakdriven report compare."
        )
    if list(run.glob(f"*/{BENCHMARK_SCORES}")):
        raise UserError(
            f"{run} is the output of weakdriven eval, not a run. Print it with weakdriven eval regrade, or compare two "
            "with weakdriven eval compare."
        )
    if follow:
        print(f"Rewriting {run / REPORT} while the run continues; Ctrl-C stops.", flush=True)
        follow_report(run)
    else:
        announce(f"Reading {run}")
        print(write_report(run, figures=figures))
        for path, written in write_cards(run).items():
            print(path if written else f"{path} was edited, so it is kept; delete it to have it written again.")


@report_app.command("compare")
def report_compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories, or one output folder of compare or sweep.", callback=here)
    ],
    output: Annotated[Path | None, typer.Option(help="Page to write (default: compare.html).")] = None,
    against: Annotated[str | None, typer.Option(help="Label of the reference run (default: an SFT control).")] = None,
    debug: Debug = False,
) -> None:
    """Write one page for several runs: leaderboard, significance, cost against gain."""
    from weakdriven.report.compare.page import write_compare

    announce(f"Reading {', '.join(map(str, runs))}")
    print(write_compare(runs, output, against=against))
