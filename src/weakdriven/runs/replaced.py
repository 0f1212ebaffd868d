"""Finished stages that another setting replaces: an error unless the user asks for it, and kept until the run is done.

`put_in_place` moves an older result to `.replaced/` in the run directory. A stage that is asked for again under its old
key is taken back from there.
"""

import json
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError
from weakdriven.runs.directory import REPLACED, Progress
from weakdriven.runs.disk import gib, held
from weakdriven.runs.manifest import MANIFEST
from weakdriven.runs.stage import Planned

OUTPUT, DATA = "--output", "data"


@dataclass(frozen=True)
class Loss:
    """A finished stage that would be replaced."""

    place: str
    """Its folder, or its address."""
    reason: str
    seconds: float
    """What it took to compute."""


class WouldReplace(UserError):
    """Finished stages would be replaced, which has to be asked for.

    Args:
        elsewhere: Options with which the same command leaves them alone.
    """

    def __init__(self, losses: Sequence[Loss], elsewhere: Sequence[str] = ()):
        self.losses, self.elsewhere = tuple(losses), tuple(elsewhere)
        many = f"{len(losses)} finished stages" if len(losses) > 1 else "A finished stage"
        total = duration(sum(loss.seconds for loss in losses))
        listed = "".join(f"  {loss.place} ({duration(loss.seconds)}): {loss.reason}\n" for loss in losses)
        keep = f", or {shlex.join(elsewhere)} to keep them" if elsewhere else ""
        super().__init__(
            f"{many} would be replaced, which took {total} to compute:\n{listed}"
            f"Nothing has been changed. Add --replace to replace them{keep}."
        )

    def __reduce__(self) -> Any:
        return WouldReplace, (self.losses, self.elsewhere)

    def commands(self, words: Sequence[str]) -> str:
        """The command that was given, as it replaces them and as it keeps them."""
        lines = f"replace:  {shlex.join(['weakdriven', *words, '--replace'])}"
        if self.elsewhere:
            lines += f"\nkeep:     {shlex.join(['weakdriven', *without_output(words), *self.elsewhere])}"
        return lines


def without_output(words: Sequence[str]) -> list[str]:
    """
    >>> without_output(["run", "demo", "--output", "a", "--quiet", "--output=b"])
    ['run', 'demo', '--quiet']
    """
    after = [False, *(word == OUTPUT for word in words)]
    kept = zip(words, after, strict=False)
    return [word for word, is_value in kept if not is_value and word != OUTPUT and not word.startswith(f"{OUTPUT}=")]


def losses(root: Path, planned: Iterable[Planned]) -> list[Loss]:
    """Planned stages whose folder holds a finished result of another key, which would be lost.

    None if these are tokenised rows alone, as after a run that stopped at the check of memory and disk.
    """
    found = list[Loss]()
    for entry in planned:
        back = entry.taken == root / REPLACED / entry.name  # then the two results change places
        if entry.reason and not back:
            path = root / entry.name / MANIFEST
            found += loss(str(path.parent), entry, path.read_bytes() if path.is_file() else None)
    return found if any(Path(one.place) != root / DATA for one in found) else []


def loss(place: str, entry: Planned, manifest: bytes | None) -> list[Loss]:
    """What would be lost at a place with this manifest: at most one stage."""
    try:
        old = json.loads(manifest or b"{}")
        if old.get("key") in (None, entry.key):
            return []
        return [Loss(place, entry.reason, float(old.get("wall_seconds") or 0.0))]
    except (ValueError, AttributeError, TypeError):  # a damaged manifest is an error of its own
        return []


def other_output(root: Path) -> tuple[str, str]:
    """The option with a run directory that is not there yet.

    >>> other_output(Path("runs/demo"))
    ('--output', 'runs/demo-2')
    """
    number = 2
    while (path := root.with_name(f"{root.resolve().name}-{number}")).exists():
        number += 1
    return OUTPUT, str(path)


def drop_replaced(root: Path, progress: Progress, *, asked: bool) -> None:
    """Remove what was replaced, once all that replaces it is finished; if that was not asked for, only report it."""
    shutil.rmtree(root / REPLACED / DATA if not asked else root / REPLACED, ignore_errors=True)
    if size := held(root / REPLACED):
        progress.note(f"{root / REPLACED} holds {gib(size)} of replaced results; delete it when you need none of them")


def duration(seconds: float) -> str:
    """
    >>> duration(3.4), duration(400), duration(9000)
    ('3 s', '7 min', '2.5 hours')
    """
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
