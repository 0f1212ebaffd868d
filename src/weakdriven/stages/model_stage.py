"""Stages whose result is a model: supervised fine-tuning, WD-JT (paper Sec. 4.3), and merging an adapter."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from weakdriven.config.recipe import JointSettings, Recipe, SftSettings
from weakdriven.config.settings import SupervisedSettings, TrainSettings
from weakdriven.data.tokenize import load_tokens
from weakdriven.runs.directory import ACTIVE, BUDGET, SCORES, SNAPSHOTS, TOKENS
from weakdriven.runs.files import read_json
from weakdriven.runs.processes import is_main, size
from weakdriven.runs.stage import Compute, Stage
from weakdriven.stages.context import Context, present
from weakdriven.stages.model import Model
from weakdriven.stages.validation import validation_rows
from weakdriven.stages.workload import Workload
from weakdriven.training.best import publish_best
from weakdriven.training.checkpoints import resume_step
from weakdriven.training.snapshots import percent, publish_snapshots
from weakdriven.training.variant import PLAIN, Variant

if TYPE_CHECKING:
    from datasets import Dataset

SPEED_ONLY = {
    "micro_batch_size",
    "packing",
    "gradient_checkpointing",
    "activation_offloading",
    "save_steps",
    "logging_steps",
    "eval_steps",
}
"""Training settings that change time, memory or bookkeeping, but not the result."""


@dataclass(frozen=True)
class TrainingSet:
    """What a training stage reads: the examples, the active set if there is one, and the length of an epoch."""

    data: Stage
    active: Stage | None = None
    budget: Stage | None = None
    """If set, this stage gives the number of examples in an epoch."""
    verified: bool = False
    """Whether `data` also holds verified completions."""

    def rows(self) -> Any:
        """Load the tokenised examples of the active set, each as often as it was drawn; without one, all examples."""
        dataset = load_tokens(self.data.path / TOKENS)
        if self.active is None:
            return dataset
        draws_N = pq.read_table(self.active.path / ACTIVE, columns=["draws"])["draws"].to_numpy()
        return dataset.select(np.repeat(np.arange(len(draws_N)), draws_N))

    def matching(self, recipe: Recipe) -> dict[str, Any]:
        """Return the setting for a stage's key only if it changes the training."""
        return {"match_steps": True} if self.active and recipe.selection.match_steps else {}

    def epoch_rows(self, recipe: Recipe) -> int | None:
        """Return the number of rows that sets the steps of an epoch, or None for that of the training set."""
        if self.budget:
            return read_json(self.budget.path / BUDGET)["rows"]
        return len(load_tokens(self.data.path / TOKENS)) if self.matching(recipe) else None

    def inputs(self) -> dict[str, Stage]:
        return present(data=self.data, active=self.active, budget=self.budget)

    def workload(self, recipe: Recipe) -> dict[str, Any]:
        matched = bool(self.matching(recipe))
        found = {"active": self.active is not None, "matched": matched, "budget": self.budget is not None}
        return found | {"verified": self.verified}


def supervised_stage(
    context: Context,
    name: str,
    start: Model,
    examples: TrainingSet,
    settings: TrainSettings,
    *,
    epochs: int,
    round_number: int = 0,
    variant: Variant = PLAIN,
    teacher: Model | None = None,
) -> Model:
    """Fine-tune `start`.

    Args:
        variant: What a baseline changes in SFT.
        teacher: A frozen model, for a variant that needs one.
    """
    recipe, scored = context.recipe, context.scored_in_training(name)

    def compute(work: Path, out: Path) -> dict[str, Any]:
        from weakdriven.training.sft import train_supervised
        from weakdriven.wmss.training_scores import TrainingScores

        model = context.loader.load(start)
        options = {"epoch_rows": examples.epoch_rows(recipe), "keep": partial(context.save, model)}
        rows = examples.rows()
        watchers = [TrainingScores(work, rows, epochs)] if scored else []
        options |= {"validation": evaluated_on(validation), "watchers": watchers}
        phase = context.phase(name, round_number, epochs, work, **options)
        frozen = context.loader.load(teacher, train=False, scan=True) if teacher else None
        shared = context.renderer.tokenizer, rows, settings, recipe, phase
        counters = train_supervised(model, *shared, variant, frozen)
        if choice:
            counters |= publish_best(work, out)
        else:
            context.save(model, out, work)
        publish_snapshots(work, out, settings.snapshots)
        for watcher in watchers:
            table = watcher.table()
            if is_main():
                pq.write_table(table, out / SCORES)
        return counters

    validation, choice = validation_of(context, settings), best_model_settings(settings)
    also: dict[str, Any] = {"epochs": epochs, **examples.matching(recipe), **variant.settings, **choice}
    if scored:
        also["scores"] = "kept"
    if recipe.lora and start.name == context.base.name:  # later ones keep this kind of adapter
        also["lora"] = recipe.lora.model_dump(mode="json", exclude={"output", "quantize"})
    options = {"epochs": epochs, "start": start, "teacher": teacher, "variant": variant, **examples.workload(recipe)}
    workload = Workload(name, "train", settings, **options)
    inputs = present(start=start, teacher=teacher, validation=validation if choice else None) | examples.inputs()
    return model_stage(context, workload, compute, settings, inputs=inputs, also=also)


