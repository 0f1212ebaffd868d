"""A recipe, from data to report: the order of everything."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils import logging as transformers_logging

from weakdriven.config.file import dump_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.data.tokenize import load_tokens
from weakdriven.errors import UserError
from weakdriven.methods.table import BASELINES
from weakdriven.methods.wmss import first_strong, pair_of, select, wmss
from weakdriven.models.load import EMBEDDED
from weakdriven.planning.preflight import check_room, ran_out
from weakdriven.planning.rehearsal import rehearse
from weakdriven.report import write_report
from weakdriven.report.card import write_cards
from weakdriven.report.read import current_stages
from weakdriven.runs.directory import (
    NOT_RUN,
    PLAN_FILE,
    RECIPE_FILE,
    REPORT,
    RUN_FILE,
    TOKENS,
    Planned,
    Progress,
    Run,
    Stage,
    claimed,
)
from weakdriven.runs.files import read_json, write_json, write_text
from weakdriven.runs.processes import agree, all_processes, on_main, raise_together
from weakdriven.stages.checks import bind
from weakdriven.stages.merge import merged
from weakdriven.stages.remote_copy import Mirror
from weakdriven.stages.stages import Model, Stages
from weakdriven.training.snapshots import snapshot_steps

if TYPE_CHECKING:
    from accelerate import PartialState


def run_recipe(
    recipe: Recipe,
    root: Path,
    progress: Progress,
    *,
    siblings: Sequence[Path] = (),
    force: bool = False,
    rehearsal: bool | None = None,
    mirror: Mirror | None = None,
) -> Path:
    """Run what is not done yet; returns the report, and writes the result's model card.

    Started by a launcher, all processes train, scan and answer together, and the first one writes.
    """
    options = {"evaluates": True, "siblings": siblings, "force": force, "rehearsal": rehearsal, "mirror": mirror}
    carry_out(recipe, root, progress, all_stages, all_processes(), **options)

    def write() -> None:
        write_report(root)
        write_cards(root)
        if mirror:
            mirror.finish()

    on_main(write)
    return root / REPORT


def select_recipe(recipe: Recipe, root: Path, progress: Progress, turn: int = 1) -> bool:
    """Run up to the active set of round `turn`; says whether this is the process that speaks.

    Started by a launcher, all processes train and scan together.
    """
    if recipe.method != "wmss" or not recipe.selection.enabled:
        why = f"method is {recipe.method}" if recipe.method != "wmss" else "selection.enabled is false"
        raise UserError(f"This recipe selects nothing: {why}; use method: wmss with selection.enabled: true.")
    if not 1 <= turn <= recipe.joint.rounds:
        raise UserError(f"There is no round {turn}: joint.rounds is {recipe.joint.rounds}; give one from 1 to that.")
    processes = all_processes()

    def up_to_the_active_set(stages: Stages) -> Stage:
        data = stages.data()
        weak, strong = pair_of(stages, wmss(stages, data, rounds=turn - 1), turn)
        return select(stages, turn, weak, strong, data)

    carry_out(recipe, root, progress, up_to_the_active_set, processes)
    return processes.is_main_process


def carry_out(
    recipe: Recipe,
    root: Path,
    progress: Progress,
    work: Callable[[Stages], Any],
    processes: "PartialState | None" = None,
    *,
    evaluates: bool = False,
    beside: bool = False,
    siblings: Sequence[Path] = (),
    locks: Path | None = None,
    force: bool = False,
    rehearsal: bool | None = None,
    mirror: Mirror | None = None,
) -> Any:
    """Run those stages of a recipe that `work` asks for and that are not done yet; returns what `work` does.

    Args:
        evaluates: Benchmarks will be run, so that their files have to be there.
        beside: Nothing of a run that is there may change: no stage is trained or computed anew, no plan written.
        siblings: Runs whose finished stages are taken over where they are the same.
        locks: Folder that keeps siblings at work from computing the same stage side by side.
        force: Train what is predicted not to fit in memory or on the disk.
        rehearsal: Try two steps of every training stage first; None: on CUDA, where memory is short and time dear.
        mirror: The copy of this run at an address, from which stages are brought and to which they go.
    """
    transformers_logging.disable_progress_bar()
    count, leads = (processes.num_processes, processes.is_main_process) if processes else (1, True)
    with ExitStack() as held:
        on_main(lambda: held.enter_context(claimed(root, recipe.name)))
        if mirror:
            on_main(lambda: mirror.open(recipe.name))
        check = partial(checked, recipe, root, work, count, evaluates=evaluates, beside=beside, siblings=siblings)
        stages, plan = check()
        if mirror and agree(on_main(lambda: mirror.bring(stages.run.planned))):
            stages, plan = check()
        planned = agree(stages.run.planned)
        among = {"siblings": siblings, "locks": locks, "copy": mirror.send if mirror else None}
        among |= {"told": partial(ran_out, stages, work)}
        stages.run = Run(root, recipe.seed, progress=progress, leads=leads, agree=agree, **among)
        try:
            progress.plan(planned)
            data = stages.data()  # reads every row, so that a bad one is found before an older run here is touched
            refuse_same_snapshots(recipe, data)
            if not beside:
                check_room(stages, data, planned, work, progress, force=force)
                if rehearsal if rehearsal is not None else torch.cuda.is_available():
                    rehearse(stages, data, planned, work, progress)
            if leads and not beside:
                write_text(root / RECIPE_FILE, dump_recipe(recipe))
                write_json(root / PLAN_FILE, plan)
                write_json(root / RUN_FILE, read_json(root / RUN_FILE) | {"hub_models": hub_models(recipe)})
            return work(stages)
        finally:
            stages.engines.close()
            progress.close()


def checked(
    recipe: Recipe,
    root: Path,
    work: Callable[[Stages], Any],
    processes: int,
    *,
    evaluates: bool,
    beside: bool,
    siblings: Sequence[Path],
) -> tuple[Stages, dict[str, str]]:
    """The stages after a dry run, and the whole plan; what one process finds wrong with them ends all of them."""
    failure, found = None, None
    try:
        dry = Run(root, recipe.seed, dry=True, siblings=siblings)
        stages = bind(recipe, dry, processes=processes, evaluates=evaluates)
        work(stages)
        if beside:
            refuse_changes(dry.planned)
            refuse_training(dry.planned)
        found = stages, whole_plan(stages, dry.planned)
    except UserError as error:
        failure = error
    raise_together(failure)
    assert found is not None
    return found


def hub_models(recipe: Recipe) -> list[str]:
    """Models of the recipe that come from the Hub; told now, since only here and now is a folder's name one."""
    named = [source for source in (recipe.model, recipe.sft.model) if source and source != EMBEDDED]
    return [source for source in named if not Path(source).expanduser().exists()]


