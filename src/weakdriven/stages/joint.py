"""WD-JT as a stage: weak and strong trained on their mixed logits; the strong one is kept (paper Sec. 4.3)."""

from functools import partial
from pathlib import Path
from typing import Any

from weakdriven.config.recipe import JointSettings
from weakdriven.stages.context import Context
from weakdriven.stages.model_loader import Model
from weakdriven.stages.model_stage import TrainingSet, model_stage, other_weak
from weakdriven.stages.workload import Workload
from weakdriven.training.phase import Phase
from weakdriven.training.snapshots import publish_snapshots
from weakdriven.wmss.pair import WEAK_FOLDER
from weakdriven.wmss.trainer import train_joint


def joint_stage(
    context: Context,
    name: str,
    round_number: int,
    weak: Model,
    strong: Model,
    examples: TrainingSet,
    settings: JointSettings,
) -> Model:
    """Joint training of two models; the result is the strong one."""
    recipe = context.recipe

    def compute(work: Path, out: Path) -> dict[str, Any]:
        strong_model, weak_model = context.loader.pair(strong, weak)
        keep, rows = partial(context.save, strong_model), examples.epoch_rows(recipe)
        phase = Phase(name, round_number, settings.epochs, work, context.progress, rows, keep)
        shared = context.renderer.tokenizer, examples.rows(), settings, recipe, phase
        counters = train_joint(strong_model, weak_model, *shared)
        context.save(strong_model, out, work)
        publish_snapshots(work, out, settings.snapshots)
        if settings.save_weak:
            context.save(weak_model, out / WEAK_FOLDER, work)
        return counters

    mixing = settings.mixing() | settings.model_dump(include={"weak", "save_weak"}) | examples.matching(recipe)
    workload = Workload(
        name,
        "train",
        settings,
        epochs=settings.epochs,
        active=examples.active is not None,
        matched=bool(examples.matching(recipe)),
        start=strong,
        weak=weak,
        models=2,
        trained=2 if settings.weak == "joint" else 1,
        saves=2 if settings.save_weak else 1,
    )
    inputs = {"weak": weak, "strong": strong, **examples.inputs()}
    return model_stage(context, workload, compute, settings, inputs=inputs, also=mixing | other_weak(weak))
