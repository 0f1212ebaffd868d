"""What the command-line modules share."""

import logging
import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Quiet = Annotated[bool, typer.Option(help="Print the final table only.")]
Debug = Annotated[bool, typer.Option(help="Show the traceback of an error.")]


def default_command(name: str) -> type[TyperGroup]:
    """A group whose command `name` may be left out: `select RECIPE` is short for `select draw RECIPE`."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            named = not args or args[0] in (*self.commands, *ctx.help_option_names)
            return super().parse_args(ctx, args if named else [name, *args])

    return Group


def quieten_libraries() -> None:
    """Our own progress replaces theirs; set before they are imported."""
    for name, value in {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DATASETS_VERBOSITY": "error",
    }.items():
        os.environ.setdefault(name, value)
    for name in ("torchao", "torch.utils._pytree"):  # transformers imports torchao where it is installed
        logging.getLogger(name).setLevel(logging.ERROR)
