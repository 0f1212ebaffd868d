"""Supervised fine-tuning as a stage: M1, and what baselines make of it."""

from functools import partial
from pathlib import Path
from typing import Any

from weakdriven.config.settings import TrainSettings
from weakdriven.stages.context import Context, present
from weakdriven.stages.model_loader import Model
from weakdriven.stages.model_stage import TrainingSet, model_stage
from weakdriven.stages.workload import Workload
from weakdriven.training.phase import Phase
from weakdriven.training.sft import PLAIN, Variant, train_supervised
from weakdriven.training.snapshots import publish_snapshots


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
    """Supervised fine-tuning of `start`.

    Args:
        variant: What a baseline changes.
        teacher: A frozen model, for a variant that needs one.
    """
    recipe = context.recipe

    def compute(work: Path, out: Path) -> dict[str, Any]:
        model = context.loader.load(start)
        rows, keep = examples.epoch_rows(recipe), partial(context.save, model)
        phase = Phase(name, round_number, epochs, work, context.progress, rows, keep)
        frozen = context.loader.load(teacher, train=False, scan=True) if teacher else None
        shared = context.renderer.tokenizer, examples.rows(), settings, recipe, phase
        counters = train_supervised(model, *shared, variant, frozen)
        context.save(model, out, work)
        publish_snapshots(work, out, settings.snapshots)
        return counters

    also: dict[str, Any] = {"epochs": epochs, **examples.matching(recipe), **variant.settings}
    if recipe.lora and start.name == context.base.name:  # a later adapter is like the one it starts from
        also["lora"] = recipe.lora.model_dump(mode="json", exclude={"output", "quantize"})
    workload = Workload(
        name,
        "train",
        settings,
        epochs=epochs,
        active=examples.active is not None,
        matched=bool(examples.matching(recipe)),
        budget=examples.budget is not None,
        start=start,
        teacher=teacher,
        variant=variant,
    )
    inputs = present(start=start, teacher=teacher) | examples.inputs()
    return model_stage(context, workload, compute, settings, inputs=inputs, also=also)
