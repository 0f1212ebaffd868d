"""Two stages for controls: a uniform draw of rows, and the compute of WMSS as a number of SFT rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weakdriven.config.recipe import Recipe
from weakdriven.data.tokenize import load_tokens, row_lengths
from weakdriven.runs.directory import ACTIVE, BUDGET, TOKENS
from weakdriven.runs.files import write_json
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context, present
from weakdriven.training.arguments import training_order


def uniform_draw(context: Context, name: str, round_number: int, data: Stage, active: Stage) -> Stage:
    """Draw uniformly, the same number of rows as in `active`; with replacement unless `selection.dedup` is set."""
    recipe = context.recipe
    seed = [recipe.seed, round_number, 1]

    def compute(work: Path, out: Path) -> dict[str, Any]:
        table = pq.read_table(active.path / ACTIVE, columns=["id", "draws"])
        rows, count = len(table), int(table["draws"].to_numpy().sum())
        drawn = np.random.default_rng(seed).choice(rows, count, replace=not recipe.selection.dedup)
        draws_N = np.bincount(drawn, minlength=rows).astype(np.int32)
        probability_N = np.full(rows, 1 / rows)
        pq.write_table(pa.table({"id": table["id"], "probability": probability_N, "draws": draws_N}), out / ACTIVE)
        return {"rows": rows, "active": count}

    settings = {"seed": seed, "dedup": recipe.selection.dedup}
    return context.run.stage(name, compute, settings=settings, inputs={"data": data, "active": active})


@dataclass(frozen=True)
class TokenCosts:
    """Compute per token, in forward passes of one model.

    The backward pass counts 2, or 1 with `lora`, because frozen weights need no gradient. Recomputed activations and
    the part of attention that grows with the length are not counted.
    """

    sft: int
    pair: int
    """Joint training: the cost of SFT for each trained model, 1 for a frozen weak model."""
    scans: int
    """Number of entropy scans of all data: in K rounds, of M0 to M_K."""

    @classmethod
    def of(cls, recipe: Recipe) -> "TokenCosts":
        sft, joint = 2 if recipe.lora else 3, recipe.joint
        weak = 0 if not joint.mixes else sft if joint.weak == "joint" else 1
        return cls(sft, sft + weak, joint.rounds + 1 if recipe.selection.enabled else 0)

    def in_sft_rows(self, forward_tokens: float, mean_length: float) -> int:
        """Convert compute into the number of average SFT rows that cost the same."""
        return max(round(forward_tokens / (self.sft * mean_length)), 1)


def wmss_budget(context: Context, name: str, data: Stage, actives: list[Stage | None]) -> Stage:
    """Convert the compute of WMSS into average SFT rows: phase 1 unless M1 was given, all scans, all rounds."""
    recipe = context.recipe
    sft, joint, costs = recipe.sft, recipe.joint, TokenCosts.of(recipe)
    trains_first = context.given_strong is None
    matched = recipe.selection.match_steps and recipe.selection.enabled

    def compute(work: Path, out: Path) -> dict[str, Any]:
        length_N = row_lengths(load_tokens(data.path / TOKENS))
        rows = len(length_N)
        spent = {"phase_1": 0, "scans": costs.scans * int(length_N.sum()), "rounds": 0}
        if trains_first:
            order = training_order(rows, epochs=sft.epochs, batch_size=sft.batch_size, seed=recipe.seed)
            spent["phase_1"] = costs.sft * int(length_N[order].sum())
        for round_number, active in enumerate(actives, start=1):
            draws_N = pq.read_table(active.path / ACTIVE, columns=["draws"])["draws"].to_numpy() if active else 1
            chosen = np.repeat(np.arange(rows), draws_N)
            shared = {"epochs": joint.epochs, "batch_size": joint.batch_size, "seed": recipe.seed}
            order = training_order(len(chosen), epoch_rows=rows if matched else None, phase=round_number, **shared)
            spent["rounds"] += costs.pair * int(length_N[chosen[order]].sum())
        worth = costs.in_sft_rows(sum(spent.values()), float(length_N.mean()))
        found = {"rows": worth, "steps": max(worth // sft.batch_size, 1), "forward_tokens": spent}
        write_json(out / BUDGET, found)
        return found

    settings = {
        "sft": [trains_first and sft.epochs, sft.batch_size],
        "joint": [joint.epochs, joint.batch_size, costs.pair],
        "costs": {"backward": costs.sft - 1, "scans": costs.scans},
        "match_steps": matched,
        "seed": recipe.seed,
    }
    inputs = present(data=data, **{f"active_{number}": active for number, active in enumerate(actives, start=1)})
    return context.run.stage(name, compute, settings=settings, inputs=inputs)
