"""DPO and SPIN in a run: completions of the start model, pairs of them, and training on the pairs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from weakdriven.data.example import Example
from weakdriven.data.tokenize import load_tokens
from weakdriven.pipeline.pairs import Paired, dpo_pairs, pair_rows, spin_pairs
from weakdriven.pipeline.rollout_stage import read_rollouts, rollout_stage
from weakdriven.pipeline.rollouts import Rollout
from weakdriven.pipeline.stages import Model, Stages, keys
from weakdriven.pipeline.wmss import first_strong
from weakdriven.recipe_baselines import PreferenceSettings
from weakdriven.rundir import EXAMPLES, FUNNEL, Stage, read_jsonl, write_json, write_jsonl
from weakdriven.training.preference import COLUMNS, train_preference
from weakdriven.training.supervised import Phase

PAIRS, PAIR_TOKENS = "pairs.jsonl", "pairs.arrow"
SCHEMA = pa.schema(
    [("id", pa.string()), *((name, pa.list_(pa.int32())) for name in COLUMNS), ("truncated", pa.bool_())]
)
MakePairs = Callable[[Mapping[str, Example], list[Rollout]], Paired]


def dpo(stages: Stages, data: Stage) -> Model:
    """M1's own completions, verified: the first right one of a prompt is preferred to the first wrong one."""
    settings, start = stages.recipe.dpo, first_strong(stages, data)
    rollouts = rollout_stage(stages, "dpo", start, data, settings.rollouts)
    pairs = pair_stage(stages, "dpo", data, rollouts, lambda examples, found: dpo_pairs(found))
    return preference(stages, "dpo", start, pairs, settings, turn=1)


def spin(stages: Stages, data: Stage) -> Model:
    """Iterations from M1: the data's completion is preferred to that of the model as the iteration found it."""
    settings, model = stages.recipe.spin, first_strong(stages, data)
    ends = stages.renderer.tokenizer.convert_ids_to_tokens(stages.renderer.stop_ids)
    for turn in range(1, settings.iterations + 1):
        name = "spin" if turn == 1 else f"spin-{turn}"
        rollouts = rollout_stage(stages, name, model, data, settings.rollouts, verified=False, turn=turn - 1)
        pairs = pair_stage(
            stages, name, data, rollouts, lambda examples, found: spin_pairs(examples, found, list(ends))
        )
        model = preference(stages, name, model, pairs, settings, turn=turn)
    return model


def pair_stage(stages: Stages, name: str, data: Stage, rollouts: Stage, make: MakePairs) -> Stage:
    """Rollouts -> pairs.jsonl, their tokens, and a funnel of what became of every prompt; no pair is an error."""

    def compute(work: Path, out: Path) -> dict[str, Any]:
        found = list(read_rollouts(rollouts))
        asked = {rollout.row["id"] for rollout in found}
        rows = (row for row in read_jsonl(data.path / EXAMPLES) if row["id"] in asked)
        examples = {row["id"]: Example.from_row(row) for row in rows}
        paired = make(examples, found)
        tokens, fitting = pair_rows(paired.pairs, examples, stages.renderer, max_length=stages.recipe.data.max_length)
        write_jsonl(out / PAIRS, (pair.as_row() for pair in paired.pairs))
        write_json(out / FUNNEL, {**paired.funnel.then(fitting).to_json(), "rollouts": paired.counts})
        with pa.OSFile(str(out / PAIR_TOKENS), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
            for begin in range(0, len(tokens), 1000):
                writer.write_batch(pa.RecordBatch.from_pylist(tokens[begin : begin + 1000], SCHEMA))
        lengths = {f"{side}_tokens": sum(len(row[f"{side}_ids"]) for row in tokens) for side in ("chosen", "rejected")}
        cut = sum(row["truncated"] for row in tokens)
        return {"pairs": len(tokens), "prompts": len(examples), "truncated": cut, **lengths, **paired.counts}

    inputs = keys(data=data, rollouts=rollouts)
    return stages.run.stage(f"pairs/{name}", compute, settings={"method": name.partition("-")[0]}, inputs=inputs)


def preference(
    stages: Stages, name: str, start: Model, pairs: Stage, settings: PreferenceSettings, *, turn: int
) -> Model:
    """Training of `start` on pairs, held to what it is now."""
    stage = f"baselines/{name}"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        model, tokenizer = stages.loader.load(start), stages.renderer.tokenizer
        phase = Phase(stage, turn, settings.epochs, work, stages.run.progress)
        rows = load_tokens(pairs.path / PAIR_TOKENS)
        counters = train_preference(model, tokenizer, rows, settings, stages.recipe, phase, beta=settings.beta)
        stages._save(model, work, out)
        return counters

    inputs = keys(start=start, pairs=pairs)
    return stages._model_stage(stage, compute, settings, inputs=inputs, also={"beta": settings.beta})
