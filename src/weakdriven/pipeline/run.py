"""Run a recipe from data to report: the order of all stages, and the checks before them."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from weakdriven.config.file import dump_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.data.tokenize import load_tokens
from weakdriven.errors import UserError
from weakdriven.methods.table import BASELINES
from weakdriven.methods.wmss import first_strong, pair_of, select, wmss
from weakdriven.report import write_report
from weakdriven.report.card import write_cards
from weakdriven.report.read import current_stages
from weakdriven.runs.directory import PLAN_FILE, RECIPE_FILE, REPORT, RUN_FILE, TOKENS, Progress, claim_run
from weakdriven.runs.executor import DryRun, Listing, Run
from weakdriven.runs.files import read_json, write_json, write_text
from weakdriven.runs.manifest import is_stage
from weakdriven.runs.processes import agree, failing_together, is_main, join_processes, on_main, size
from weakdriven.runs.replaced import (
    OUTPUT,
    Loss,
    WouldReplace,
    drop_replaced,
    loss,
    losses,
    other_output,
)
from weakdriven.runs.stage import NOT_RUN, Planned, Stage
from weakdriven.runs.take_over import Siblings
from weakdriven.stages.context import Context
from weakdriven.stages.data import data_stage, settle_rows
from weakdriven.stages.evaluation import evaluation_stage
from weakdriven.stages.model import Model
from weakdriven.stages.model_stage import merged
from weakdriven.stages.remote_copy import RemoteCopy
from weakdriven.stages.validation import validation_rows, validation_stage
from weakdriven.training.snapshots import snapshot_steps

Work = Callable[[Context], Any]
"""A function that asks for stages of a recipe, in order."""


@dataclass(frozen=True)
class RunOptions:
    """Options that do not change results."""

    siblings: Siblings = field(default_factory=Siblings)
    """Other runs whose identical finished stages are reused."""
    force: bool = False
    """Train even if memory or disk are predicted to be too small."""
    rehearsal: bool | None = None
    """First try two steps of every training stage; None: only on CUDA."""
    replace: bool = False
    """Replace finished stages whose settings or inputs changed, instead of raising an error."""
    remote: RemoteCopy | None = None
    """The copy of this run at a URL: its stages are downloaded, new ones are uploaded."""


def run_recipe(recipe: Recipe, root: Path, progress: Progress, options: RunOptions = RunOptions()) -> Path:  # noqa: B008
    """Run what is not finished yet, write the model card and return the path of the report.

    If a launcher started several processes, they train, scan and generate together, and the main process writes.
    """
    join_processes()
    carry_out(recipe, root, progress, all_stages, evaluates=True, options=options)

    def write() -> None:
        write_report(root)
        write_cards(root)
        if options.remote:
            options.remote.finish()

    on_main(write)
    return root / REPORT


def select_recipe(
    recipe: Recipe, root: Path, progress: Progress, round_number: int = 1, *, replace: bool = False
) -> bool:
    """Run a recipe up to the active set of a round; return whether this is the main process."""
    if recipe.method != "wmss" or not recipe.selection.enabled:
        why = f"method is {recipe.method}" if recipe.method != "wmss" else "selection.enabled is false"
        raise UserError(f"This recipe has no selection: {why}; use method: wmss with selection.enabled: true.")
    if not 1 <= round_number <= recipe.joint.rounds:
        raise UserError(
            f"There is no round {round_number}, because joint.rounds is {recipe.joint.rounds}; give a round from 1 to "
            f"{recipe.joint.rounds}."
        )
    join_processes()

    def up_to_the_active_set(context: Context) -> Stage:
        data = data_stage(context)
        weak, strong = pair_of(context, wmss(context, data, rounds=round_number - 1), round_number)
        return select(context, round_number, weak, strong, data)

    carry_out(recipe, root, progress, up_to_the_active_set, options=RunOptions(replace=replace))
    return is_main()


def carry_out(
    recipe: Recipe,
    root: Path,
    progress: Progress,
    work: Work,
    *,
    evaluates: bool = False,
    reads_only: bool = False,
    options: RunOptions = RunOptions(),  # noqa: B008
) -> Any:
    """Run the unfinished stages of a recipe that `work` asks for; return what `work` returns.

    Args:
        evaluates: `work` runs benchmarks, so their files must exist.
        reads_only: Do not change an existing run: nothing is trained or recomputed, and no plan is written.
    """
    import torch
    from transformers.utils import logging as transformers_logging

    from weakdriven.planning.preflight import check_room, ran_out
    from weakdriven.planning.rehearsal import rehearse

    transformers_logging.disable_progress_bar()
    remote = options.remote
    with ExitStack() as held:
        on_main(lambda: held.enter_context(claim_run(root, recipe.name)))
        if remote:
            on_main(lambda: remote.open(recipe.name))
        with failing_together():
            settle_rows(recipe.data, root, remote)

        def check() -> tuple[Context, list[Planned], dict[str, str]]:
            return checked(recipe, DryRun(root, siblings=options.siblings), work, evaluates, reads_only)

        context, planned, plan = check()
        if not options.replace and not reads_only:
            on_main(lambda: refuse_replacing(root, planned, remote))
        if remote and agree(on_main(lambda: remote.bring(planned))):
            context, planned, plan = check()
        planned = agree(planned)
        run = Run(
            root,
            siblings=options.siblings,
            seed=recipe.seed,
            progress=progress,
            is_main=is_main(),
            agree=agree,
            copy=remote.send if remote else None,
            message=partial(ran_out, context, work),
        )
        context = context.with_run(run)
        context.force = options.force
        try:
            progress.plan(planned)
            data = all_rows(context, evaluates)
            refuse_same_snapshots(recipe, data)
            if not reads_only:
                check_room(context, data, planned, work, force=options.force)
                if options.rehearsal if options.rehearsal is not None else torch.cuda.is_available():
                    rehearse(context, data, planned, work)
            if is_main() and not reads_only:
                write_text(root / RECIPE_FILE, dump_recipe(recipe))
                write_json(root / PLAN_FILE, plan)
                write_json(root / RUN_FILE, read_json(root / RUN_FILE) | {"hub_models": hub_models(recipe)})
            result = work(context)
            if is_main():
                drop_replaced(root, progress, asked=options.replace and not run.failed)
            return result
        finally:
            context.engines.close()
            progress.close()


def all_rows(context: Context, evaluates: bool) -> Stage:
    """Return the training data after reading every row, so that a bad row is found before an older run is changed."""
    is_new = not is_stage(context.run.root / "data")
    data = data_stage(context)
    try:
        if evaluates and context.recipe.data.validates:
            validation_rows(context)
    except UserError:
        if is_new and is_main():  # leave no trace of a run that cannot start
            shutil.rmtree(data.path)
        raise
    return data


def checked(
    recipe: Recipe, run: DryRun, work: Work, evaluates: bool, reads_only: bool
) -> tuple[Context, list[Planned], dict[str, str]]:
    """Check a recipe in a dry run; return its context, the stages that will run, and the plan of the whole recipe."""
    from weakdriven.stages.checks import check_recipe

    with failing_together():
        context = check_recipe(recipe, run, processes=size(), evaluates=evaluates)
        work(context)
        if reads_only:
            refuse_changes(run.planned)
        return context, run.planned, whole_plan(context, run.planned)


def hub_models(recipe: Recipe) -> list[str]:
    """Return the recipe's models that come from the Hub; recorded now, because a folder of that name may appear
    later."""
    from weakdriven.models.load import EMBEDDED

    named = [source for source in (recipe.model, recipe.sft.model) if source and source != EMBEDDED]
    return [source for source in named if not Path(source).expanduser().exists()]


def is_finished(root: Path, recipe: Recipe) -> bool:
    """Return whether exactly this recipe was run in `root` and all of its stages are finished."""
    files = (root / RECIPE_FILE, root / PLAN_FILE)
    if not all(file.is_file() for file in files) or files[0].read_text(encoding="utf-8") != dump_recipe(recipe):
        return False
    return current_stages(root).issuperset(read_json(files[1]))


def refuse_same_snapshots(recipe: Recipe, data: Stage) -> None:
    """Raise an error before training if two snapshots fall on one step, in phases whose steps are already known."""
    known: dict[str, TrainSettings] = {} if recipe.sft.model else {"sft": recipe.sft}
    if recipe.method == "wmss" and (recipe.selection.match_steps or not recipe.selection.enabled):
        known["joint"] = recipe.joint
    if any(settings.snapshots for settings in known.values()):
        rows = len(load_tokens(data.path / TOKENS))
        for name, settings in known.items():
            snapshot_steps(settings.snapshots, settings.steps(rows), name)


def whole_plan(context: Context, planned: list[Planned]) -> dict[str, str]:
    """Return the key of every stage of the recipe by name, or only of the planned stages if others are unknown."""
    listing = Listing(context.run.root)
    try:
        all_stages(context.with_run(listing))
        return {name: stage.key for name, stage in listing.stages.items()}
    except UserError:  # a benchmark's file is missing, which is fine for a selection
        if any(entry.name.startswith(("eval/", "validation/")) for entry in planned):
            raise
        return {entry.name: entry.key for entry in planned}


def refuse_replacing(root: Path, planned: list[Planned], remote: RemoteCopy | None) -> None:
    """Raise an error if finished stages of the run, here or in its remote copy, would be replaced."""
    found = losses(root, planned)
    if remote:
        there = [(entry, remote.manifest(entry.name)) for entry in planned if entry.reason]
        here = {Path(one.place) for one in found}
        found += [
            one
            for entry, manifest in there
            if root / entry.name not in here
            for one in loss(f"{remote.shown}/{entry.name}", entry, manifest)
        ]
    if found:
        place = (OUTPUT, f"{remote.shown}-2") if remote else other_output(root)
        raise WouldReplace(found, (*place, "--take-from", str(root)))


def refuse_replacing_in(root: Path, runs: dict[str, Recipe], work: Work, options: RunOptions) -> None:
    """Raise an error if finished stages of any of several runs would be replaced, before any of them starts."""
    if options.replace:
        return
    found = [one for name, recipe in runs.items() for one in existing_losses(recipe, root / name, work, options)]
    if found:
        raise WouldReplace(found, (*other_output(root), "--take-from", str(root)))


def existing_losses(recipe: Recipe, root: Path, work: Work, options: RunOptions) -> list[Loss]:
    """Return the finished stages that this recipe would replace in an existing run."""
    file = root / RECIPE_FILE
    if not file.is_file() or file.read_text(encoding="utf-8") == dump_recipe(recipe):
        return []
    try:
        settle_rows(recipe.data, root, None)
        return losses(root, checked(recipe, DryRun(root, siblings=options.siblings), work, True, False)[1])
    except UserError:  # the run itself reports it
        return []


def refuse_changes(planned: list[Planned]) -> None:
    """Raise an error if an existing run would change: a stage would be recomputed, or a model trained."""
    for entry in planned:
        name, reason = entry.name, entry.reason
        if not reason or name.startswith("pairing/"):
            continue
        if reason != NOT_RUN:
            raise UserError(
                f"{name} of the existing run would be recomputed ({reason}); give the settings of that run, or another "
                "--output."
            )
        if name != "data" and not name.startswith("entropy/") and "/active" not in name:
            raise UserError(
                f"{name} must be trained first ({reason}), but this command does not train. Train it with weakdriven "
                "run or weakdriven select, or give a trained model."
            )


def all_stages(context: Context) -> list[Model]:
    """Train and evaluate every model of the recipe."""
    recipe, data = context.recipe, data_stage(context)
    models = method_models(context, data, recipe.method)
    models += [method_models(context, data, name)[-1] for name in recipe.baselines]
    evaluate_models(context, models)
    return models


def method_models(context: Context, data: Stage, method: str) -> list[Model]:
    """Return the models of a method: M0, M1 if it has one, and its result."""
    recipe = context.recipe
    if method == "wmss":
        models = wmss(context, data, recipe.joint.rounds)
    else:
        has_first = context.given_strong or "sft" in stages_for(context, method)[1]
        first = [first_strong(context, data)] if has_first else []
        models = [context.base, *first, BASELINES[method](context, data)]
    if method == recipe.method and recipe.lora and recipe.lora.output == "merged":
        merged(context, models[-1])
    return models


def stages_for(context: Context, method: str) -> tuple[Model, dict[str, Stage]]:
    """Return the final model of a method, and by name every stage that the method needs."""
    listing = Listing(context.run.root)
    alone = context.with_run(listing)
    data = data_stage(alone)
    if method == "wmss":
        return wmss(alone, data, context.recipe.joint.rounds)[-1], listing.stages
    return BASELINES[method](alone, data), listing.stages


def evaluate_models(context: Context, models: Sequence[Model]) -> None:
    """Evaluate each model on the validation rows and each benchmark, with `eval.snapshots` also its snapshots."""
    settings = context.recipe.eval
    kept = {model.name: [model.at(place) for place in model.kept] for model in models if settings.snapshots}
    for model in (one for last in models for one in (*kept.get(last.name, []), last)):
        if context.recipe.data.validates:
            validation_stage(context, model)
        for benchmark in settings.benchmarks:
            evaluation_stage(context, model, benchmark)
