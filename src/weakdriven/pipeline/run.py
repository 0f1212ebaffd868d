"""A recipe, from data to report: the order of everything."""

from pathlib import Path

from transformers.utils import logging as transformers_logging

from weakdriven.pipeline import baselines
from weakdriven.pipeline.stages import Model, Stages, bind
from weakdriven.pipeline.wmss import wmss
from weakdriven.recipe import Recipe, dump_recipe
from weakdriven.report import write_report
from weakdriven.rundir import PLAN_FILE, RECIPE_FILE, Progress, Run, claimed, write_json, write_text


def run_recipe(recipe: Recipe, root: Path, progress: Progress) -> Path:
    """Run what is not done yet; returns the report."""
    transformers_logging.disable_progress_bar()
    with claimed(root, recipe.name):
        stages = bind(recipe, Run(root, recipe.seed, dry=True))
        all_stages(stages)
        planned = stages.run.planned
        progress.plan(planned)
        stages.run = Run(root, recipe.seed, progress=progress)
        try:
            stages.data()  # reads every row, so that a bad one is found before an older run here is touched
            write_text(root / RECIPE_FILE, dump_recipe(recipe))
            write_json(root / PLAN_FILE, {entry.name: entry.key for entry in planned})
            all_stages(stages)
        finally:
            progress.close()
        return write_report(root)


def all_stages(stages: Stages) -> list[Model]:
    """Every model of the recipe, trained and evaluated."""
    recipe, data = stages.recipe, stages.data()
    models = wmss(stages, data) if recipe.method == "wmss" else [stages.base, baselines.sft(stages, data)]
    if recipe.lora and recipe.lora.output == "merged":
        stages.merged(models[-1])
    if "sft" in recipe.baselines:
        models.append(baselines.sft(stages, data))
    for model in models:
        for benchmark in recipe.eval.benchmarks:
            stages.evaluation(model, benchmark)
    return models
