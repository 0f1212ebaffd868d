"""`weakdriven data`: look at a data source before anything is trained on it."""

from typing import Annotated, Literal

import typer
from rich.console import Console

from weakdriven.cli_common import Debug, quieten_libraries

data_app = typer.Typer(help="Training data: weakdriven data show SOURCE.", no_args_is_help=True)
CHEAP = 256 << 20
"""Bytes of a file whose rows are counted just to show their number."""


@data_app.callback()
def group() -> None:
    """Makes `show` a command of its own name, although there is one only."""


@data_app.command("show")
def data_show(
    source: Annotated[str, typer.Argument(help="A JSONL, JSON or Parquet file, a Hub dataset, embedded:arithmetic.")],
    model: Annotated[str, typer.Option(help="Whose tokenizer and chat template to use.")] = "embedded:base",
    style: Annotated[
        Literal["tagged", "tag-free", "plain"], typer.Option(help="System prompt, as data.style.")
    ] = "tagged",
    domain: Annotated[
        Literal["math", "code", "logic"], typer.Option(help="Of rows that name none, as data.domain.")
    ] = "math",
    rows: Annotated[int, typer.Option(min=0, help="How many rows to show.")] = 3,
    max_length: Annotated[int, typer.Option(min=8, help="As data.max_length.")] = 4096,
    split: Annotated[str, typer.Option(help="Split of a Hub dataset.")] = "train",
    chat_template: Annotated[str | None, typer.Option(help="For a tokenizer that has none: file, or `gemma`.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the tokenizer.")] = False,
    debug: Debug = False,
) -> None:
    """Print the layout of a source and some rows as a model would learn them: the text in colour is learned."""
    quieten_libraries()
    from weakdriven.data.files import find_file
    from weakdriven.data.prompts import Renderer, give_chat_template
    from weakdriven.data.show import print_source
    from weakdriven.data.sources import EMBEDDED, open_source
    from weakdriven.models.load import load_tokenizer, locate_model

    opened = open_source(source, split, domain=domain, empty_completions="drop")
    tokenizer = load_tokenizer(locate_model(model), trust_remote_code=trust_remote_code)
    give_chat_template(tokenizer, chat_template, model, setting="--chat-template")
    renderer = Renderer(tokenizer, domain, style)
    renderer.check()
    file = None if source == EMBEDDED else find_file(source)
    cheap = file is None or file.suffix == ".parquet" or file.stat().st_size <= CHEAP
    count = opened.count() if cheap else None
    print_source(opened, renderer, Console(), rows=rows, max_length=max_length, count=count)
