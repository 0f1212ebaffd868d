"""Supervised fine-tuning as a stage: M1, and what baselines make of it."""

from functools import partial
from pathlib import Path
from typing import Any

from weakdriven.config.settings import TrainSettings
from weakdriven.runs.directory import BUDGET
from weakdriven.runs.files import read_json
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context, present
from weakdriven.stages.model_loader import Model
from weakdriven.stages.model_stage import epoch_rows, matched_steps, model_stage, training_rows
from weakdriven.stages.workload import Workload
from weakdriven.training.phase import Phase
from weakdriven.training.sft import train_supervised
from weakdriven.training.snapshots import publish_snapshots
from weakdriven.training.variant import PLAIN, Variant


def supervised_stage(
    context: Context,
    name: str,
    start: Model,
    data: Stage,
    settings: TrainSettings,
    *,
    epochs: int,
    round_number: int = 0,
    active: Stage | None = None,
    budget: Stage | None = None,
    variant: Variant = PLAIN,
    teacher: Model | None = None,
) -> Model:
    """Supervised fine-tuning of `start`, on the active set if one is given.

    Args:
        budget: Holds how many examples an epoch takes, if not those there are.
        variant: What a baseline changes.
        teacher: A frozen model, for a variant that needs one.
    """

    def compute(work: Path, out: Path) -> dict[str, Any]:
        model = context.loader.load(start)
        rows = read_json(budget.path / BUDGET)["rows"] if budget else epoch_rows(context, data, active)
        phase = Phase(name, round_number, epochs, work, context.progress, rows, partial(context.save, model))
        frozen = context.loader.load(teacher, train=False, scan=True) if teacher else None
        shared = context.renderer.tokenizer, training_rows(data, active), settings, context.recipe, phase
        counters = train_supervised(model, *shared, variant, frozen)
        context.save(model, out, work)
        publish_snapshots(work, out, settings.snapshots)
        return counters

    also: dict[str, Any] = {"epochs": epochs, **matched_steps(context, active), **variant.settings}
    if context.recipe.lora and start.name == context.base.name:  # a later adapter is like the one it starts from
        also["lora"] = context.recipe.lora.model_dump(mode="json", exclude={"output", "quantize"})
    workload = Workload(
        name,
        "train",
        settings,
        epochs=epochs,
        active=active is not None,
        matched=bool(matched_steps(context, active)),
        budget=budget is not None,
        start=start,
        teacher=teacher,
        variant=variant,
    )
    inputs = present(start=start, data=data, active=active, teacher=teacher, budget=budget)
    return model_stage(context, workload, compute, settings, inputs=inputs, also=also)
