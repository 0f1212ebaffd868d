"""`weakdriven eval`: run benchmarks on a model, grade saved answers again, compare two models."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from weakdriven.commands.common import Debug, Quiet, default_command, here, quieten_libraries
from weakdriven.config.recipe import EvalSettings
from weakdriven.errors import UserError

eval_app = typer.Typer(
    help="Benchmarks: weakdriven eval --model M --benchmarks gsm8k,math500 --output DIR (short for eval run ...).",
    cls=default_command("run"),
)

Folder = Annotated[
    Path, typer.Argument(help="Folder with <benchmark>/scores.json, as eval or RUN/eval/MODEL has.", callback=here)
]
CodePython = Annotated[str | None, typer.Option(help="Python whose packages generated code may import.")]
Unsafe = Annotated[bool, typer.Option("--unsafe", help="Run generated code even where it cannot be isolated.")]


@eval_app.command("run")
def eval_run(
    model: Annotated[str, typer.Option(help="Model or adapter folder, or a Hub id.")],
    benchmarks: Annotated[str, typer.Option(help="Names with commas between; see docs/benchmarks.md.")],
    output: Annotated[Path, typer.Option(help="Folder for the results; run again with it to go on.", callback=here)],
    preset: Annotated[
        Literal["paper", "passk"], typer.Option(help="One greedy answer, or 64 samples for pass@k.")
    ] = "paper",
    data_dir: Annotated[str | None, typer.Option(help="Folder with the benchmarks' files; unset: the Hub.")] = None,
    limit: Annotated[int | None, typer.Option(help="First items only.")] = None,
    samples: Annotated[int | None, typer.Option(help="Answers to each item.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Probability that is drawn from.")] = None,
    k: Annotated[str | None, typer.Option(help="pass@k to report, with commas between.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Instead of each benchmark's budget.")] = None,
    max_prompt_tokens: Annotated[int, typer.Option(help="Longer prompts are an error.")] = 4096,
    style: Annotated[
        Literal["tagged", "tag-free", "plain"] | None,
        typer.Option(help="System prompt; unset: as the model's run trained it, else tagged."),
    ] = None,
    chat_template: Annotated[str | None, typer.Option(help="For a tokenizer that has none: file, or `gemma`.")] = None,
    seed: Annotated[int, typer.Option(help="Of all samples.")] = 42,
    precision: Annotated[Literal["bf16", "fp32"], typer.Option(help="Of the weights and the arithmetic.")] = "bf16",
    attention: Annotated[str | None, typer.Option(help="Attention implementation of transformers.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Answers written together; unset: what fits.")] = None,
    batching: Annotated[
        Literal["auto", "static", "continuous"], typer.Option(help="How transformers fills its batches.")
    ] = "auto",
    url: Annotated[str | None, typer.Option(help="A running vLLM server that serves this model.")] = None,
    served_name: Annotated[str | None, typer.Option(help="The model's name there, if not its folder's.")] = None,
    serve: Annotated[str | None, typer.Option(help="Python of an environment with vLLM: serve the model.")] = None,
    code_python: CodePython = None,
    unsafe: Unsafe = False,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the checkpoint.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Answer, grade and score benchmarks with one model; every answer is kept."""
    quieten_libraries()
    from weakdriven.eval.evaluation import evaluate_model, known_benchmarks
    from weakdriven.eval.target import Subject
    from weakdriven.runs.progress import choose_progress

    if url and serve:
        raise UserError("--url names a running server and --serve starts one; give one of them.")
    settings = checked_settings(
        benchmarks=known_benchmarks(benchmarks),
        preset=preset,
        data_dir=data_dir,
        limit=limit,
        samples=samples,
        temperature=temperature,
        top_p=top_p,
        k=whole_numbers(k),
        max_new_tokens=max_new_tokens,
        max_prompt_tokens=max_prompt_tokens,
        engine="vllm" if url or serve else "transformers",
        vllm_python=serve,
        batch_size=batch_size,
        batching=batching,
        code_python=code_python,
        unsafe=unsafe,
    )
    subject = Subject(
        model=model,
        style=style,
        chat_template=chat_template,
        precision=precision,
        attention=attention,
        trust_remote_code=trust_remote_code,
        url=url,
        served_name=served_name,
        seed=seed,
    )
    console = wide_console()
    scores = evaluate_model(subject, settings, output, choose_progress(console, quiet=quiet))
    print_scores(scores, console)