def joint_stage(
    context: Context,
    name: str,
    round_number: int,
    weak: Model,
    strong: Model,
    examples: TrainingSet,
    settings: JointSettings,
) -> Model:
    """Train two models jointly on their mixed logits; the result is the strong model."""
    recipe = context.recipe

    def compute(work: Path, out: Path) -> dict[str, Any]:
        from weakdriven.wmss.pair import WEAK_FOLDER
        from weakdriven.wmss.trainer import train_joint

        strong_model, weak_model = context.loader.pair(strong, weak)
        options = {"epoch_rows": examples.epoch_rows(recipe), "keep": partial(context.save, strong_model)}
        options |= {"validation": evaluated_on(validation)}
        phase = context.phase(name, round_number, settings.epochs, work, **options)
        shared = context.renderer.tokenizer, examples.rows(), settings, recipe, phase
        counters = train_joint(strong_model, weak_model, *shared)
        context.save(strong_model, out, work)
        publish_snapshots(work, out, settings.snapshots)
        if settings.save_weak:
            context.save(weak_model, out / WEAK_FOLDER, work)
        return counters

    validation = validation_of(context, settings)
    mixing = settings.mixing() | settings.model_dump(include={"weak", "save_weak"}) | examples.matching(recipe)
    workload = Workload(name, "train", settings, start=strong, weak=weak, **examples.workload(recipe))
    inputs = {"weak": weak, "strong": strong, **examples.inputs()}
    return model_stage(context, workload, compute, settings, inputs=inputs, also=mixing | other_weak(weak))


def validation_of(context: Context, settings: TrainSettings) -> Stage | None:
    """Return the validation rows if the settings ask for evaluations during training."""
    asked = isinstance(settings, SupervisedSettings) and settings.eval_steps is not None
    return validation_rows(context) if asked else None


def evaluated_on(validation: Stage | None) -> "Dataset | None":
    return load_tokens(validation.path / TOKENS) if validation else None


def best_model_settings(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that determine which model is kept; none if it is the last one."""
    if not isinstance(settings, SftSettings) or settings.keep == "last":
        return {}
    return settings.model_dump(include={"keep", "patience", "eval_steps"})


def other_weak(weak: Model) -> dict[str, Any]:
    """Return the weak model's name for the record if it is a snapshot, not one of M0, M1, ..."""
    return {"weak_model": weak.name} if "-at-" in weak.name else {}


def model_stage(
    context: Context,
    workload: Workload,
    compute: Compute,
    settings: TrainSettings,
    *,
    inputs: dict[str, Any],
    also: dict[str, Any],
) -> Model:
    """Run a training stage of any method.

    Args:
        also: Settings that determine the result besides those that all training stages have.
    """
    recipe, name = context.recipe, workload.name
    fields, kept = set(TrainSettings.model_fields), tuple(map(percent, settings.snapshots))
    decisive = settings.model_dump(mode="json", include=fields - SPEED_ONLY)
    if not kept:  # so that older runs stay valid
        del decisive["snapshots"]
    decisive |= context.inference_settings() | {"seed": recipe.seed}
    if context.router_loss:  # older runs trained M1 with it
        decisive["router_aux_loss_coef"] = 0.0

    def execution() -> dict[str, Any]:
        # like micro_batch_size, `fast_layers` changes only rounding, so changing it should not train again
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
        resumes=resume_step,
        workload=workload,
    )
    short = name.replace("baselines/", "baseline-").removesuffix("/strong")
    return Model(short, stage.path, lambda: stage.key, kept)


def merged(context: Context, model: Model) -> Stage:
    """Merge an adapter into an ordinary model; this is a separate stage, so that enabling it trains nothing again."""
    recipe, precision = context.recipe, context.recipe.saved_precision

    def compute(work: Path, out: Path) -> dict[str, Any]:
        from weakdriven.models.adapters import load_merged

        network = load_merged(
            model.folder,
            context.base.folder,
            precision=precision,
            trust_remote_code=recipe.trust_remote_code,
        )
        network.config.use_cache = True
        network.save_pretrained(out)
        context.renderer.tokenizer.save_pretrained(out)
        return {"parameters": network.num_parameters()}

    return context.run.stage(
        "merged", compute, settings={"precision": precision}, inputs={"model": model}, workload=Workload("merged")
    )
