"""WD-JT as a stage: weak and strong trained on their mixed logits; the strong one is kept (paper Sec. 4.3)."""

from functools import partial
from pathlib import Path
from typing import Any

from weakdriven.config.recipe import JointSettings
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context, present
from weakdriven.stages.model_loader import Model
from weakdriven.stages.model_stage import epoch_rows, matched_steps, model_stage, other_weak, training_rows
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
    data: Stage,
    active: Stage | None,
    settings: JointSettings,
) -> Model:
    """Joint training on the active set, or on all examples without one."""

    def compute(work: Path, out: Path) -> dict[str, Any]:
        strong_model, weak_model = context.loader.pair(strong, weak)
        keep, rows = partial(context.save, strong_model), epoch_rows(context, data, active)
        phase = Phase(name, round_number, settings.epochs, work, context.progress, rows, keep)
        shared = context.renderer.tokenizer, training_rows(data, active), settings, context.recipe, phase
        counters = train_joint(strong_model, weak_model, *shared)
        context.save(strong_model, out, work)
        publish_snapshots(work, out, settings.snapshots)
        if settings.save_weak:
            context.save(weak_model, out / WEAK_FOLDER, work)
        return counters

    mixing = settings.mixing() | settings.model_dump(include={"weak", "save_weak"}) | matched_steps(context, active)
    workload = Workload(
        name,
        "train",
        settings,
        epochs=settings.epochs,
        active=active is not None,
        matched=bool(matched_steps(context, active)),
        start=strong,
        weak=weak,
        models=2,
        trained=2 if settings.weak == "joint" else 1,
        saves=2 if settings.save_weak else 1,
    )
    inputs = present(weak=weak, strong=strong, data=data, active=active)
    return model_stage(context, workload, compute, settings, inputs=inputs, also=mixing | other_weak(weak))