@eval_app.command("regrade")
def eval_regrade(
    folder: Folder, code_python: CodePython = None, unsafe: Unsafe = False, quiet: Quiet = False, debug: Debug = False
) -> None:
    """Grade the saved answers again with today's graders, without a model."""
    from weakdriven.eval.run import regrade_folder
    from weakdriven.runs.progress import choose_progress

    console = wide_console()
    progress = choose_progress(console, quiet=quiet)
    print_scores(regrade_folder(folder, unsafe=unsafe, code_python=code_python, progress=progress), console)


@eval_app.command("compare")
def eval_compare(first: Folder, second: Folder, debug: Debug = False) -> None:
    """Say whether the second model is better than the first on the same items, with a p-value."""
    from weakdriven.eval.scoring import compare

    compared, left_out = compare(first, second)
    console = wide_console()
    table = Table(
        "benchmark", "items", "first", "second", "difference", "95% interval", "p", "only first, second", "test"
    )
    for one in compared:
        low, high = one.result.interval
        apart = "" if one.result.only_a is None else f"{one.result.only_a}, {one.result.only_b}"
        table.add_row(
            f"{one.benchmark} v{one.version}",
            str(one.items),
            percent(one.accuracy_a),
            percent(one.accuracy_b),
            f"{100 * one.result.difference:+.1f}",
            f"{100 * low:+.1f} to {100 * high:+.1f}",
            f"{one.result.p_value:.2g}",
            apart,
            one.test,
        )
    console.print(table)
    if len(compared) > 1:
        means = [sum(getattr(one, f"accuracy_{m}") for one in compared) / len(compared) for m in "ab"]
        names = ", ".join(f"{one.benchmark} v{one.version}" for one in compared)
        print(f"Average of {names}: {percent(means[0])} and {percent(means[1])}.")
    if left_out:
        print(f"Only one of the two has {', '.join(left_out)}; left out.")


def checked_settings(**values: Any) -> EvalSettings:
    try:
        return EvalSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = "--" + str(first["loc"][0]).replace("_", "-") + ": " if first["loc"] else ""
        raise UserError(f"{name}{first['msg'].removeprefix('Value error, ')}.") from None


def whole_numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--k is {text!r}; expected whole numbers with commas between, such as 1,4,8.") from None


def print_scores(scores: dict[str, dict[str, Any]], console: Console) -> None:
    from weakdriven.eval.scoring import average

    several = any(one["samples"] > 1 for one in scores.values())
    ks = list(dict.fromkeys(k for one in scores.values() for k in one["pass_at_k"] if k != "1"))
    table = Table("benchmark", "items", *(["samples"] if several else []), "accuracy", "95% interval")
    for name in (*(f"pass@{k}" for k in ks), "no answer", "cut"):
        table.add_column(name)
    for name, one in scores.items():
        low, high = one["interval"]
        table.add_row(
            f"{name} v{one['version']}" + ("" if one["whole"] else " (part)"),
            str(one["items"]),
            *([str(one["samples"])] if several else []),
            percent(one["accuracy"]),
            f"{100 * low:.1f} to {100 * high:.1f}",
            *(percent(one["pass_at_k"][k]) if k in one["pass_at_k"] else "" for k in ks),
            str(one["unanswered"]),
            str(one["cut"]),
        )
    console.print(table)
    if (mean := average(scores)) is not None:
        names = ", ".join(f"{name} v{one['version']}" for name, one in scores.items())
        print(f"Average of {names}: {percent(mean)}.")
    if undecided := sum(one["undecided"] for one in scores.values()):
        print(
            f"{undecided} answers could not be decided by the grader and count as wrong; see reason in samples.jsonl."
        )


def wide_console() -> Console:
    """In a file or a pipe rich would wrap tables at 80 columns."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"
