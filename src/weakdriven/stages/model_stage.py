"""What every training stage shares: its key, the examples it sees, and the model that comes of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from weakdriven.config.recipe import Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.data.tokenize import load_tokens
from weakdriven.runs.directory import ACTIVE, BUDGET, SNAPSHOTS, TOKENS
from weakdriven.runs.files import read_json
from weakdriven.runs.processes import size
from weakdriven.runs.stage import Compute, Stage
from weakdriven.stages.context import Context, present
from weakdriven.stages.model_loader import Model
from weakdriven.stages.workload import Workload
from weakdriven.training.snapshots import percent

SPEED_ONLY = {"micro_batch_size", "gradient_checkpointing", "activation_offloading", "save_steps", "logging_steps"}
"""Training settings that change time, memory or bookkeeping and not the result."""


@dataclass(frozen=True)
class TrainingSet:
    """What a training stage sees: the examples, the active set if one was drawn, and how long an epoch is."""

    data: Stage
    active: Stage | None = None
    budget: Stage | None = None
    """Holds how many examples an epoch takes, if not those there are."""

    def rows(self) -> Any:
        """The tokenised examples of the active set, each as often as it was drawn; all examples without one."""
        dataset = load_tokens(self.data.path / TOKENS)
        if self.active is None:
            return dataset
        draws_N = pq.read_table(self.active.path / ACTIVE, columns=["draws"])["draws"].to_numpy()
        return dataset.select(np.repeat(np.arange(len(draws_N)), draws_N))

    def matching(self, recipe: Recipe) -> dict[str, Any]:
        """Part of a training stage's key only where it changes something."""
        return {"match_steps": True} if self.active and recipe.selection.match_steps else {}

    def epoch_rows(self, recipe: Recipe) -> int | None:
        """Examples whose number of steps an epoch takes, if not those of its own."""
        if self.budget:
            return read_json(self.budget.path / BUDGET)["rows"]
        return len(load_tokens(self.data.path / TOKENS)) if self.matching(recipe) else None

    def inputs(self) -> dict[str, Stage]:
        return present(data=self.data, active=self.active, budget=self.budget)


def model_stage(
    context: Context,
    workload: Workload,
    compute: Compute,
    settings: TrainSettings,
    *,
    inputs: dict[str, Any],
    also: dict[str, Any],
) -> Model:
    """A stage whose result is a model.

    Args:
        also: What decides the result besides the settings that all training stages have.
    """
    recipe, name = context.recipe, workload.name
    fields, kept = set(TrainSettings.model_fields), tuple(map(percent, settings.snapshots))
    decisive = settings.model_dump(mode="json", include=fields - SPEED_ONLY)
    if not kept:  # then older runs stay valid
        del decisive["snapshots"]
    decisive |= context.inference_settings() | {"seed": recipe.seed}

    def execution() -> dict[str, Any]:
        # `fast_layers` is like micro_batch_size: results differ by rounding, and turning it off should retrain nothing
        found = settings.model_dump(mode="json", include=SPEED_ONLY) | {"fast_layers": context.layers}
        return found | ({"processes": size()} if size() > 1 else {})

    stage = context.run.stage(
        name,
        compute,
        settings={**decisive, **also},
        inputs=inputs,
        execution=execution,
        shared=True,
        holds=[f"{SNAPSHOTS}/{place}" for place in kept],
        workload=workload,
    )
    short = name.replace("baselines/", "baseline-").removesuffix("/strong")
    return Model(short, stage.path, lambda: stage.key, kept)


def other_weak(weak: Model) -> dict[str, Any]:
    """Written down where the weak model is none of M0, M1, ..., so that a reader of the run finds it."""
    return {"weak_model": weak.name} if "-at-" in weak.name else {}
