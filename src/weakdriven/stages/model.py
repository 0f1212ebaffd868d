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
    """Its key, or a function that computes the key when it is first needed."""
    kept: tuple[int, ...] = ()
    """Percents of its training after which a snapshot was kept."""

    @property
    def key(self) -> str:
        return called(self.identity)

    def at(self, percent: int) -> "Model":
        """Return a snapshot of the model."""
        folder = self.folder / SNAPSHOTS / str(percent)
        return Model(f"{self.name}-at-{percent}", folder, lambda: digest([self.key, percent]))
