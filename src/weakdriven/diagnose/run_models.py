"""Which models a run directory holds, whatever its state: unfinished, failed, of an older recipe or version."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.errors import UserError
from weakdriven.models.load import fingerprint, locate_model
from weakdriven.report.format import CONTROLS, mapping, split_snapshot, stage_of, weak_of
from weakdriven.runs.directory import PLAN_FILE, RECIPE_FILE, RUN_FILE, SNAPSHOTS, work_folder
from weakdriven.runs.files import digest
from weakdriven.runs.manifest import MANIFEST
from weakdriven.runs.yaml import read_yaml
from weakdriven.stages.checks import ready_model
from weakdriven.stages.model_loader import Model
from weakdriven.training.snapshots import percent
from weakdriven.wmss.pair import WEAK_FOLDER


@dataclass
class RunModels:
    """What is there, and in words what is not."""

    root: Path
    recipe: Recipe
    models: dict[str, Model] = field(default_factory=dict)
    """By name, in the order of training: base, sft, round-1 and so on, then weak models and controls."""
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By stage, of those that are finished."""
    missing: dict[str, str] = field(default_factory=dict)
    """Stage or model to why it is not there."""
    plan: dict[str, Any] = field(default_factory=dict)
    """Key of every stage that the recipe asks for, where that was written down."""
    notes: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> list[int]:
        """Rounds whose strong model is there."""
        return sorted(int(found[1]) for name in self.models if (found := re.fullmatch(r"round-(\d+)", name)))

    @property
    def current_rounds(self) -> list[int]:
        """Those that are of the recipe as it is now."""
        return [
            turn for turn in self.rounds if self.plan.get(f"round-{turn}/strong") == self.models[f"round-{turn}"].key
        ]

    def round_settings(self, turn: int) -> dict[str, Any]:
        """What a round was trained with; empty where it was not."""
        return mapping(self.manifests.get(f"round-{turn}/strong", {}).get("settings"))

    def weak_of(self, turn: int) -> str:
        """Name of a round's weak model, as the round was trained or will be."""
        share = self.recipe.joint.weak_snapshot
        if turn == 1 and share is not None and "strong_weight" not in self.round_settings(turn):
            return f"sft-at-{percent(share)}"
        return weak_of(turn, self.manifests.get(f"round-{turn}/strong"))

    @property
    def last_round(self) -> int:
        """The last that there is or that the recipe asks for."""
        asked = self.recipe.joint.rounds if self.recipe.method == "wmss" else 1
        return max([asked, *self.rounds])


def find_models(root: Path) -> RunModels:
    """Look through a run directory; only a folder that is no run, or says nothing of its models, is refused."""
    if not (root / RUN_FILE).is_file():
        raise UserError(f"{root} is not a run directory: it has no {RUN_FILE}; give the folder that a run wrote.")
    recipe, notes = read_recipe(root / RECIPE_FILE)
    found = RunModels(root, recipe, notes=notes, plan=read_lenient(root / PLAN_FILE))
    _stage(found, "data")
    try:
        folder = locate_model(recipe.model)
        found.models["base"] = Model("base", folder, fingerprint(folder))
    except (UserError, OSError) as error:
        found.missing["base"] = str(error)
    if recipe.sft.model is None:
        _add(found, "sft", "sft")
    elif base := found.models.get("base"):
        try:
            found.models["sft"] = ready_model("sft", recipe.sft.model, recipe, base, setting="sft.model: ")
        except (UserError, OSError) as error:
            found.missing["sft"] = str(error)
    else:
        found.missing["sft"] = "sft.model cannot be checked without the base model"
    folders = (path.name for path in root.glob("round-*"))
    there = {int(name[6:]) for name in folders if re.fullmatch(r"round-[1-9]\d*", name)}
    asked = range(1, recipe.joint.rounds + 1) if recipe.method == "wmss" else ()
    for turn in sorted({*asked, *there}):
        _add(found, f"round-{turn}/strong", f"round-{turn}")
    for turn in found.rounds:
        if (folder := found.models[f"round-{turn}"].folder / WEAK_FOLDER).is_dir():
            key = digest([found.models[f"round-{turn}"].key, WEAK_FOLDER])
            found.models[f"round-{turn}-weak"] = Model(f"round-{turn}-weak", folder, key)
    _add_snapshot(found, found.weak_of(1))
    for stage in (controls := [stage_of(name) for name in CONTROLS]):
        if stage.removeprefix("baselines/") in (recipe.method, *recipe.baselines) or (root / stage).is_dir():
            _add(found, stage, stage.replace("baselines/", "baseline-"))
    if not any(name.startswith("baseline-") for name in found.models) and not set(controls) & set(found.missing):
        found.notes.append("There is no SFT control; baselines: [sft_restart] in the recipe trains one.")
    _tell_outdated(found)
    return found


