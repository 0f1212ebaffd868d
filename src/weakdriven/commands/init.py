"""`weakdriven init`: write a first recipe for a model, training data and a test set."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weakdriven.commands.common import Debug, here, quieten_libraries
from weakdriven.errors import UserError

if TYPE_CHECKING:
    from weakdriven.pipeline.new_recipe import NewRecipe

ModelOption = Annotated[str | None, typer.Option(help="Base model: a folder, a Hub id, or embedded:base.")]
DataOption = Annotated[str | None, typer.Option(help="Training rows: a file, a folder, or a Hub dataset.")]
TestOption = Annotated[
    str | None, typer.Option(help="Benchmarks or test files, separated by commas; none: validate on 5% of the rows.")
]
QUESTIONS = {
    "model": "Base model (folder, Hub id, or embedded:base)",
    "data": "Training rows (file, folder, or Hub dataset)",
    "test": "Test set (file, or benchmarks such as gsm8k; none: keep 5% of the rows for validation)",
}


def init(
    model: ModelOption = None,
    data: DataOption = None,
    test: TestOption = None,
    output: Annotated[Path, typer.Option(help="New recipe file.", callback=here)] = Path("recipe.yaml"),
    debug: Debug = False,
) -> None:
    """Write a commented recipe that fits the data; asks for what is not given."""
    new = proposed(model, data, test, ask=sys.stdin.isatty())
    from weakdriven.pipeline.new_recipe import write_recipe

    recipe = write_recipe(new, output)
    print(f"{new.found}\nWritten: {output}")
    commands = (
        ["data", "show", recipe.data.path, "--model", recipe.model],
        ["plan", str(output)],
        ["run", str(output)],
    )
    print("\n".join(f"Next: {shlex.join(['weakdriven', *words])}" for words in commands))


def proposed(model: str | None, data: str | None, test: str | None, *, ask: bool = False) -> "NewRecipe":
    """A recipe for these three; those missing are asked for on a terminal."""
    given = {"model": model, "data": data, "test": test}
    if (missing := [name for name, value in given.items() if value is None]) and not ask:
        names = ", ".join(f"--{name}" for name in missing)
        raise UserError(f"Not given: {names}. A recipe needs --model, --data and --test; on a terminal init asks.")
    answers = {name: typer.prompt(QUESTIONS[name]) if value is None else value for name, value in given.items()}
    quieten_libraries()
    from weakdriven.pipeline.new_recipe import propose

    return propose(**answers)
