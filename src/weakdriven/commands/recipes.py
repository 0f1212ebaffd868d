"""`weakdriven recipes`: show the shipped recipes and explain settings; `weakdriven init`: write a first recipe."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weakdriven.commands.common import (
    Debug,
    Overrides,
    RecipeArgument,
    announce,
    here,
    print_described,
    quieten_libraries,
)
from weakdriven.config.data import DataSettings
from weakdriven.config.file import dump_recipe, load_recipe, recipe_schema, shipped_recipes
from weakdriven.config.reference import explain_setting, settings_page
from weakdriven.errors import UserError

if TYPE_CHECKING:
    from weakdriven.pipeline.new_recipe import NewRecipe

ModelOption = Annotated[str | None, typer.Option(help="Base model: a folder, a Hub id, or embedded:base.")]
DataOption = Annotated[str | None, typer.Option(help="Training data: a file, a folder, or a Hub dataset.")]
TestOption = Annotated[
    str | None,
    typer.Option(help="Benchmarks or test files, separated by commas; none: hold out 5% of the data for validation."),
]
QUESTIONS = {
    "model": "Base model (folder, Hub id, or embedded:base)",
    "data": "Training data (file, folder, or Hub dataset)",
    "test": "Test set (file, or benchmarks such as gsm8k; none: hold out 5% of the data for validation)",
}
recipes_app = typer.Typer(help="List the shipped recipes, or explain settings.", invoke_without_command=True)


@recipes_app.callback()
def recipes(context: typer.Context) -> None:
    """List the shipped recipes."""
    if context.invoked_subcommand is None:
        print_described(shipped_recipes())


@recipes_app.command("show")
def recipes_show(
    name: RecipeArgument,
    whole: Annotated[bool, typer.Option("--whole", help="Include inherited settings and defaults.")] = False,
) -> None:
    """Print a recipe file."""
    recipe = load_recipe(name)
    path = shipped_recipes().get(name, Path(name))
    print(dump_recipe(recipe) if whole else path.read_text(encoding="utf-8"), end="")


@recipes_app.command("explain")
def recipes_explain(
    setting: Annotated[str | None, typer.Argument(help="A setting or a group, such as joint (default: all).")] = None,
) -> None:
    """Print what a setting does, its possible values and its default."""
    print(explain_setting(setting) if setting else settings_page(), end="\n" if setting else "")


@recipes_app.command("schema")
def recipes_schema() -> None:
    """Print the JSON Schema of recipes, for autocompletion in editors."""
    print(recipe_schema(), end="")


def init(
    overrides: Overrides = None,
    model: ModelOption = None,
    data: DataOption = None,
    test: TestOption = None,
    output: Annotated[Path, typer.Option(help="Recipe file to write.", callback=here)] = Path("recipe.yaml"),
    debug: Debug = False,
) -> None:
    """Write a commented recipe for a model and data; asks for options that are missing."""
    new = proposed(model, data, test, overrides, ask=sys.stdin.isatty())
    from weakdriven.pipeline.new_recipe import write_recipe

    recipe = write_recipe(new, output)
    print(f"{new.found}\nWritten: {output}")
    look = ["data", "show", *first_source(recipe.data), "--model", recipe.model]
    for words in (look, ["plan", str(output)], ["run", str(output)]):
        print("Next:", shlex.join(["weakdriven", *words]))


def first_source(settings: DataSettings) -> list[str]:
    """Return the arguments with which `weakdriven data show` prints the first source of a recipe.

    >>> first_source(DataSettings(path="a.jsonl", fields={"prompt": "input"}, max_length=512))
    ['a.jsonl', 'data.fields={"prompt": "input"}', 'data.max_length=512']
    """
    first = settings.each[0].model_dump(include={"split", "fields"}, exclude_defaults=True)
    names = {"domain", "style", "system_prompt", "max_length", "long_prompts", "empty_completions"}
    first |= settings.model_dump(include=names, exclude_defaults=True)
    return [settings.each[0].path, *(f"data.{name}={json.dumps(value)}" for name, value in first.items())]


def proposed(
    model: str | None, data: str | None, test: str | None, overrides: list[str] | None = None, *, ask: bool = False
) -> "NewRecipe":
    """Propose a recipe for a model, training data and a test set; `ask` prompts for those that are None."""
    given = {"model": model, "data": data, "test": test}
    if (missing := [name for name, value in given.items() if value is None]) and not ask:
        names = ", ".join(f"--{name}" for name in missing)
        raise UserError(
            f"Missing: {names}. A recipe needs --model, --data and --test; init asks for them on a terminal."
        )
    answers = {name: typer.prompt(QUESTIONS[name]) if value is None else value for name, value in given.items()}
    announce(f"Looking at {answers['model']}, {answers['data']} and {answers['test']}")
    quieten_libraries()
    from weakdriven.pipeline.new_recipe import propose

    return propose(**answers, overrides=overrides)
