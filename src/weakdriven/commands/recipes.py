"""`weakdriven recipes`: the recipes that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from weakdriven.commands.common import RecipeArgument, print_described
from weakdriven.config.file import dump_recipe, load_recipe, recipe_schema, shipped_recipes
from weakdriven.config.reference import explain_setting, settings_page

recipes_app = typer.Typer(help="The recipes that come with the package.", invoke_without_command=True)


@recipes_app.callback()
def recipes(context: typer.Context) -> None:
    """List the shipped recipes."""
    if context.invoked_subcommand is None:
        print_described(shipped_recipes())


@recipes_app.command("show")
def recipes_show(
    name: RecipeArgument,
    whole: Annotated[bool, typer.Option("--whole", help="Every setting, also inherited ones and defaults.")] = False,
) -> None:
    """Print a recipe file."""
    recipe = load_recipe(name)
    path = shipped_recipes().get(name, Path(name))
    print(dump_recipe(recipe) if whole else path.read_text(encoding="utf-8"), end="")


@recipes_app.command("explain")
def recipes_explain(
    setting: Annotated[str | None, typer.Argument(help="A setting or a group, such as joint; unset: all.")] = None,
) -> None:
    """Print what a setting does, its values and its default."""
    print(explain_setting(setting) if setting else settings_page(), end="\n" if setting else "")


@recipes_app.command("schema")
def recipes_schema() -> None:
    """Print the JSON Schema of a recipe, for editors."""
    print(recipe_schema(), end="")
