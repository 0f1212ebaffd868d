"""`weakdriven chat`: chat with one model, or with the models of a run side by side."""

import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from weakdriven.commands.common import Debug, announce, quieten_libraries


def chat(
    source: Annotated[str, typer.Argument(metavar="RUN_OR_MODEL", help="Run directory, model folder or Hub id.")],
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature; 0 is greedy decoding.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum length of a reply, in tokens.")] = 512,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples, if the temperature is not 0.")] = 42,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the model.")] = False,
    debug: Debug = False,
) -> None:
    """Chat with a model, or with M0, M1 and the result of a run side by side; /exit or Ctrl-D ends the chat."""
    announce(f"Loading {source}", quiet=not sys.stdin.isatty())  # in a pipe, print only replies
    quieten_libraries()
    from weakdriven.pipeline.chat import open_speakers, print_answers, talk

    speakers, console = open_speakers(source, trust_remote_code=trust_remote_code), Console()
    options = {"temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # stop at once: there is nothing to save
    with suppress(KeyboardInterrupt):
        talk(speakers, typed_lines(), partial(print_answers, console=console), **options)


def typed_lines() -> Iterator[str]:
    """Yield the lines of a pipe, or those that the user types at a prompt."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
