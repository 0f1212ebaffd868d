"""A recipe, from data to report: the order of everything."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers.utils import logging as transformers_logging

from weakdriven.errors import UserError
from weakdriven.pipeline import baselines
from weakdriven.pipeline.stages import Model, Stages, bind
from weakdriven.pipeline.wmss import select, wmss
from weakdriven.recipe import Recipe, dump_recipe
from weakdriven.report import write_report
from weakdriven.rundir import PLAN_FILE, RECIPE_FILE, Planned, Progress, Run, Stage, claimed, write_json, write_text

UNTRAINED = ("data", "entropy/", "pairing/", "/active")
"""Stages that several processes compute together, or that are so quick that the others wait."""


def run_recipe(recipe: Recipe, root: Path, progress: Progress) -> Path:
    """Run what is not done yet; returns the report."""
    carry_out(recipe, root, progress, all_stages)
    return write_report(root)


def select_recipe(recipe: Recipe, root: Path, progress: Progress, turn: int = 1) -> bool:
    """Run up to the active set of round `turn`; says whether this is the process that speaks.

    Started by a launcher, all processes scan together; models must have been trained before.
    """
    if recipe.method != "wmss" or not recipe.selection.enabled:
        why = f"method is {recipe.method}" if recipe.method != "wmss" else "selection.enabled is false"
        raise UserError(f"This recipe selects nothing: {why}; use method: wmss with selection.enabled: true.")
    if not 1 <= turn <= recipe.joint.rounds:
        raise UserError(f"There is no round {turn}: joint.rounds is {recipe.joint.rounds}; give one from 1 to that.")
    processes = PartialState(timeout=timedelta(days=7))  # the others wait while the first one tokenises

    def up_to_the_active_set(stages: Stages) -> Stage:
        data = stages.data()
        *_, weak, strong = wmss(stages, data, rounds=turn - 1)
        return select(stages, turn, weak, strong, data)

    carry_out(recipe, root, progress, up_to_the_active_set, processes)
    return processes.is_main_process


def carry_out(
    recipe: Recipe,
    root: Path,
    progress: Progress,
    work: Callable[[Stages], Any],
    processes: PartialState | None = None,
    *,
    train: bool = True,
) -> Any:
    """Run those stages of a recipe that `work` asks for and that are not done yet; returns what `work` does.

    Args:
        train: False refuses stages that would have to be trained.
    """
    transformers_logging.disable_progress_bar()
    count, leads = (processes.num_processes, processes.is_main_process) if processes else (1, True)
    meet = processes.wait_for_everyone if processes else lambda: None
    with claimed(root, recipe.name) if leads else nullcontext():
        meet()  # the first process has made the folder
        stages = bind(recipe, Run(root, recipe.seed, dry=True), processes=count)
        work(stages)
        planned = stages.run.planned
        if count > 1 or not train:
            refuse_training(planned)
        progress.plan(planned)
        stages.run = Run(root, recipe.seed, dry=True)
        all_stages(stages)
        whole = {entry.name: entry.key for entry in stages.run.planned}
        stages.run = Run(root, recipe.seed, progress=progress, leads=leads, meet=meet)
        try:
            stages.data()  # reads every row, so that a bad one is found before an older run here is touched
            if leads:
                write_text(root / RECIPE_FILE, dump_recipe(recipe))
                write_json(root / PLAN_FILE, whole)
            return work(stages)
        finally:
            progress.close()


def refuse_training(planned: list[Planned]) -> None:
    for entry in planned:
        if entry.reason and not any(part in entry.name for part in UNTRAINED):
            raise UserError(
                f"{entry.name} has to be trained first ({entry.reason}), and this command does not train here: start "
                "weakdriven run or weakdriven select in one process until it is there, or give a trained model."
            )


def all_stages(stages: Stages) -> list[Model]:
    """Every model of the recipe, trained and evaluated."""
    recipe, data = stages.recipe, stages.data()
    if recipe.method == "wmss":
        models = wmss(stages, data, recipe.joint.rounds)
    else:
        models = [stages.base, baselines.sft(stages, data)]
    if recipe.lora and recipe.lora.output == "merged":
        stages.merged(models[-1])
    if "sft" in recipe.baselines:
        models.append(baselines.sft(stages, data))
    for model in models:
        for benchmark in recipe.eval.benchmarks:
            stages.evaluation(model, benchmark)
    return models
