"""Two stages that only controls need: as many rows drawn uniformly, and what WMSS computes in rows of SFT."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weakdriven.data.tokenize import load_tokens, row_lengths
from weakdriven.runs.directory import ACTIVE, BUDGET, TOKENS, Stage
from weakdriven.runs.files import write_json
from weakdriven.stages.stages import Stages, keys
from weakdriven.training.arguments import training_order


def uniform_draw(stages: Stages, name: str, turn: int, data: Stage, active: Stage) -> Stage:
    """As many rows as `active` has, each as likely as any other; some twice only where `active` may have such."""
    recipe = stages.recipe
    seed = [recipe.seed, turn, 1]

    def compute(work: Path, out: Path) -> dict[str, Any]:
        table = pq.read_table(active.path / ACTIVE, columns=["id", "draws"])
        rows, count = len(table), int(table["draws"].to_numpy().sum())
        drawn = np.random.default_rng(seed).choice(rows, count, replace=not recipe.selection.dedup)
        draws_N = np.bincount(drawn, minlength=rows).astype(np.int32)
        probability_N = np.full(rows, 1 / rows)
        pq.write_table(pa.table({"id": table["id"], "probability": probability_N, "draws": draws_N}), out / ACTIVE)
        return {"rows": rows, "active": count}

    settings = {"seed": seed, "dedup": recipe.selection.dedup}
    return stages.run.stage(name, compute, settings=settings, inputs=keys(data=data, active=active))


def wmss_budget(stages: Stages, name: str, data: Stage, actives: list[Stage | None]) -> Stage:
    """What WMSS computes, in rows of SFT of average length.

    A token costs 1 forward through a model and 2 backward (1 with `lora`, where frozen weights need no gradient). So a
    token costs 3 in SFT, 3 for each model that learns and 1 for a frozen one in joint training, and 1 for each model
    that is scanned for entropy: M0 to M_K in K rounds. Phase 1 counts, unless M1 was given. What is recomputed to save
    memory does not count, nor does attention's share that grows with the length, nor do scores taken from another run
    count as free.
    """
    recipe = stages.recipe
    sft, joint = recipe.sft, recipe.joint
    backward = 1 if recipe.lora else 2
    learns = 1 + backward
    pair = learns + (0 if not joint.mixes else learns if joint.weak == "joint" else 1)
    trains_first = stages.given_strong is None
    scans = joint.rounds + 1 if recipe.selection.enabled else 0
    matched = recipe.selection.match_steps and recipe.selection.enabled

    def compute(work: Path, out: Path) -> dict[str, Any]:
        length_N = row_lengths(load_tokens(data.path / TOKENS))
        rows = len(length_N)
        spent = {"phase_1": 0, "scans": scans * int(length_N.sum()), "rounds": 0}
        if trains_first:
            order = training_order(rows, epochs=sft.epochs, batch_size=sft.batch_size, seed=recipe.seed)
            spent["phase_1"] = learns * int(length_N[order].sum())
        for turn, active in enumerate(actives, start=1):
            draws_N = pq.read_table(active.path / ACTIVE, columns=["draws"])["draws"].to_numpy() if active else 1
            chosen = np.repeat(np.arange(rows), draws_N)
            shared = {"epochs": joint.epochs, "batch_size": joint.batch_size, "seed": recipe.seed, "phase": turn}
            order = training_order(len(chosen), epoch_rows=rows if matched else None, **shared)
            spent["rounds"] += pair * int(length_N[chosen[order]].sum())
        worth = max(round(sum(spent.values()) / (learns * float(length_N.mean()))), 1)
        found = {"rows": worth, "steps": max(worth // sft.batch_size, 1), "forward_tokens": spent}
        write_json(out / BUDGET, found)
        return found

    settings = {
        "sft": [trains_first and sft.epochs, sft.batch_size],
        "joint": [joint.epochs, joint.batch_size, pair],
        "costs": {"backward": backward, "scans": scans},
        "match_steps": matched,
        "seed": recipe.seed,
    }
    inputs = keys(data=data, **{f"active_{turn}": active for turn, active in enumerate(actives, start=1)})
    return stages.run.stage(name, compute, settings=settings, inputs=inputs)
