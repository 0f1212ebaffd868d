"""A model of a run: where it is, and the key of what made it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from weakdriven.runs.directory import SNAPSHOTS
from weakdriven.runs.files import digest
from weakdriven.runs.stage import called


@dataclass(frozen=True)
class Model:
    """A model of the run: `base` is M0, `sft` M1, `round-1` M2 and so on."""

    name: str
    folder: Path
    identity: str | Callable[[], str] = field(compare=False, repr=False)
    """The key, or a function that computes it when it is first needed."""
    kept: tuple[int, ...] = ()
    """Whole percents of its training after which a snapshot was kept."""

    @property
    def key(self) -> str:
        return called(self.identity)

    def at(self, percent: int) -> "Model":
        """A snapshot of it."""
        folder = self.folder / SNAPSHOTS / str(percent)
        return Model(f"{self.name}-at-{percent}", folder, lambda: digest([self.key, percent]))
