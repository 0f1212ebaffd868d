"""Which models a run directory holds, whatever its state: unfinished, failed, of an older recipe or version."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.data.prompts import Renderer, give_chat_template
from weakdriven.errors import UserError
from weakdriven.models.load import fingerprint, load_tokenizer, locate_model
from weakdriven.report.files import read_object
from weakdriven.report.format import CONTROLS, mapping, split_snapshot, stage_of, weak_of
from weakdriven.runs.directory import PLAN_FILE, RECIPE_FILE, RUN_FILE, SNAPSHOTS, work_folder
from weakdriven.runs.files import digest
from weakdriven.runs.manifest import MANIFEST
from weakdriven.runs.yaml import read_yaml
from weakdriven.stages.checks import ready_model
from weakdriven.stages.model import Model
from weakdriven.training.snapshots import percent
from weakdriven.wmss.pair import WEAK_FOLDER


@dataclass
class RunModels:
    """The models and finished stages of a run, and why others are missing."""

    root: Path
    recipe: Recipe
    models: dict[str, Model] = field(default_factory=dict)
    """By name, in the order of training: base, sft, round-1 and so on, then weak models and controls."""
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of finished stages, by stage."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why a stage or model is missing."""
    plan: dict[str, Any] = field(default_factory=dict)
    """Key of every stage that the recipe asks for; empty if it was not recorded."""
    notes: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> list[int]:
        """Rounds whose strong model is there."""
        return sorted(int(found[1]) for name in self.models if (found := re.fullmatch(r"round-(\d+)", name)))

    @property
    def current_rounds(self) -> list[int]:
        """Those that are of the recipe as it is now."""
        return [t for t in self.rounds if self.plan.get(f"round-{t}/strong") == self.models[f"round-{t}"].key]

    @property
    def asked_rounds(self) -> int:
        return self.recipe.joint.rounds if self.recipe.method == "wmss" else 0

    @property
    def last_round(self) -> int:
        return max([1, self.asked_rounds, *self.rounds])

    def round_settings(self, round_number: int) -> dict[str, Any]:
        """What a round was trained with; empty if it was not trained."""
        return mapping(self.manifests.get(f"round-{round_number}/strong", {}).get("settings"))

    def weak_of(self, round_number: int) -> str:
        """Name of a round's weak model, as the round was trained or will be."""
        share = self.recipe.joint.weak_snapshot
        if round_number == 1 and share is not None and "strong_weight" not in self.round_settings(1):
            return f"sft-at-{percent(share)}"
        return weak_of(round_number, self.manifests.get(f"round-{round_number}/strong"))

    def tokenizer(self) -> tuple[Model, PreTrainedTokenizerBase] | None:
        """The first model that has a tokenizer, preferably one that this run saved, and its tokenizer."""
        for model in sorted(self.models.values(), key=lambda model: not model.folder.is_relative_to(self.root)):
            with suppress(UserError):  # a weak model that was kept has none of its own
                return model, load_tokenizer(model.folder, trust_remote_code=self.recipe.trust_remote_code)
        return None

    def renderer(self) -> Renderer | None:
        """The form of prompts, with the chat template of the saved models: the recipe's file may have changed."""
        if not (first := self.tokenizer()):
            return None
        (model, tokenizer), recipe, data = first, self.recipe, self.recipe.data
        if not tokenizer.chat_template or not model.folder.is_relative_to(self.root):
            give_chat_template(tokenizer, recipe.chat_template, recipe.model)
        renderer = Renderer(tokenizer, data.domain, data.style, data.system_prompt)
        renderer.check()
        return renderer

    def add(self, stage: str, name: str) -> None:
        """A model that is the result of a stage."""
        self.read_manifest(stage)
        if stage in self.manifests:
            self.models[name] = Model(name, self.root / stage, str(self.manifests[stage]["key"]))

    def read_manifest(self, stage: str) -> None:
        path = self.root / stage / MANIFEST
        manifest = read_object(path)
        if manifest.get("key"):
            self.manifests[stage] = manifest
        elif path.exists():
            self.missing[stage] = f"its {MANIFEST} cannot be read"
        elif work_folder(self.root, stage).is_dir():
            self.missing[stage] = "begun and not finished"
        else:
            self.missing[stage] = "not asked for" if self.plan and stage not in self.plan else "not run yet"


