"""WMSS, read like Algorithm 1 of the paper: SFT, then rounds of selection and joint training."""

from weakdriven.pipeline.stages import Model, Stages
from weakdriven.rundir import Stage


def wmss(stages: Stages, data: Stage, rounds: int) -> list[Model]:
    """M0, M1, ... M_{rounds + 1}; the last is the result."""
    recipe = stages.recipe
    if recipe.selection.enabled:
        stages.entropy(stages.base, data)  # first, so that what is wrong with it shows before hours of training
    models = [stages.base, first_strong(stages, data)]
    for turn in range(1, rounds + 1):
        weak, strong = models[turn - 1], models[turn]
        active = select(stages, turn, weak, strong, data) if recipe.selection.enabled else None
        if recipe.mixes:
            models.append(stages.joint(turn, weak, strong, data, active))
        else:  # plain SFT, and the weak model need not run
            name = f"round-{turn}/strong"
            epochs = recipe.joint.epochs
            models.append(stages.supervised(name, strong, data, recipe.joint, epochs=epochs, active=active, turn=turn))
    return models


def first_strong(stages: Stages, data: Stage) -> Model:
    settings = stages.recipe.sft
    return stages.given_strong or stages.supervised("sft", stages.base, data, settings, epochs=settings.epochs)


def select(stages: Stages, turn: int, weak: Model, strong: Model, data: Stage) -> Stage:
    return stages.selection(turn, data, stages.entropy(weak, data), stages.entropy(strong, data))
