"""`weakdriven recipes`: the recipes that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from weakdriven.commands.common import RecipeArgument
from weakdriven.config.file import describe, dump_recipe, extended, load_recipe, recipe_schema, shipped_recipes

recipes_app = typer.Typer(help="The recipes that come with the package.", invoke_without_command=True)


@recipes_app.callback()
def recipes(context: typer.Context) -> None:
    """List the shipped recipes; those that extend another are below it."""
    if context.invoked_subcommand is not None:
        return
    shipped = shipped_recipes()
    width = max(map(len, shipped)) + 3
    for place, (name, path) in enumerate(shipped.items()):
        below = extended(path) is not None
        if place and not below:
            print()
        print(f"{'  ' * below + name:{width}} {describe(path)}")


@recipes_app.command("show")
def recipes_show(
    name: RecipeArgument,
    whole: Annotated[
        bool, typer.Option("--whole", help="Every setting, including those it extends and the defaults.")
    ] = False,
) -> None:
    """Print a recipe file."""
    recipe = load_recipe(name)
    path = shipped_recipes().get(name, Path(name))
    print(dump_recipe(recipe) if whole else path.read_text(encoding="utf-8"), end="")


@recipes_app.command("schema")
def recipes_schema() -> None:
    """Print the JSON Schema of a recipe, for editors."""
    print(recipe_schema(), end="")
