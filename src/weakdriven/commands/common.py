"""Options and printing that the commands share."""

import logging
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from rich.console import Console
from rich.table import Column, Table
from typer.core import TyperGroup

from weakdriven.config.file import describe, load_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.errors import UserError
from weakdriven.runs.processes import rank
from weakdriven.runs.redact import without_login

Given = TypeVar("Given", Path, list[Path], None)


def default_command(name: str) -> type[TyperGroup]:
    """Return a group with a default command: `select RECIPE` is short for `select draw RECIPE`."""

    class Group(TyperGroup):
        default = name

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            named = not args or args[0] in (*self.commands, *ctx.help_option_names)
            return super().parse_args(ctx, args if named else [name, *args])

    return Group


def here(given: Given) -> Given:
    """Reject URLs where a local directory is expected; pathlib has already turned their `//` into `/`."""
    for path in given if isinstance(given, list) else [given] if given else []:
        if (scheme := re.match(r"[a-z][a-z0-9+.-]+:(?=/)", str(path), re.IGNORECASE)) and not path.exists():
            address = without_login(f"{scheme[0]}/{str(path)[scheme.end() :]}")
            raise UserError(
                f"{address} is a URL, but this command needs a local directory. To download a run from its URL: "
                "weakdriven run RECIPE --output URL --work DIR."
            )
    return given


def runs_given(given: list[Path] | None) -> list[Path]:
    """Return the given run directories, and all run directories inside the other folders."""
    from weakdriven.runs.directory import runs_in

    return runs_in(here(given)) if given else []


RecipeArgument = Annotated[str, typer.Argument(help="A recipe: a .yaml file, or the name of a shipped one.")]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.", callback=here)]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings to change, such as sft.epochs=2.")]
Output = Annotated[Path | None, typer.Option(help="Run directory (default: runs/NAME).", callback=here)]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds, counting up from the recipe's seed.")]
Force = Annotated[bool, typer.Option("--force", help="Train even if the plan predicts too little memory or disk.")]
Replace = Annotated[bool, typer.Option("--replace", help="Recompute finished stages affected by changed settings.")]
Rehearse = Annotated[bool | None, typer.Option(help="First try two steps of each training stage (default: on a GPU).")]
RunsOutput = Annotated[
    Path | None, typer.Option(help="Folder for the runs (default: runs/NAME-COMMAND).", callback=here)
]
TakeFrom = Annotated[
    list[Path] | None, typer.Option(help="Reuse identical finished stages from these runs.", callback=runs_given)
]
Round = Annotated[int | None, typer.Option("--round", help="Round number (default: the last finished round).")]
Jobs = Annotated[int, typer.Option(min=1, help="Number of runs in parallel, spread over the GPUs.")]
DataDir = Annotated[str | None, typer.Option(help="Folder with the benchmark files (default: load from the Hub).")]
Quiet = Annotated[bool, typer.Option(help="Print only the final table.")]
Debug = Annotated[bool, typer.Option(help="Show the traceback of errors.")]


def prepare(
    recipe: str | Recipe, overrides: list[str] | None, output: Path | None, quiet: bool
) -> tuple[Recipe, Path, Any]:
    """Return the recipe, run directory and progress display of a command that computes a run."""
    settings = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
    root = output or Path("runs") / settings.name
    announce(f"{settings.name}: method {settings.method}, model {settings.model}, output {root}", quiet=quiet)
    return settings, root, progress_of(quiet or rank() > 0)


def announce(text: str, *, quiet: bool = False) -> None:
    """Print what the command is about to do, before slow imports start."""
    if not quiet and rank() == 0:
        print(text, flush=True)


def progress_of(quiet: bool) -> Any:
    """Return the command's progress display, and silence those of the libraries."""
    quieten_libraries()
    from weakdriven.runs.progress import choose_progress

    return choose_progress(Console(), quiet=quiet)


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], console: Console | None = None, **options: Any
) -> None:
    table = Table(**options)
    for number, title in enumerate(titles):
        table.add_column(title, no_wrap=number == 0)
    for cells in rows:
        table.add_row(*cells)
    (console or Console()).print(table)


def print_tables(tables: Mapping[str, tuple[list[str], list[list[str]]]], console: Console | None = None) -> None:
    """Print tables under their titles; on a narrow terminal every column but the model's name wraps."""
    for title, (titles, rows) in tables.items():
        columns = [Column(one, no_wrap=one == "model", overflow="fold", justify="right") for one in titles]
        columns[0].justify = "left"
        options = {"box": None, "padding": (0, 2, 0, 0), "pad_edge": False, "collapse_padding": True}
        table = Table(*columns, title=f"\n{title}", title_justify="left", **options)
        for cells in rows:
            table.add_row(*cells)
        (console or Console()).print(table)


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def interval(low: float, high: float, sign: Literal["", "+"] = "") -> str:
    return f"{100 * low:{sign}.1f} to {100 * high:{sign}.1f}"


def print_described(shipped: dict[str, Path]) -> None:
    """List shipped recipes or sweeps with their descriptions."""
    for name, path in shipped.items():
        print(f"{name:{max(map(len, shipped))}}  {describe(path)}")


def refuse_failures(failed: list[str]) -> None:
    """Raise an error if runs have no result, with the command that computes them."""
    if failed:
        command = shlex.join(["weakdriven", *sys.argv[1:]])
        raise UserError(f"No result from: {'; '.join(failed)} To compute what is missing: {command}")


def quieten_libraries() -> None:
    """Turn off the libraries' progress bars and warnings; call it before importing them."""
    for name, value in {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DATASETS_VERBOSITY": "error",
    }.items():
        os.environ.setdefault(name, value)
    for name in ("torchao", "torch.utils._pytree"):  # transformers imports torchao if it is installed
        logging.getLogger(name).setLevel(logging.ERROR)
