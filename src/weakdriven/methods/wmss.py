"""WMSS, read like Algorithm 1 of the paper: SFT, then rounds of selection and joint training."""

from collections.abc import Sequence

from weakdriven.config.recipe import JointSettings
from weakdriven.methods.token_loss import PLAIN, Variant
from weakdriven.runs.directory import Stage
from weakdriven.stages.stages import Model, Stages
from weakdriven.training.snapshots import percent


def wmss(stages: Stages, data: Stage, rounds: int) -> list[Model]:
    """M0, M1, ... M_{rounds + 1}; the last is the result."""
    recipe = stages.recipe
    if recipe.selection.enabled and recipe.joint.weak_snapshot is None:
        stages.entropy(stages.base, data)  # first, so that what is wrong with it shows before hours of training
    models = [stages.base, first_strong(stages, data)]
    for turn in range(1, rounds + 1):
        weak, strong = pair_of(stages, models, turn)
        active = select(stages, turn, weak, strong, data) if recipe.selection.enabled else None
        models.append(train_round(stages, f"round-{turn}/strong", turn, weak, strong, data, active, recipe.joint))
    return models


def pair_of(stages: Stages, models: Sequence[Model], turn: int) -> tuple[Model, Model]:
    """Weak and strong model of a round: M_{t-1} and M_t, of the first perhaps what M1 was earlier in its training."""
    weak, strong, share = models[turn - 1], models[turn], stages.recipe.joint.weak_snapshot
    return (strong.at(percent(share)) if turn == 1 and share is not None else weak), strong


def train_round(
    stages: Stages,
    name: str,
    turn: int,
    weak: Model,
    strong: Model,
    data: Stage,
    active: Stage | None,
    settings: JointSettings,
    variant: Variant = PLAIN,
) -> Model:
    if settings.mixes:
        return stages.joint(name, turn, weak, strong, data, active, settings)
    # plain SFT, and the weak model need not run
    options = {"epochs": settings.epochs, "active": active, "turn": turn, "variant": variant}
    return stages.supervised(name, strong, data, settings, **options)


def first_strong(stages: Stages, data: Stage) -> Model:
    settings = stages.recipe.sft
    return stages.given_strong or stages.supervised("sft", stages.base, data, settings, epochs=settings.epochs)


def select(stages: Stages, turn: int, weak: Model, strong: Model, data: Stage, name: str | None = None) -> Stage:
    name = name or f"round-{turn}/active"
    return stages.selection(name, turn, data, weak, strong)
