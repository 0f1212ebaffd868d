"""Algorithm 1 of the paper: SFT, then rounds of selection (WD-DS) and joint training (WD-JT)."""

from collections.abc import Sequence

from weakdriven.config.recipe import JointSettings
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.entropy import entropy_stage
from weakdriven.stages.model import Model
from weakdriven.stages.model_stage import TrainingSet, joint_stage, supervised_stage
from weakdriven.stages.selection import selection_stage
from weakdriven.training.snapshots import percent
from weakdriven.training.variant import PLAIN, Variant


def wmss(context: Context, data: Stage, rounds: int) -> list[Model]:
    """Return M0, M1, ... M_{rounds + 1}; the last is the result."""
    recipe = context.recipe
    if recipe.selection.enabled and recipe.joint.weak_snapshot is None:
        entropy_stage(context, context.base, data)  # first, so that errors show before hours of training
    models = [context.base, first_strong(context, data)]
    for round_number in range(1, rounds + 1):
        weak, strong = pair_of(context, models, round_number)
        active = select(context, round_number, weak, strong, data) if recipe.selection.enabled else None
        name = f"round-{round_number}/strong"
        examples = TrainingSet(data, active)
        models.append(train_round(context, name, round_number, weak, strong, examples, recipe.joint))
    return models


def first_strong(context: Context, data: Stage) -> Model:
    """Return M1: M0 after supervised fine-tuning, or the model that the recipe gives."""
    settings = context.recipe.sft
    return context.given_strong or supervised_stage(
        context, "sft", context.base, TrainingSet(data), settings, epochs=settings.epochs
    )


def pair_of(context: Context, models: Sequence[Model], round_number: int) -> tuple[Model, Model]:
    """Return a round's weak and strong model, M_{t-1} and M_t; in round 1, `weak_snapshot` may replace M0 by an earlier
    snapshot of M1."""
    weak, strong, share = models[round_number - 1], models[round_number], context.recipe.joint.weak_snapshot
    return (strong.at(percent(share)) if round_number == 1 and share is not None else weak), strong


def select(
    context: Context, round_number: int, weak: Model, strong: Model, data: Stage, name: str | None = None
) -> Stage:
    """Select the active set of a round (WD-DS)."""
    return selection_stage(context, name or f"round-{round_number}/active", round_number, data, weak, strong)


def train_round(
    context: Context,
    name: str,
    round_number: int,
    weak: Model,
    strong: Model,
    examples: TrainingSet,
    settings: JointSettings,
    variant: Variant = PLAIN,
) -> Model:
    """Train a round jointly (WD-JT), or by plain SFT without the weak model if the settings mix nothing."""
    if settings.mixes:
        return joint_stage(context, name, round_number, weak, strong, examples, settings)
    options = {"epochs": settings.epochs, "round_number": round_number, "variant": variant}
    return supervised_stage(context, name, strong, examples, settings, **options)
