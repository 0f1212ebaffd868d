"""`weakdriven eval`: run benchmarks on a model, grade saved completions again, compare two models."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from weakdriven.commands.common import (
    DataDir,
    Debug,
    Quiet,
    Replace,
    announce,
    default_command,
    here,
    interval,
    percent,
    print_table,
    progress_of,
)
from weakdriven.commands.settings import UNKNOWN_OPTIONS, read_settings, settings_command
from weakdriven.eval.settings import EvaluationSettings, RegradeSettings

eval_app = typer.Typer(
    short_help="Evaluate a model on benchmarks, or compare two evaluated models.",
    help="Evaluate: weakdriven eval --model M --benchmarks gsm8k,math500 --output DIR (short for eval run ...).",
    cls=default_command("run"),
)
Folder = Annotated[Path, typer.Argument(help="Output folder of eval, or RUN/eval/MODEL.", callback=here)]
KeyValues = Annotated[list[str] | None, typer.Argument(help="Settings as key=value, listed below.")]


@eval_app.command("run", cls=settings_command(EvaluationSettings), context_settings=UNKNOWN_OPTIONS)
def eval_run(
    model: Annotated[str, typer.Option(help="Model: a folder (also of an adapter), or a Hub id.")],
    benchmarks: Annotated[
        str, typer.Option(help="Names of benchmarks and files with your own test sets, separated by commas.")
    ],
    output: Annotated[Path, typer.Option(help="Folder for the results; the same folder resumes.", callback=here)],
    settings: KeyValues = None,
    data_dir: DataDir = None,
    limit: Annotated[
        int | None, typer.Option(help="Maximum number of items per benchmark, taken from the start.")
    ] = None,
    replace: Replace = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Evaluate one model on benchmarks; every completion is saved."""
    from weakdriven.eval.benchmarks import benchmarks_named

    options = {"model": model, "benchmarks": benchmarks_named(benchmarks), "data_dir": data_dir, "limit": limit}
    checked = read_settings(EvaluationSettings, settings, options)
    announce(f"{model}: benchmarks {benchmarks}, output {output}", quiet=quiet)
    progress = progress_of(quiet)
    from weakdriven.eval.standalone import evaluate_model

    print_scores(evaluate_model(checked, output, progress, replace=replace))


@eval_app.command("regrade", cls=settings_command(RegradeSettings), context_settings=UNKNOWN_OPTIONS)
def eval_regrade(folder: Folder, settings: KeyValues = None, quiet: Quiet = False, debug: Debug = False) -> None:
    """Grade saved completions again with the installed graders; no model is loaded."""
    checked = read_settings(RegradeSettings, settings, {})
    announce(f"Grading the completions in {folder} again", quiet=quiet)
    progress = progress_of(quiet)
    from weakdriven.eval.standalone import regrade_folder

    print_scores(regrade_folder(folder, checked, progress))


@eval_app.command("compare")
def eval_compare(first: Folder, second: Folder, debug: Debug = False) -> None:
    """Test whether the second model is significantly better than the first on the same items."""
    from weakdriven.eval.scoring import compare

    compared, left_out = compare(first, second)
    titles = ("benchmark", "items", "first", "second", "difference", "95% interval", "p", "only first, second", "test")
    rows = [
        (
            f"{one.benchmark} v{one.version}",
            str(one.items),
            percent(one.accuracy_a),
            percent(one.accuracy_b),
            f"{100 * one.result.difference:+.1f}",
            interval(*one.result.interval, "+"),
            f"{one.result.p_value:.2g}",
            "" if one.result.only_a is None else f"{one.result.only_a}, {one.result.only_b}",
            one.test,
        )
        for one in compared
    ]
    print_table(titles, rows, wide_console())
    if len(compared) > 1:
        means = [sum(getattr(one, f"accuracy_{m}") for one in compared) / len(compared) for m in "ab"]
        names = ", ".join(f"{one.benchmark} v{one.version}" for one in compared)
        print(f"Average of {names}: {percent(means[0])} and {percent(means[1])}.")
    if left_out:
        print(f"Not compared, because only one of the two has them: {', '.join(left_out)}.")


def print_scores(scores: dict[str, dict[str, Any]]) -> None:
    from weakdriven.eval.scoring import average

    several = any(one["samples"] > 1 for one in scores.values())
    ks = list(dict.fromkeys(k for one in scores.values() for k in one["pass_at_k"] if k != "1"))
    titles = ["benchmark", "items", *(["samples"] if several else []), "accuracy", "95% interval"]
    rows = [
        (
            f"{name} v{one['version']}" + ("" if one["whole"] else " (part)"),
            str(one["items"]),
            *([str(one["samples"])] if several else []),
            percent(one["accuracy"]),
            interval(*one["interval"]),
            *(percent(one["pass_at_k"][k]) if k in one["pass_at_k"] else "" for k in ks),
            str(one["unanswered"]),
            str(one["cut"]),
        )
        for name, one in scores.items()
    ]
    print_table([*titles, *(f"pass@{k}" for k in ks), "no answer", "cut"], rows, wide_console())
    if (mean := average(scores)) is not None:
        names = ", ".join(f"{name} v{one['version']}" for name, one in scores.items())
        print(f"Average of {names}: {percent(mean)}.")
    if undecided := sum(one["undecided"] for one in scores.values()):
        print(f"The grader could not decide {undecided} answers; they count as wrong. samples.jsonl has the reasons.")


def wide_console() -> Console:
    """Return a console of at least 140 columns in a file or a pipe, where rich would wrap tables at 80."""
    console = Console()
    return console if console.is_terminal else Console(width=140)
