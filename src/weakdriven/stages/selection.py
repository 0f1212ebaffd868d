"""WD-DS as a stage: selects the active set of a round by the entropies of two models (paper Sec. 4.2)."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weakdriven.data.tokenize import column, load_tokens
from weakdriven.runs.directory import ACTIVE, SCORES, TOKENS
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.entropy import entropy_stage
from weakdriven.stages.model import Model
from weakdriven.stages.model_stage import other_weak
from weakdriven.stages.workload import Workload
from weakdriven.wmss.score_files import VERSION, read_entropies
from weakdriven.wmss.selection import draw_active, selection_counters, selection_probabilities


def selection_stage(context: Context, name: str, round_number: int, data: Stage, weak: Model, strong: Model) -> Stage:
    """Select the active set of a round."""
    weak_scores, strong_scores = entropy_stage(context, weak, data), entropy_stage(context, strong, data)
    settings, seed = context.recipe.selection, [context.recipe.seed, round_number]
    weights = settings.model_dump(include={"consolidation", "difficulty", "repair", "formula"})
    elsewhere = {"enabled", "batch_tokens", "reuse", "match_steps", "strong_scores"}  # for other stages

    def compute(work: Path, out: Path) -> dict[str, Any]:
        ids = column(load_tokens(data.path / TOKENS), "id")
        weak_N, strong_N = (read_entropies(stage.path / SCORES, ids) for stage in (weak_scores, strong_scores))
        probabilities_N = selection_probabilities(weak_N, strong_N, **weights)
        active = draw_active(probabilities_N, seed=seed, multiplier=settings.multiplier, dedup=settings.dedup)
        draws_N = np.bincount(active, minlength=len(ids)).astype(np.int32)
        pq.write_table(pa.table({"id": ids, "probability": probabilities_N, "draws": draws_N}), out / ACTIVE)
        return selection_counters(weak_N, strong_N, probabilities_N, active, multiplier=settings.multiplier, **weights)

    return context.run.stage(
        name,
        compute,
        settings={
            **settings.model_dump(mode="json", exclude=elsewhere),
            "seed": seed,
            "version": VERSION,
            **other_weak(weak),
        },
        inputs={"data": data, "weak_scores": weak_scores, "strong_scores": strong_scores},
        workload=Workload(name),
    )
