"""The command line: parses, calls one function, prints. Torch is imported by the commands that need it."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from weakdriven.errors import UserError, explain
from weakdriven.recipe import describe, load_recipe, recipe_schema, shipped_recipes

app = typer.Typer(
    help="Weak-driven post-training: one command takes a recipe to a stronger model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
recipes_app = typer.Typer(help="The recipes that come with the package.", invoke_without_command=True)
app.add_typer(recipes_app, name="recipes")
export_app = typer.Typer(help="Save what a run trained in other forms.", no_args_is_help=True)
app.add_typer(export_app, name="export")

RecipeArgument = Annotated[str, typer.Argument(help="A .yaml file, or the name of a shipped recipe.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.sub=value.")]


@app.command()
def run(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option(help="Run directory; unset: runs/NAME.")] = None,
    quiet: Annotated[bool, typer.Option(help="Print the final table only.")] = False,
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Run a recipe: SFT, selection, joint training, evaluation, report. Run again to go on where it stopped."""
    settings = load_recipe(recipe, overrides)
    root = output or Path("runs") / settings.name
    quieten_libraries()
    from weakdriven.pipeline.run import run_recipe
    from weakdriven.progress import choose_progress

    report = run_recipe(settings, root, choose_progress(Console(), quiet=quiet))
    print_scores(root)
    print(f"\nReport: {report}")


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Write report.html of a run again, finished or not."""
    from weakdriven.report import write_report
    from weakdriven.rundir import RUN_FILE

    if not (run / RUN_FILE).is_file():
        raise UserError(f"{run} is not a run directory: it has no {RUN_FILE}.")
    print(write_report(run))


@recipes_app.callback()
def recipes(context: typer.Context) -> None:
    """List the shipped recipes."""
    if context.invoked_subcommand is None:
        for name, path in shipped_recipes().items():
            print(f"{name:18} {describe(path)}")


@recipes_app.command("show")
def recipes_show(name: RecipeArgument) -> None:
    """Print a recipe file."""
    shipped = shipped_recipes()
    path = shipped[name] if name in shipped else Path(name)
    load_recipe(name)
    print(path.read_text(encoding="utf-8"), end="")


@recipes_app.command("schema")
def recipes_schema() -> None:
    """Print the JSON Schema of a recipe, for editors."""
    print(recipe_schema(), end="")


@export_app.command("mix")
def export_mix(
    strong: Annotated[str, typer.Argument(help="Model or adapter folder; or a run, a round of it, a checkpoint.")],
    weak: Annotated[str | None, typer.Argument(help="Model or adapter folder; leave it out for the others.")] = None,
    out: Annotated[str | None, typer.Argument(help="New folder; a run or round has one: RUN/round-N/mixture.")] = None,
    strong_weight: Annotated[
        float | None,
        typer.Option(help="Share of the strong logits; unset: as the run trained it, else 0.5."),
    ] = None,
    dtype: Annotated[
        Literal["bf16", "fp32"] | None,
        typer.Option(help="Of the saved weights; unset: bf16 if both models are, else fp32."),
    ] = None,
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Save weak and strong as one model that answers with their mixed logits, to evaluate what was trained."""
    quieten_libraries()
    from weakdriven.export import export_mix as export

    paths = [path for path in (strong, weak, out) if path is not None]
    mix = export(paths, strong_weight=strong_weight, dtype=dtype)
    print(f"strong  {mix.strong.folder}\nweak    {mix.weak.folder}")
    print(f"weight  {mix.strong_weight:g} on the strong logits, from {mix.weight_from}")
    print(f"saved   {mix.out}, which loads and answers as the two models mixed")


def print_scores(root: Path) -> None:
    from weakdriven.report import accuracy_rows

    rows = accuracy_rows(root)
    if not rows:
        return
    table = Table("model", "benchmark", "correct", "accuracy", "95% interval")
    for row in rows:
        interval = f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"
        correct = f"{row['correct']}/{row['items']}"
        table.add_row(row["name"], row["benchmark"], correct, f"{100 * row['accuracy']:.1f}%", interval)
    Console().print(table)


def quieten_libraries() -> None:
    """Our own progress replaces theirs; set before they are imported."""
    for name, value in {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DATASETS_VERBOSITY": "error",
    }.items():
        os.environ.setdefault(name, value)
    for name in ("torchao", "torch.utils._pytree"):  # transformers imports torchao where it is installed
        logging.getLogger(name).setLevel(logging.ERROR)


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2; `--debug` shows where it arose."""
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        print("Stopped; run the same command again to go on.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        sentence = explain(error)
        if sentence is None or "--debug" in sys.argv:
            raise
        print(f"Error: {sentence}", file=sys.stderr)
        sys.exit(2)
