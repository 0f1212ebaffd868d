"""`weakdriven run`: run a whole recipe."""

import os
import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from weakdriven.commands import common
from weakdriven.commands.export import Private, PushToHub, export_hub, refuse_push
from weakdriven.commands.recipes import DataOption, ModelOption, TestOption, proposed
from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.errors import UserError
from weakdriven.runs.launcher import LAUNCHED
from weakdriven.runs.launcher import launch as start_launcher
from weakdriven.runs.processes import launched, rank
from weakdriven.runs.redact import without_login


def run(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe: a .yaml file, or the name of a shipped one. Or give --model, --data, --test."),
    ] = None,
    overrides: common.Overrides = None,
    model: ModelOption = None,
    data: DataOption = None,
    test: TestOption = None,
    output: Annotated[
        str | None, typer.Option(help="Run directory, or a URL to copy finished stages to (default: runs/NAME).")
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="If --output is a URL: local run directory (default: in the cache).", callback=common.here),
    ] = None,
    push_to_hub: PushToHub = None,
    private: Private = False,
    take_from: common.TakeFrom = None,
    launch: Annotated[
        str | None, typer.Option(help="Start several processes: ddp-8gpu, fsdp2-8gpu, or an accelerate config file.")
    ] = None,
    force: common.Force = False,
    replace: common.Replace = False,
    rehearsal: common.Rehearse = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> None:
    """Run a recipe: SFT, selection, joint training, evaluation, report. The same command resumes a stopped run."""
    asked = asked_recipe(recipe, overrides, model, data, test)
    if launch and LAUNCHED not in os.environ:  # after the recipe was read, so that its errors are reported only once
        raise typer.Exit(start_launcher(launch, sys.argv[1:]))
    folder, address = places(output, work)
    settings, root, progress = common.prepare(asked, None, folder, quiet)
    refuse_push(push_to_hub, private=private)
    from weakdriven.pipeline.run import RunOptions, run_recipe
    from weakdriven.runs.take_over import Siblings
    from weakdriven.stages.remote_copy import RemoteCopy

    remote = RemoteCopy(address, root, progress.note) if address else None
    options = RunOptions(Siblings(take_from or []), force, rehearsal, replace, remote)
    report = run_recipe(settings, root, progress, options)
    if rank() > 0:
        return
    print_scores(root)
    print(f"\nReport: {report}")
    if remote:
        print(f"Copied: {remote.shown}")
    print_result(root)
    if push_to_hub:
        export_hub(root, push_to_hub, private)


def asked_recipe(
    recipe: str | None, overrides: list[str] | None, model: str | None, data: str | None, test: str | None
) -> Recipe:
    """Return the named recipe, or the one that `weakdriven init` would write."""
    if model is data is test is None:
        if recipe is None:
            raise UserError(
                "Give a recipe (`weakdriven recipes` lists the shipped ones), or --model, --data and --test."
            )
        return load_recipe(recipe, overrides)
    if recipe is not None and "=" not in recipe:
        raise UserError(
            f"Both a recipe ({recipe}) and --model, --data or --test are given. Give a recipe, or these three options."
        )
    return proposed(model, data, test, [*([recipe] if recipe else []), *(overrides or [])]).recipe()


def places(output: str | None, work: Path | None) -> tuple[Path | None, str | None]:
    """Return the run directory, if given, and the URL that its stages are copied to.

    >>> places("runs/demo", None), places("s3://bucket/demo", Path("scratch"))
    ((PosixPath('runs/demo'), None), (PosixPath('scratch'), 's3://bucket/demo'))
    """
    from weakdriven.data.rows.remote import is_remote
    from weakdriven.stages.remote_copy import default_folder

    if output is None or not is_remote(output):
        if work is not None:
            raise UserError(f"--work {work} needs a URL as --output. For a local run directory give --output {work}.")
        return None if output is None else Path(output), None
    if output.lower().startswith(("http://", "https://")):
        raise UserError(
            f"{without_login(output)} is read-only; give a directory as --output, or an s3:// or gs:// URL."
        )
    if work is None and int(os.environ.get("LOCAL_WORLD_SIZE", launched())) < launched():
        raise UserError("The processes run on several machines; give --work DIR, a directory that all of them share.")
    return work or default_folder(output), output


def print_result(root: Path) -> None:
    """Print the verdict, the folder of the trained model, and commands that use it."""
    from weakdriven.report import load_run
    from weakdriven.report.card.card import result_stages
    from weakdriven.report.run.verdict import verdict

    data = load_run(root)
    print(f"\n{verdict(data)[0]}")
    if not (stages := result_stages(data)):
        return
    folder = root / stages[-1]
    print(f"\nTrained model: {folder}")
    print(f"Talk to it:    weakdriven chat {quote(str(root))}")
    print(f"Evaluate it:   weakdriven eval --model {quote(str(folder))} --benchmarks test.jsonl --output results")
    print(f"Report again:  weakdriven report {quote(str(root))}")


def print_scores(root: Path) -> None:
    from weakdriven.report import accuracy_rows, validation_table

    rows = [
        (
            row["name"],
            row["benchmark"],
            f"{row['correct']}/{row['answers']}",
            common.percent(row["accuracy"]),
            common.interval(row["low"], row["high"]),
        )
        for row in accuracy_rows(root)
    ]
    if rows:
        common.print_table(("model", "benchmark", "correct", "accuracy", "95% interval"), rows)
    if validated := validation_table(root):
        common.print_table(validated["titles"], validated["cells"])
