"""What the command-line modules share."""

import logging
import os
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from weakdriven.errors import UserError
from weakdriven.runs.processes import launched
from weakdriven.runs.redact import without_login

Given = TypeVar("Given", Path, list[Path], None)

Quiet = Annotated[bool, typer.Option(help="Print the final table only.")]
Debug = Annotated[bool, typer.Option(help="Show the traceback of an error.")]


def default_command(name: str) -> type[TyperGroup]:
    """A group whose command `name` may be left out: `select RECIPE` is short for `select draw RECIPE`."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            named = not args or args[0] in (*self.commands, *ctx.help_option_names)
            return super().parse_args(ctx, args if named else [name, *args])

    return Group


def here(given: Given) -> Given:
    """Of directories on the command line: themselves, and no address, in which pathlib has made one slash of two."""
    for path in given if isinstance(given, list) else [given] if given else []:
        if (scheme := re.match(r"[a-z][a-z0-9+.-]+:(?=/)", str(path), re.IGNORECASE)) and not path.exists():
            address = without_login(f"{scheme[0]}/{str(path)[scheme.end() :]}")
            raise UserError(
                f"{address} is an address, and this command needs a directory. weakdriven run RECIPE --output ADDRESS "
                "--work DIR brings what is there into DIR, and works there."
            )
    return given


def runs_given(given: list[Path] | None) -> list[Path]:
    """The runs that these folders are or hold."""
    from weakdriven.runs.directory import runs_in

    return runs_in(here(given)) if given else []


Force = Annotated[
    bool, typer.Option("--force", help="Go on where it is predicted not to fit in memory or on the disk.")
]
Rehearse = Annotated[bool | None, typer.Option(help="Try two steps of each training stage first; unset: on a GPU.")]
TakeFrom = Annotated[
    list[Path] | None,
    typer.Option(
        help="A run or a folder of runs: what it has finished and is the same is not computed again.",
        callback=runs_given,
    ),
]


def places(output: str | None, work: Path | None) -> tuple[Path | None, str | None]:
    """The run directory that was asked for, if any, and the address that its stages are copied to.

    >>> places("runs/demo", None), places("s3://bucket/demo", Path("scratch"))
    ((PosixPath('runs/demo'), None), (PosixPath('scratch'), 's3://bucket/demo'))
    """
    from weakdriven.data.rows.remote import is_remote
    from weakdriven.stages.remote_copy import default_folder

    if output is None or not is_remote(output):
        if work is not None:
            raise UserError(f"--work {work} goes with an address as --output; leave it out, or give it as --output.")
        return None if output is None else Path(output), None
    if output.lower().startswith(("http://", "https://")):
        raise UserError(
            f"{without_login(output)} is read only; give a directory as --output, or an s3:// or gs:// address."
        )
    if work is None and int(os.environ.get("LOCAL_WORLD_SIZE", launched())) < launched():
        raise UserError("The processes are on several machines; give --work DIR, a directory that all of them see.")
    return work or default_folder(output), output


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
