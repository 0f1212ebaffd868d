"""The smallest recipe, for tests of settings and files; the stage keys of a recipe; names of the shipped ones."""

from copy import deepcopy
from pathlib import Path
from typing import Any

from small_runs import small_recipe
from weakdriven.config.file import apply_override, parse_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.pipeline.run import all_stages
from weakdriven.runs.executor import DryRun
from weakdriven.stages.checks import check_recipe

MINIMAL = {"model": "some/model", "data": {"path": "rows.jsonl"}}

BACKBONES = {
    "qwen3-4b": "Qwen/Qwen3-4B-Base",
    "qwen3-8b": "Qwen/Qwen3-8B-Base",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B",
    "gemma-3-4b": "google/gemma-3-4b-pt",
}
PAPER = [f"{backbone}-{domain}" for backbone in BACKBONES for domain in ("math", "code", "logic")]


def parse(*overrides: str) -> Recipe:
    """Load the smallest recipe with overrides."""
    tree: dict[str, Any] = deepcopy(MINIMAL)
    for override in overrides:
        apply_override(tree, override)
    return parse_recipe(tree, "mine.yaml")


def stage_keys(*overrides: str) -> dict[str, str]:
    """Return the key of each stage of the small demo recipe, without running it."""
    stages = check_recipe(small_recipe(*overrides), DryRun(Path("nowhere")))
    all_stages(stages)
    return {entry.name: entry.key for entry in stages.run.planned}
