"""The smallest recipe, for tests of settings and of files; names of those that ship."""

from copy import deepcopy
from typing import Any

from weakdriven.config.file import apply_override, parse_recipe
from weakdriven.config.recipe import Recipe

MINIMAL = {"model": "some/model", "data": {"path": "rows.jsonl"}}

BACKBONES = {
    "qwen3-4b": "Qwen/Qwen3-4B-Base",
    "qwen3-8b": "Qwen/Qwen3-8B-Base",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B",
    "gemma-3-4b": "google/gemma-3-4b-pt",
}
PAPER = [f"{backbone}-{domain}" for backbone in BACKBONES for domain in ("math", "code", "logic")]


def parse(*overrides: str) -> Recipe:
    """The smallest recipe, with overrides."""
    tree: dict[str, Any] = deepcopy(MINIMAL)
    for override in overrides:
        apply_override(tree, override)
    return parse_recipe(tree, "mine.yaml")
