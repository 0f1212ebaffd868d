"""`weakdriven verify`: compare every file of a run with the size and hash in its stage's manifest."""

from pathlib import Path
from typing import Annotated

import typer

from weakdriven.commands.common import Debug, here, print_table
from weakdriven.errors import UserError
from weakdriven.runs.directory import REPLACED, WORK
from weakdriven.runs.manifest import MANIFEST, files_of, refuse_damage


def verify(
    run: Annotated[Path, typer.Argument(help="A run directory, or one stage of it.", callback=here)],
    debug: Debug = False,
) -> None:
    """Check that the files of a run's finished stages are undamaged, by size and hash."""
    found = check_stages(run)
    rows = [  # stages of older versions list no files
        (stage, str(files), f"{size / (1 << 20):.1f}", "damaged" if wrong else "intact" if files else "not checked")
        for stage, files, size, wrong in found
    ]
    print_table(("stage", "files", "MiB", ""), rows)
    if damaged := [wrong for *_, wrong in found if wrong]:
        raise UserError(f"{len(damaged)} of {len(found)} stages are damaged. {damaged[0]}")
    listed = [files for _, files, _, _ in found if files]
    unlisted = f" {len(found) - len(listed)} stages list no files and were not checked." * (len(listed) < len(found))
    print(f"All {sum(listed)} files of {len(listed)} stages are intact.{unlisted}")


def check_stages(run: Path) -> list[tuple[str, int, int, str]]:
    """Return name, number of files, bytes and error message (empty if intact) of each finished stage."""
    if not run.is_dir():
        raise UserError(f"There is no folder {run}; give a run directory.")
    found = sorted(path.relative_to(run) for path in run.glob(f"**/{MANIFEST}"))
    stages = [run / path.parent for path in found if path.parts[0] not in (WORK, REPLACED)]
    if not stages:
        raise UserError(f"{run} contains no finished stage; give the directory of a run.")
    checked = []
    for folder in stages:
        files, wrong = {}, ""
        try:
            files = files_of(folder)
            refuse_damage(folder, files)
        except UserError as error:
            wrong = str(error)
        size = sum(fact["bytes"] for fact in files.values())
        checked.append((folder.relative_to(run).as_posix(), len(files), size, wrong))
    return checked
