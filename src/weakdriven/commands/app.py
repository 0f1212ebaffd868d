"""Assemble the commands into one application; `main` turns errors into messages and exit codes."""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weakdriven import __version__
from weakdriven.commands.chat import chat
from weakdriven.commands.compare import compare
from weakdriven.commands.data import data_app
from weakdriven.commands.diagnose import diagnose
from weakdriven.commands.eval import eval_app
from weakdriven.commands.export import export_app
from weakdriven.commands.plan import plan
from weakdriven.commands.recipes import init, recipes_app
from weakdriven.commands.report import report_app
from weakdriven.commands.run import run
from weakdriven.commands.select import select_app
from weakdriven.commands.sweep import sweep
from weakdriven.commands.verify import verify
from weakdriven.errors import explain
from weakdriven.runs.processes import OtherProcessFailed, leave, rank
from weakdriven.runs.redact import redact_output
from weakdriven.runs.replaced import WouldReplace
from weakdriven.runs.signals import EXIT_CODE, INTERRUPTED, Stopped, stoppable

# fmt: off
ORDER = (
    "init", "recipes", "data", "plan", "run", "chat", "eval", "report", "diagnose", "compare", "sweep", "select",
    "export", "verify",
)
# fmt: on
"""The order in which --help lists the commands: roughly the order of use."""


class InOrderOfUse(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*ORDER, *sorted(set(self.commands) - {*ORDER})]


def print_version(asked: bool) -> None:
    if asked:
        print(f"weakdriven {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=InOrderOfUse,
    help="Weak-driven post-training (WMSS) of language models: run a recipe, get a trained model and a report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(init)
app.command()(run)
app.add_typer(select_app, name="select")
app.command()(compare)
app.command()(sweep)
app.command()(plan)
app.add_typer(eval_app, name="eval", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.command()(chat)
app.command()(diagnose)
app.add_typer(report_app, name="report", no_args_is_help=True)
app.command()(verify)
app.add_typer(recipes_app, name="recipes")
app.add_typer(export_app, name="export")


def main() -> None:
    """Run the command line; an error that the user can fix prints one message and exits with 2.

    `--debug` shows its traceback.
    """
    redact_output()
    try:
        with stoppable():
            app(standalone_mode=True)
    except (SystemExit, KeyboardInterrupt) as end:  # Typer turns KeyboardInterrupt into SystemExit(130)
        interrupted = isinstance(end, KeyboardInterrupt) or end.code == INTERRUPTED
        if interrupted:
            print("Stopped; run the same command again to resume.", file=sys.stderr)
        leave()
        if interrupted:
            sys.exit(INTERRUPTED)
        raise
    except Stopped as stop:
        if rank() == 0:
            print(stop, file=sys.stderr)
        leave()  # all processes stop together
        sys.exit(INTERRUPTED if stop.interrupted else EXIT_CODE)
    except Exception as error:
        sentence = explain(error)
        if sentence is None or "--debug" in sys.argv:
            raise
        if not isinstance(error, OtherProcessFailed):
            print(f"Error: {sentence}", file=sys.stderr)
            if isinstance(error, WouldReplace):
                print(error.commands(sys.argv[1:]), file=sys.stderr)
        sys.exit(2)
