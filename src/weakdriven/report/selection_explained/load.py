"""The selection (WD-DS) of a round and the scores it was drawn from. N = examples."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from weakdriven.errors import UserError
from weakdriven.report.files import Columns, read_columns, read_object
from weakdriven.report.format import mapping, model_at, weak_of
from weakdriven.runs.directory import ACTIVE, PLAN_FILE, RECIPE_FILE, RUN_FILE, SCORES
from weakdriven.runs.manifest import MANIFEST
from weakdriven.runs.yaml import read_yaml
from weakdriven.wmss.selection import draws, selection_weights

LETTERS = {"consolidation": "alpha", "difficulty": "beta", "repair": "gamma"}


@dataclass(frozen=True)
class Selection:
    """A finished selection and the scores it was drawn from, in the order of the data."""

    run: Path
    round_number: int
    settings: dict[str, Any]
    counters: dict[str, Any]
    active: Columns
    weak_entropy: np.ndarray
    strong_entropy: np.ndarray
    truncated: np.ndarray
    models: tuple[str, str]
    """Names of the weak and of the strong one."""
    note: str
    """Why the explanation may not hold; empty if it does."""

    @property
    def draws(self) -> int:
        return draws(len(self.active.ids), self.settings["multiplier"])

    def terms(self, rows: list[int] | None = None) -> np.ndarray:
        """The three weighted terms of every example or of some, (3, N)."""
        weights = {name: self.settings[name] for name in (*LETTERS, "formula")}
        return selection_weights(self.weak_entropy, self.strong_entropy, **weights)[:, rows or slice(None)]


def load_selection(run: Path, round_number: int | None = None) -> Selection:
    """The selection of a round, by default of the last that has one, with its scores."""
    round_number, outdated = find_round(run, round_number)
    stage, strong = f"round-{round_number}/active", model_at(round_number)
    manifest = read_object(run / stage / MANIFEST)
    weak = weak_of(round_number, manifest)
    settings = mapping(manifest.get("settings"))
    if lacking := [name for name in (*LETTERS, "formula", "multiplier") if name not in settings]:
        raise UserError(
            f"{stage}/{MANIFEST} does not say {', '.join(lacking)}; remove the folder {stage} and run the recipe again."
        )
    active = read_columns(run, f"{stage}/{ACTIVE}", ["probability", "draws"])
    weak_scores = _scores(run, weak, ["entropy"], active, stage)
    strong_scores = _scores(run, strong, ["entropy", "truncated"], active, stage)
    note = f"The recipe has changed since {stage} was drawn; run it again for a new draw." if outdated else ""
    counters = mapping(manifest.get("counters"))
    columns = (weak_scores["entropy"], strong_scores["entropy"], strong_scores["truncated"])
    selection = Selection(run, round_number, settings, counters, active, *columns, (weak, strong), note)
    if _follows(selection):
        return selection
    note += f" The probabilities in {stage} do not follow from the present entropies; run the recipe again."
    return replace(selection, note=note.strip())


def _scores(run: Path, model: str, names: list[str], active: Columns, stage: str) -> dict[str, np.ndarray]:
    """Score columns of a model, if they are of the examples that were drawn from."""
    columns = read_columns(run, f"entropy/{model}/{SCORES}", names)
    if not columns.ids.equals(active.ids):
        raise UserError(
            f"entropy/{model} scores {len(columns.ids):,} examples and {stage} draws from {len(active.ids):,}, "
            "and their ids differ: the data has changed in between. Run the recipe again."
        )
    return columns.values


def find_round(run: Path, round_number: int | None = None) -> tuple[int, bool]:
    """The round to explain, and whether its selection belongs to an older recipe."""
    if not (run / RUN_FILE).is_file():
        raise UserError(f"{run} is not a run directory: it has no {RUN_FILE}; give the folder that a run wrote.")
    keys = {
        int(found[1]): read_object(path).get("key")
        for path in run.glob(f"round-*/active/{MANIFEST}")
        if (found := re.fullmatch(r"round-([1-9]\d*)", path.parts[-3]))
    }
    if not keys:
        raise UserError(_why_none(run))
    plan = read_object(run / PLAN_FILE)
    current = [t for t, key in keys.items() if not plan or plan.get(f"round-{t}/active") == key]
    if round_number is None:
        round_number = max(current or keys)
    if round_number not in keys:
        have = ", ".join(map(str, sorted(keys)))
        raise UserError(f"{run} has no selection of round {round_number}; give --round with one of {have}.")
    return round_number, round_number not in current


def _follows(selection: Selection) -> bool:
    """Whether the stored probabilities are those that the scores give now."""
    weight_N = selection.terms().sum(0)
    total, stored_N = weight_N.sum(), selection.active.values["probability"]
    return np.allclose(stored_N, weight_N / total if total > 0 else 1 / len(weight_N), rtol=1e-6, atol=0)


def _why_none(run: Path) -> str:
    try:
        recipe = mapping(read_yaml(run / RECIPE_FILE))
    except (OSError, ValueError, yaml.YAMLError):
        recipe = {}
    if mapping(recipe.get("selection")).get("enabled") is False:
        return f"{run} selects nothing: its recipe has selection.enabled: false; set it to true and run it again."
    if recipe.get("method", "wmss") != "wmss":
        return f"{run} selects nothing: its recipe has method: {recipe['method']}, and only wmss selects."
    return f"{run} has no finished selection yet; make one with `weakdriven select`, or let `weakdriven run` go on."
