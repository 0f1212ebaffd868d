"""Compare checkpoints as weak models by how far their entropies are from the strong model's (paper B.5)."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from weakdriven.config.recipe import Recipe
from weakdriven.errors import UserError
from weakdriven.methods.wmss import first_strong
from weakdriven.pipeline.run import carry_out
from weakdriven.runs.directory import SCORES, Progress
from weakdriven.runs.processes import is_main, join_processes
from weakdriven.runs.stage import Stage
from weakdriven.stages.checks import ready_model
from weakdriven.stages.context import Context
from weakdriven.stages.data import data_stage
from weakdriven.stages.entropy import entropy_stage
from weakdriven.stages.model import Model
from weakdriven.wmss.score_files import read_scores
from weakdriven.wmss.selection import rank_correlation

TOO_CLOSE = 0.05
"""Relative distance below which a pair carries little signal: our rule of thumb, since the paper gives no number."""


@dataclass(frozen=True)
class Separation:
    """Distance between the entropies of a weak and the strong model on the same examples."""

    weak: str
    examples: int
    weak_entropy: float
    strong_entropy: float
    change: float
    """Mean of strong minus weak entropy."""
    error: float
    """Standard error of `change`."""
    distance: float
    """Mean absolute difference of the entropies."""
    correlation: float | None
    """Rank correlation of the two models' entropies."""

    @property
    def relative(self) -> float:
        """Distance in units of the strong model's mean entropy."""
        return self.distance / self.strong_entropy if self.strong_entropy else float("inf")

    @property
    def too_close(self) -> bool:
        return self.distance == 0 or self.relative < TOO_CLOSE


def pair_checkpoints(
    recipe: Recipe, root: Path, progress: Progress, *, weak: list[str], strong: str | None, examples: int
) -> list[Separation]:
    """Return the separation of the base and of each given checkpoint from the strong model.

    Only the main process returns any.

    Args:
        strong: Model folder, adapter folder or Hub id; None for the recipe's M1, which must exist.
        examples: Number of examples drawn at random from the data, the same ones for every model.
    """
    if examples < 2:
        raise UserError(f"--examples is {examples}, expected at least 2.")
    join_processes()

    def scored(context: Context) -> list[tuple[str, Stage]]:
        data = data_stage(context)
        strongest = named(strong, context) if strong else first_strong(context, data)
        models = [(strong or "strong", strongest), ("base", context.base)]
        models += [(source, named(source, context)) for source in dict.fromkeys(weak)]
        return [(source, entropy_stage(context, model, data, examples)) for source, model in models]

    (_, reference), *others = carry_out(recipe, root, progress, scored, reads_only=True)
    if not is_main():
        return []
    strong_N = read_scores(reference.path / SCORES)["entropy"].to_numpy()
    return [separation(name, read_scores(s.path / SCORES)["entropy"].to_numpy(), strong_N) for name, s in others]


def named(source: str, context: Context) -> Model:
    """Return a checkpoint as a model named after the end of its path (to recognise it) and its key (to be unique)."""
    model = ready_model(source, source, context.recipe, context.base)
    place = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(Path(source).parts[-2:])).strip("-.")
    return replace(model, name=f"{place}-{model.key[:8]}")


def separation(name: str, weak_N: np.ndarray, strong_N: np.ndarray) -> Separation:
    """
    >>> found = separation("base", np.array([1.0, 0.5, 0.8]), np.array([0.4, 0.6, 0.8]))
    >>> round(found.change, 6), round(found.distance, 6), round(found.relative, 6), found.too_close
    (-0.166667, 0.233333, 0.388889, False)
    """
    change_N = strong_N - weak_N
    return Separation(
        weak=name,
        examples=len(change_N),
        weak_entropy=float(weak_N.mean()),
        strong_entropy=float(strong_N.mean()),
        change=float(change_N.mean()),
        error=float(change_N.std(ddof=1) / len(change_N) ** 0.5),
        distance=float(abs(change_N).mean()),
        correlation=rank_correlation(weak_N, strong_N),
    )
