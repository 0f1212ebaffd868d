"""`weakdriven data`: look at training data, or build a verified training set from raw corpora."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from weakdriven.build.settings import BuildSettings
from weakdriven.commands.common import (
    DataDir,
    Debug,
    Quiet,
    announce,
    here,
    print_table,
    progress_of,
    quieten_libraries,
)
from weakdriven.commands.settings import UNKNOWN_OPTIONS, read_settings, settings_command, split_words
from weakdriven.config.file import data_settings
from weakdriven.errors import UserError

data_app = typer.Typer(
    short_help="Look at training data, or build a verified set.",
    help="Look at training data before a run, or build a verified training set from raw corpora.",
    no_args_is_help=True,
)


@data_app.command("show")
def data_show(
    source: Annotated[str, typer.Argument(help="A JSONL, JSON or Parquet file or a Hub dataset, like data.path.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings of `data`, such as 'data.fields={prompt: input}'.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model whose tokenizer and chat template are used (default: the embedded one).")
    ] = None,
    style: Annotated[Literal["tagged", "tag-free", "plain"] | None, typer.Option(help="Like data.style.")] = None,
    system_prompt: Annotated[str | None, typer.Option(help="Like data.system_prompt.")] = None,
    domain: Annotated[Literal["math", "code", "logic"] | None, typer.Option(help="Like data.domain.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Number of rows to show.")] = 3,
    max_length: Annotated[int | None, typer.Option(min=8, help="Like data.max_length.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of a Hub dataset (default: train).")] = None,
    long_prompts: Annotated[Literal["error", "drop"] | None, typer.Option(help="Like data.long_prompts.")] = None,
    empty_completions: Annotated[
        Literal["error", "drop"] | None, typer.Option(help="Like data.empty_completions.")
    ] = None,
    chat_template: Annotated[str | None, typer.Option(help="Like chat_template of a recipe.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the tokenizer.")] = False,
    debug: Debug = False,
) -> None:
    """Print the layout of a source and some rows as the model sees them; supervised text is in colour.

    Exits with 2 if training on these rows would raise an error.
    """
    announce(f"Reading {source}")
    quieten_libraries()
    from weakdriven.data.prompts import Renderer, give_chat_template
    from weakdriven.data.rows.files import cheap_count
    from weakdriven.data.rows.sources import open_source
    from weakdriven.data.show import print_source
    from weakdriven.models.load import EMBEDDED, load_tokenizer, locate_model, positions

    given = {"style": style, "system_prompt": system_prompt, "domain": domain, "max_length": max_length, "split": split}
    given |= {"path": source, "long_prompts": long_prompts, "empty_completions": empty_completions}
    settings = data_settings({key: value for key, value in given.items() if value is not None}, overrides, "settings")
    if other := [word for word in overrides or [] if not word.startswith("data.")]:
        raise UserError(
            f"{other[0]}: expected a setting of data, such as data.split=test. A model is given by --model."
        )
    if settings.path != source:
        raise UserError(f"{source} is the source to show. To show another, give it as SOURCE, not as data.path.")
    read = settings.model_dump(include={"path", "split", "fields", "limit", "domain"})
    opened = open_source(**read, empty_completions="drop")
    folder = locate_model(model or EMBEDDED)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    give_chat_template(tokenizer, chat_template, model or EMBEDDED, setting="--chat-template")
    renderer = Renderer(tokenizer, settings.domain, settings.style, settings.system_prompt)
    renderer.check()
    note = "" if model else "; choose another model with --model"
    Console().print(f"Tokens of {model or EMBEDDED}{note}", markup=False, highlight=False, soft_wrap=True)
    many = cheap_count(source, settings.split)
    looked = {"rows": rows, "max_length": settings.max_length, "count": many and min(many, settings.limit or many)}
    room = positions(folder, trust_remote_code=trust_remote_code) if model else None
    dropped = [name for name in ("long_prompts", "empty_completions") if getattr(settings, name) == "drop"]
    if not print_source(opened, renderer, Console(), positions=room, dropped=dropped, **looked):
        raise typer.Exit(2)


@data_app.command("build", cls=settings_command(BuildSettings), context_settings=UNKNOWN_OPTIONS)
def data_build(
    domain: Annotated[
        Literal["math", "code", "logic"], typer.Argument(help="Domain, which decides how rows are verified.")
    ],
    sources: Annotated[
        list[str], typer.Argument(help="Raw files or Hub datasets; settings as key=value, listed below.")
    ],
    output: Annotated[Path, typer.Option(help="Folder for the result; the same folder resumes.", callback=here)],
    benchmarks: Annotated[str, typer.Option(help="Drop rows that overlap with these: names, all, or none.")] = "all",
    data_dir: DataDir = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of rows per source, taken from the start.")] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Model that generates the completions, here or at teacher.url.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Build a training set: keep verified rows, drop duplicates and rows that overlap with benchmarks.

    funnel.json counts the dropped rows by reason.
    """
    paths, words = split_words(sources)
    checked = asked_benchmarks(benchmarks)
    options = {"domain": domain, "sources": paths, "data_dir": data_dir, "limit": limit, "benchmarks": checked}
    if teacher is not None:
        words.append(f"teacher.model={teacher}")
    settings = read_settings(BuildSettings, words, options)
    progress = progress_of(quiet)
    from weakdriven.build.build import build

    console = Console()
    print_funnel(build(settings, output, progress), console)
    console.print(f"{output / settings.result}", markup=False, highlight=False, soft_wrap=True)


def asked_benchmarks(names: str) -> list[str] | None:
    """Return the benchmarks named on a command line; None stands for all available ones."""
    from weakdriven.eval.benchmarks import benchmarks_named

    return None if names == "all" else [] if names == "none" else benchmarks_named(names)


def print_funnel(funnel: dict[str, Any], console: Console) -> None:
    counts = [("in", funnel["in"])]
    counts += [(f"- {reason}", one["rows"]) for reason, one in funnel["dropped"].items()]
    counts.append(("kept", funnel["kept"]))
    rows = [(name, f"{rows:,}", f"{100 * rows / max(funnel['in'], 1):.1f}%") for name, rows in counts]
    print_table(("", "rows", "share"), rows, console)
    if tried := funnel.get("completions"):
        console.print(f"The teacher generated {tried['in']:,} completions; {tried['kept']:,} are kept.")
