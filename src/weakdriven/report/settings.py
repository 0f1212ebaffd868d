"""Read the settings of a run from its recipe.yaml, and choose the ones worth showing."""

import json
from typing import Any

import yaml

from weakdriven.report.format import mapping
from weakdriven.runs.yaml import load_yaml

Settings = dict[str, Any]
PHASE = ("epochs", "learning_rate", "batch_size")
KEY_SETTINGS = {
    "sft": PHASE,
    "selection": ("consolidation", "difficulty", "repair"),
    "joint": (*PHASE, "rounds", "strong_weight"),
}
"""Settings that readers look for first."""


def read_settings(data: Settings) -> Settings:
    """Parse the recipe of a run into plain values; empty if it cannot be read."""
    try:
        return mapping(load_yaml(data["recipe_text"]))
    except yaml.YAMLError:
        return {}


def changed_settings(recipe: Settings, *, key_ones: bool = False) -> Settings:
    """Keep the settings that differ from their defaults, without groups of methods that the run does not train.

    Args:
        key_ones: Include `KEY_SETTINGS` even if unchanged.

    >>> changed_settings({"model": "m", "sft": {"epochs": 2, "batch_size": 512}, "dpo": {"epochs": 9}})
    {'model': 'm', 'sft': {'epochs': 2}}
    """
    from weakdriven.config.recipe import METHODS, Recipe  # imports pydantic, which no other part of a page needs

    defaults = Recipe.model_validate({"model": "", "data": {"path": ""}}).model_dump(mode="json")
    for group, names in KEY_SETTINGS.items() if key_ones else ():
        defaults[group] = {name: value for name, value in defaults[group].items() if name not in names}
    unused = {*METHODS} - {"sft", recipe.get("method"), *(recipe.get("baselines") or [])}
    return _changed({name: value for name, value in recipe.items() if name not in unused}, defaults)


def _changed(values: Settings, defaults: Settings) -> Settings:
    found = {}
    for name, value in values.items():
        default = defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict):
            value, default = _changed(value, default), {}
        if value != default:
            found[name] = value
    return found


def flat(settings: Settings, prefix: str = "") -> dict[str, str]:
    """Flatten settings to full names, with values as on the command line.

    >>> flat({"method": "wmss", "sft": {"epochs": 2}, "baselines": ["sft"]})
    {'method': 'wmss', 'sft.epochs': '2', 'baselines': '["sft"]'}
    """
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return found


def sources_of(recipe: Settings) -> list[str]:
    """Return the sources of the training data, as named in the recipe."""
    data = mapping(recipe.get("data"))
    return [one["path"] for one in [data, *(data.get("sources") or [])] if one.get("path")]
