"""A stage: one step of a run, which knows its name, what decides its result, how it is computed and what it costs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from weakdriven.runs.files import digest

NOT_RUN = "not run yet"
"""Why a stage runs that has no result."""

Compute = Callable[[Path, Path], dict[str, Any]]
"""Takes a work folder that survives kills and an empty output folder; returns the counters for the manifest."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a run. Listing, planning, rehearsing and running all use this object.

    The key hashes the settings and the keys of the inputs, so it is known before anything runs. It is computed when it
    is first needed: a plan lists stages whose data and weights are on another machine.
    """

    name: str
    root: Path
    """The run directory."""
    compute: Compute
    settings: dict[str, Any] | Callable[[], dict[str, Any]] = field(default_factory=dict)
    """What decides the result; part of the key."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Everything that is read, by name: a stage or a model, or its key, or a function that returns its key."""
    execution: dict[str, Any] | Callable[[], dict[str, Any]] = field(default_factory=dict)
    """Settings that change speed or memory and not the result, such as a micro-batch size."""
    shared: bool = False
    """Every process of the run computes a part; otherwise the main process works and the others wait."""
    holds: Sequence[str] = ()
    """Files or folders that the result must still contain; if one is gone, the stage runs again."""
    resumes: Callable[[Path], str | None] = lambda work: "where it stopped"
    """From where a try resumes, such as "from step 30 of 150", given the work folder that an earlier one left; None if
    it starts again."""
    workload: Any = None
    """What a plan needs to know of its cost (`weakdriven.stages.workload`)."""

    @property
    def path(self) -> Path:
        return self.root / self.name

    @cached_property
    def facts(self) -> dict[str, dict[str, Any]]:
        """Settings and keys of the inputs, as the manifest holds them."""
        inputs = {name: called(getattr(one, "key", one)) for name, one in self.inputs.items()}
        return {"settings": json.loads(json.dumps(called(self.settings))), "inputs": inputs}

    @cached_property
    def key(self) -> str:
        return digest(self.facts)


@dataclass(frozen=True)
class Planned:
    """What a dry run found out about one stage."""

    name: str
    key: str
    reason: str
    """Why it has to run; empty when it is finished."""
    inputs: dict[str, str] = field(default_factory=dict, compare=False)
    """Name and key of what it reads."""
    taken: Path | None = None
    """The folder of another run's identical stage, which is reused."""


def called(value: Any) -> Any:
    """The value, or what it returns if it is a function."""
    return value() if callable(value) else value
