"""The smallest recipe, for tests of settings and of files."""

from copy import deepcopy
from typing import Any

from weakdriven.recipe import Recipe
from weakdriven.recipe_file import apply_override, parse_recipe

MINIMAL = {"model": "some/model", "data": {"path": "rows.jsonl"}}


def parse(*overrides: str) -> Recipe:
    """The smallest recipe, with overrides."""
    tree: dict[str, Any] = deepcopy(MINIMAL)
    for override in overrides:
        apply_override(tree, override)
    return parse_recipe(tree, "mine.yaml")