def find_models(root: Path) -> RunModels:
    """The models of a run; a folder that is no run, or has no readable recipe, is an error."""
    if not (root / RUN_FILE).is_file():
        raise UserError(f"{root} is not a run directory: it has no {RUN_FILE}; give the folder that a run wrote.")
    recipe, notes = read_recipe(root / RECIPE_FILE)
    found = RunModels(root, recipe, notes=notes, plan=read_object(root / PLAN_FILE))
    models, missing = found.models, found.missing
    found.read_manifest("data")
    given = recipe.sft.model
    try:
        folder = locate_model(recipe.model)
        models["base"] = Model("base", folder, fingerprint(folder))
        if given:
            models["sft"] = ready_model("sft", given, recipe, models["base"], setting="sft.model: ")
    except (UserError, OSError) as error:
        missing["sft" if "base" in models else "base"] = str(error)
    if given is None:
        found.add("sft", "sft")
    elif "base" not in models:
        missing["sft"] = "sft.model cannot be checked without the base model"
    there = {int(path.name[6:]) for path in root.glob("round-*") if re.fullmatch(r"round-[1-9]\d*", path.name)}
    for t in sorted({*range(1, found.asked_rounds + 1), *there}):
        found.add(f"round-{t}/strong", f"round-{t}")
    for t in found.rounds:
        strong = models[f"round-{t}"]
        if (strong.folder / WEAK_FOLDER).is_dir():
            name = f"round-{t}-weak"
            models[name] = Model(name, strong.folder / WEAK_FOLDER, digest([strong.key, WEAK_FOLDER]))
    last, place = split_snapshot(found.weak_of(1))
    if place is not None and last in models:
        snapshot = models[last].at(place)
        if snapshot.folder.is_dir():
            models[snapshot.name] = snapshot
        else:
            missing[snapshot.name] = f"{SNAPSHOTS}/{place} of {last} is not there"
    controls = [stage_of(name) for name in CONTROLS]
    for stage in controls:
        if stage.removeprefix("baselines/") in (recipe.method, *recipe.baselines) or (root / stage).is_dir():
            found.add(stage, stage.replace("baselines/", "baseline-"))
    if not any(name.startswith("baseline-") for name in models) and not set(controls) & set(missing):
        found.notes.append("There is no SFT control; baselines: [sft_restart] in the recipe trains one.")
    found.notes += outdated(found)
    return found


def outdated(found: RunModels) -> list[str]:
    """A note on stages that are not of the recipe as it is now."""
    if not found.plan:
        return [f"{PLAN_FILE} is missing or cannot be read, so it is not known whether stages are up to date."]
    stages = ", ".join(stage for stage, manifest in found.manifests.items() if found.plan.get(stage) != manifest["key"])
    return [f"Not of the recipe as it is now, but of an older one or an older version: {stages}."] if stages else []


def read_recipe(path: Path) -> tuple[Recipe, list[str]]:
    """The recipe of a run, and a note on settings that this version does not accept, which are left out."""
    if not path.is_file():
        raise UserError(f"{path.parent} has no {path.name}, so nothing was run in it yet.")
    try:
        return load_recipe(str(path)), []
    except UserError as error:
        refused = error
    dropped = list[str]()
    try:
        tree = read_yaml(path)
        while True:
            try:
                recipe = Recipe.model_validate(tree)
                break
            except ValidationError as error:
                removed = [remove(tree, problem["loc"]) for problem in error.errors()]
                if not any(removed):
                    raise
                dropped += filter(None, removed)
    except (OSError, ValueError, yaml.YAMLError):
        raise refused from None
    words = f"{path.name} has settings that this version does not accept, left at their defaults here: "
    return recipe, [words + ", ".join(dropped) + "." if dropped else str(refused)]


def remove(tree: Any, location: tuple[Any, ...]) -> str:
    """Remove the setting at a location of the tree; returns its name, or nothing if it is not there."""
    for depth, part in enumerate(location, start=1):
        if not isinstance(tree, dict) or part not in tree:
            break
        if depth == len(location) or not isinstance(tree[part], dict):
            del tree[part]
            return ".".join(map(str, location[:depth]))
        tree = tree[part]
    return ""
