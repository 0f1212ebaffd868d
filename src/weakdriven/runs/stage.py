"""A stage: one step of a run with its name, settings, inputs, computation and workload."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from weakdriven.runs.files import digest

NOT_RUN = "not run yet"
"""The reason for running a stage that has no result yet."""

Compute = Callable[[Path, Path], dict[str, Any]]
"""Computes a stage, given a work folder that survives kills and an empty output folder; returns the counters for the
manifest."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a run. Listing, planning, rehearsing and running all use this object.

    The key hashes the settings and the keys of the inputs, so it is known before anything runs. It is computed when it
    is first needed, because a plan lists stages even if their data and weights are on another machine.
    """

    name: str
    root: Path
    """The run directory."""
    compute: Compute
    settings: dict[str, Any] | Callable[[], dict[str, Any]] = field(default_factory=dict)
    """Settings that change the result; part of the key."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Everything that the stage reads, by name: a stage or a model, its key, or a function that returns its key."""
    execution: dict[str, Any] | Callable[[], dict[str, Any]] = field(default_factory=dict)
    """Settings that change speed or memory but not the result, such as a micro-batch size; not part of the key."""
    shared: bool = False
    """Every process of the run computes a part; otherwise the main process works and the others wait."""
    holds: Sequence[str] = ()
    """Files or folders that the result must contain; if one is missing, the stage runs again."""
    resumes: Callable[[Path], str | None] = lambda work: "where it stopped"
    """Returns where an attempt resumes, such as "from step 30 of 150", given the work folder of an earlier attempt;
    None if it starts again."""
    workload: Any = None
    """What a plan needs to know to estimate the cost (`weakdriven.stages.workload`)."""

    @property
    def path(self) -> Path:
        return self.root / self.name

    @cached_property
    def facts(self) -> dict[str, dict[str, Any]]:
        """Settings and keys of the inputs, as written into the manifest."""
        inputs = {name: called(getattr(one, "key", one)) for name, one in self.inputs.items()}
        return {"settings": json.loads(json.dumps(called(self.settings))), "inputs": inputs}

    @cached_property
    def key(self) -> str:
        return digest(self.facts)


@dataclass(frozen=True)
class Planned:
    """What a dry run found about one stage."""

    name: str
    key: str
    reason: str
    """Why it must run; empty if it is finished."""
    inputs: dict[str, str] = field(default_factory=dict, compare=False)
    """Maps the names of its inputs to their keys."""
    taken: Path | None = None
    """Folder of an identical stage of another run, which will be reused."""


def called(value: Any) -> Any:
    """Return the value, or call it if it is a function."""
    return value() if callable(value) else value