def is_finished(root: Path, recipe: Recipe) -> bool:
    """Whether this very recipe was run there, and all of its stages are done."""
    files = (root / RECIPE_FILE, root / PLAN_FILE)
    if not all(file.is_file() for file in files) or files[0].read_text(encoding="utf-8") != dump_recipe(recipe):
        return False
    return current_stages(root).issuperset(read_json(files[1]))


def refuse_same_snapshots(recipe: Recipe, data: Stage) -> None:
    """Two snapshots on one step, told before anything is trained where the steps are known from the rows alone."""
    known: dict[str, TrainSettings] = {} if recipe.sft.model else {"sft": recipe.sft}
    if recipe.method == "wmss" and (recipe.selection.match_steps or not recipe.selection.enabled):
        known["joint"] = recipe.joint
    if any(settings.snapshots for settings in known.values()):
        rows = len(load_tokens(data.path / TOKENS))
        for name, settings in known.items():
            snapshot_steps(settings.snapshots, settings.steps(rows), name)


def whole_plan(stages: Stages, planned: list[Planned]) -> dict[str, str]:
    """Name and key of every stage of the recipe; of those at hand where the rest cannot be known yet."""
    run, stages.run = stages.run, Run(stages.run.root, stages.recipe.seed, dry=True)
    try:
        all_stages(stages)
        planned = stages.run.planned
    except UserError:  # a benchmark's file is not there, which is no concern of a selection
        if any(entry.name.startswith("eval/") for entry in planned):
            raise
    stages.run = run
    return {entry.name: entry.key for entry in planned}


def refuse_training(planned: list[Planned]) -> None:
    for entry in planned:
        name = entry.name
        if entry.reason and name != "data" and not name.startswith(("entropy/", "pairing/")) and "/active" not in name:
            raise UserError(
                f"{name} has to be trained first ({entry.reason}), and this command does not train here: start "
                "weakdriven run or weakdriven select in one process until it is there, or give a trained model."
            )


def refuse_changes(planned: list[Planned]) -> None:
    for entry in planned:
        if entry.reason not in ("", NOT_RUN) and not entry.name.startswith("pairing/"):
            raise UserError(
                f"{entry.name} of the run that is there would be computed anew ({entry.reason}); give the settings "
                "that the run was made with, or another --output."
            )


def all_stages(stages: Stages) -> list[Model]:
    """Every model of the recipe, trained and evaluated."""
    recipe, data = stages.recipe, stages.data()
    models = method_models(stages, data, recipe.method)
    if recipe.lora and recipe.lora.output == "merged":
        merged(stages, models[-1])
    models += [method_models(stages, data, name)[-1] for name in recipe.baselines]
    evaluate_models(stages, models)
    return models


def method_models(stages: Stages, data: Stage, method: str) -> list[Model]:
    """What a method starts from and ends with: M0, M1 where it has one, its result."""
    if method == "wmss":
        return wmss(stages, data, stages.recipe.joint.rounds)
    has_first = stages.given_strong or any(entry.name == "sft" for entry in planned_for(stages, method)[1])
    return [stages.base, *([first_strong(stages, data)] if has_first else []), BASELINES[method](stages, data)]


def planned_for(stages: Stages, method: str) -> tuple[Model, list[Planned]]:
    """The model that a method ends with, and every stage that is run for it alone."""
    run, stages.run = stages.run, Run(stages.run.root, stages.recipe.seed, dry=True)
    try:
        data = stages.data()
        result = (
            wmss(stages, data, stages.recipe.joint.rounds)[-1] if method == "wmss" else BASELINES[method](stages, data)
        )
        return result, stages.run.planned
    finally:
        stages.run = run


def evaluate_models(stages: Stages, models: Sequence[Model]) -> None:
    """Each model on each benchmark; those that it was on its way, if asked for, before it."""
    kept = {model.name: [model.at(place) for place in model.kept] for model in models if stages.recipe.eval.snapshots}
    for model in (one for last in models for one in (*kept.get(last.name, []), last)):
        for benchmark in stages.recipe.eval.benchmarks:
            stages.evaluation(model, benchmark)
