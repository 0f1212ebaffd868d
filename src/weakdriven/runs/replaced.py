"""Replace finished stages whose settings changed: an error unless the user asks for it with --replace.

`put_in_place` moves an older result to `.replaced/` in the run directory, where it stays until the run is finished. If
its old settings return, it is taken back from there.
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
    """Its folder or URL."""
    reason: str
    seconds: float
    """Time that it took to compute."""


class WouldReplace(UserError):
    """Finished stages would be replaced, which needs --replace.

    Args:
        elsewhere: Options with which the same command keeps them.
    """

    def __init__(self, losses: Sequence[Loss], elsewhere: Sequence[str] = ()):
        self.losses, self.elsewhere = tuple(losses), tuple(elsewhere)
        many = f"{len(losses)} finished stages" if len(losses) > 1 else "A finished stage"
        total = duration(sum(loss.seconds for loss in losses))
        listed = "".join(f"  {loss.place} ({duration(loss.seconds)}): {loss.reason}\n" for loss in losses)
        keep = f", or {shlex.join(elsewhere)} to keep them" if elsewhere else ""
        super().__init__(
            f"{many} would be replaced (computed in {total}):\n{listed}"
            f"Nothing has been changed. Add --replace to replace them{keep}."
        )

    def __reduce__(self) -> Any:
        return WouldReplace, (self.losses, self.elsewhere)

    def commands(self, words: Sequence[str]) -> str:
        """Return the given command in two versions: one that replaces the stages, and one that keeps them."""
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
    """Return the planned stages whose finished results, which have other keys, would be lost.

    Tokenized data alone does not count; a run that stopped at the check of memory and disk has nothing else.
    """
    found = list[Loss]()
    for entry in planned:
        back = entry.taken == root / REPLACED / entry.name  # the two results are swapped, so none is lost
        if entry.reason and not back:
            path = root / entry.name / MANIFEST
            found += loss(str(path.parent), entry, path.read_bytes() if path.is_file() else None)
    return found if any(Path(one.place) != root / DATA for one in found) else []


def loss(place: str, entry: Planned, manifest: bytes | None) -> list[Loss]:
    """Return the finished stage with this manifest as a list of one loss, or [] if nothing would be lost."""
    try:
        old = json.loads(manifest or b"{}")
        if old.get("key") in (None, entry.key):
            return []
        return [Loss(place, entry.reason, float(old.get("wall_seconds") or 0.0))]
    except (ValueError, AttributeError, TypeError):  # a damaged manifest is reported elsewhere
        return []


def other_output(root: Path) -> tuple[str, str]:
    """Return an --output option with a run directory that does not exist yet.

    >>> other_output(Path("runs/demo"))
    ('--output', 'runs/demo-2')
    """
    number = 2
    while (path := root.with_name(f"{root.resolve().name}-{number}")).exists():
        number += 1
    return OUTPUT, str(path)


def drop_replaced(root: Path, progress: Progress, *, asked: bool) -> None:
    """Remove replaced stages at the end of a run; without --replace, keep them and print a note."""
    shutil.rmtree(root / REPLACED / DATA if not asked else root / REPLACED, ignore_errors=True)
    if size := held(root / REPLACED):
        progress.note(f"{root / REPLACED} contains {gib(size)} of replaced results; delete it if you do not need them")


def duration(seconds: float) -> str:
    """
    >>> duration(3.4), duration(400), duration(9000)
    ('3 s', '7 min', '2.5 hours')
    """
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