def _add(found: RunModels, stage: str, name: str) -> None:
    _stage(found, stage)
    if stage in found.manifests:
        found.models[name] = Model(name, found.root / stage, str(found.manifests[stage]["key"]))


def _add_snapshot(found: RunModels, name: str) -> None:
    """A weak model that is what M1 was earlier in its training; of M0 and M1 there is nothing to add."""
    last, place = split_snapshot(name)
    if place is None or last not in found.models:
        return
    snapshot = found.models[last].at(place)
    if snapshot.folder.is_dir():
        found.models[name] = snapshot
    else:
        found.missing[name] = f"{SNAPSHOTS}/{place} of {last} is not there"


def _stage(found: RunModels, stage: str) -> None:
    """Note the manifest of a finished stage; of another, why it is missing."""
    try:
        manifest = json.loads((found.root / stage / MANIFEST).read_text(encoding="utf-8"))
        if not mapping(manifest).get("key"):
            raise ValueError
        found.manifests[stage] = manifest
    except FileNotFoundError:
        begun = work_folder(found.root, stage).is_dir()
        unasked = found.plan and stage not in found.plan
        found.missing[stage] = "begun and not finished" if begun else f"not {'asked for' if unasked else 'run yet'}"
    except (OSError, ValueError):
        found.missing[stage] = f"its {MANIFEST} cannot be read"


def _tell_outdated(found: RunModels) -> None:
    if not found.plan:
        found.notes.append(
            f"{PLAN_FILE} is missing or cannot be read, so it is not known whether stages are up to date."
        )
        return
    stages = ", ".join(stage for stage, manifest in found.manifests.items() if found.plan.get(stage) != manifest["key"])
    if stages:
        found.notes.append(f"Not of the recipe as it is now, but of an older one or an older version: {stages}.")


def read_lenient(path: Path) -> dict[str, Any]:
    """The values in a file; none if it is missing or cannot be read."""
    try:
        return mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def read_recipe(path: Path) -> tuple[Recipe, list[str]]:
    """The recipe of a run; settings that this version does not know or accept are left out and named."""
    try:
        return load_recipe(str(path)), []
    except UserError as error:
        if not path.is_file():
            raise UserError(f"{path.parent} has no {path.name}, so nothing was run in it yet.") from None
        refused = error
    try:
        tree = read_yaml(path)
    except (OSError, ValueError, yaml.YAMLError):
        raise refused from None
    dropped = list[str]()
    for _ in range(100):
        try:
            recipe = Recipe.model_validate(tree)
            words = f"{path.name} has settings that this version does not accept, left at their defaults here: "
            return recipe, [words + ", ".join(dropped) + "." if dropped else str(refused)]
        except ValidationError as error:
            gone = [key for problem in error.errors() if (key := _remove(tree, list(problem["loc"])))]
            if not gone:
                break
            dropped += gone
    raise refused


def _remove(tree: Any, location: list[Any]) -> str:
    """Take the setting at a place out of the tree; its name, or nothing where there is none."""
    for depth, part in enumerate(location):
        if not isinstance(tree, dict) or part not in tree:
            return ""
        if depth == len(location) - 1 or not isinstance(tree[part], dict):
            del tree[part]
            return ".".join(map(str, location[: depth + 1]))
        tree = tree[part]
    return ""
