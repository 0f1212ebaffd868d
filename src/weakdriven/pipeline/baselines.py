"""What WMSS is compared with: one short function each."""

from weakdriven.pipeline.stages import Model, Stages
from weakdriven.rundir import Stage


def sft(stages: Stages, data: Stage) -> Model:
    """Supervised fine-tuning of the base for as many epochs as WMSS sees in all."""
    recipe = stages.recipe
    return stages.supervised("baselines/sft", stages.base, data, recipe.sft, epochs=recipe.budget_epochs)
