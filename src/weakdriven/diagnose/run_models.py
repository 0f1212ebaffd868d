"""Find the models in a run directory in any state: unfinished, failed, of an older recipe or version."""

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
    """Models by name in the order of training: base, sft, round-1 and so on, then weak models and controls."""
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Manifests of finished stages."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why a stage or model is missing."""
    plan: dict[str, Any] = field(default_factory=dict)
    """Key of every stage that the recipe asks for; empty if not recorded."""
    notes: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> list[int]:
        """Rounds that have a strong model."""
        return sorted(int(found[1]) for name in self.models if (found := re.fullmatch(r"round-(\d+)", name)))

    @property
    def current_rounds(self) -> list[int]:
        """Rounds that belong to the present recipe."""
        return [t for t in self.rounds if self.plan.get(f"round-{t}/strong") == self.models[f"round-{t}"].key]

    @property
    def asked_rounds(self) -> int:
        return self.recipe.joint.rounds if self.recipe.method == "wmss" else 0

    @property
    def last_round(self) -> int:
        return max([1, self.asked_rounds, *self.rounds])

    def round_settings(self, round_number: int) -> dict[str, Any]:
        """Return the settings that a round was trained with; empty if it was not trained."""
        return mapping(self.manifests.get(f"round-{round_number}/strong", {}).get("settings"))

    def weak_of(self, round_number: int) -> str:
        """Name a round's weak model, as the round was or will be trained."""
        share = self.recipe.joint.weak_snapshot
        if round_number == 1 and share is not None and "strong_weight" not in self.round_settings(1):
            return f"sft-at-{percent(share)}"
        return weak_of(round_number, self.manifests.get(f"round-{round_number}/strong"))

    def tokenizer(self) -> tuple[Model, PreTrainedTokenizerBase] | None:
        """Return a model and its tokenizer: the first model that has one, preferably saved by this run."""
        for model in sorted(self.models.values(), key=lambda model: not model.folder.is_relative_to(self.root)):
            with suppress(UserError):  # saved weak models have no tokenizer
                return model, load_tokenizer(model.folder, trust_remote_code=self.recipe.trust_remote_code)
        return None

    def renderer(self) -> Renderer | None:
        """Return the prompt format with the chat template of the saved models: the recipe's file may have changed."""
        if not (first := self.tokenizer()):
            return None
        (model, tokenizer), recipe, data = first, self.recipe, self.recipe.data
        if not tokenizer.chat_template or not model.folder.is_relative_to(self.root):
            give_chat_template(tokenizer, recipe.chat_template, recipe.model)
        renderer = Renderer(tokenizer, data.domain, data.style, data.system_prompt)
        renderer.check()
        return renderer

    def add(self, stage: str, name: str) -> None:
        """Add the model that a stage produced."""
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
            self.missing[stage] = "not finished"
        else:
            self.missing[stage] = "not asked for" if self.plan and stage not in self.plan else "not run yet"


def find_models(root: Path) -> RunModels:
    """Find the models of a run; raise an error if the folder is not a run or has no readable recipe."""
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
            missing[snapshot.name] = f"{SNAPSHOTS}/{place} of {last} does not exist"
    controls = [stage_of(name) for name in CONTROLS]
    for stage in controls:
        if stage.removeprefix("baselines/") in (recipe.method, *recipe.baselines) or (root / stage).is_dir():
            found.add(stage, stage.replace("baselines/", "baseline-"))
    if not any(name.startswith("baseline-") for name in models) and not set(controls) & set(missing):
        found.notes.append("There is no SFT control; baselines: [sft_restart] in the recipe trains one.")
    found.notes += outdated(found)
    return found


def outdated(found: RunModels) -> list[str]:
    """Note the stages that do not belong to the present recipe."""
    if not found.plan:
        return [f"{PLAN_FILE} is missing or cannot be read, so stages may be out of date."]
    stages = ", ".join(stage for stage, manifest in found.manifests.items() if found.plan.get(stage) != manifest["key"])
    return [f"From an older recipe or version: {stages}."] if stages else []


def read_recipe(path: Path) -> tuple[Recipe, list[str]]:
    """Read the recipe of a run, with a note on omitted settings that this version does not accept."""
    if not path.is_file():
        raise UserError(f"{path.parent} has no {path.name}, so nothing has run in it yet.")
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
    words = f"{path.name} has settings that this version does not accept and replaces by defaults: "
    return recipe, [words + ", ".join(dropped) + "." if dropped else str(refused)]


def remove(tree: Any, location: tuple[Any, ...]) -> str:
    """Remove the setting at a location of the tree; return its name, or nothing if it does not exist."""
    for depth, part in enumerate(location, start=1):
        if not isinstance(tree, dict) or part not in tree:
            break
        if depth == len(location) or not isinstance(tree[part], dict):
            del tree[part]
            return ".".join(map(str, location[:depth]))
        tree = tree[part]
    return ""
