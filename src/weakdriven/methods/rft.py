"""RFT (Yuan et al., 2023): trains M1 further on the data and on its own completions that a verifier accepts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from weakdriven.data.funnel import Funnel
from weakdriven.data.tokenize import SCHEMA, tokenize
from weakdriven.methods.dpo_spin.stage import examples_of
from weakdriven.methods.rollouts.preference_pairs import refuse_none, with_rollouts
from weakdriven.methods.rollouts.stage import read_rollouts, rollout_stage
from weakdriven.methods.wmss import first_strong
from weakdriven.runs.directory import FUNNEL, TOKENS
from weakdriven.runs.files import batches, write_json
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model import Model
from weakdriven.stages.model_stage import TrainingSet, supervised_stage

REPEATED = "repeats the data or an earlier sample"
ADVICE = (
    "rft needs right samples that are not in the data yet: draw more samples or raise the temperature "
    "(rft.rollouts), or use problems that the model sometimes solves."
)
BATCH = 1000
"""Rows in memory at a time."""


def rft(context: Context, data: Stage) -> Model:
    """Train M1 on the data and on its own completions, verified and without repeats."""
    start = first_strong(context, data)
    rollouts = rollout_stage(context, "rft", start, data, context.recipe.rft.rollouts)
    return train_verified(context, "rft", start, verified_stage(context, "rft", data, rollouts))


def train_verified(context: Context, name: str, start: Model, rows: Stage) -> Model:
    """Train as `sft_restart`, but in one phase: the settings of `joint`, all its epochs and a new optimizer."""
    joint = context.recipe.joint
    settings, epochs = joint.model_copy(update={"enabled": False}), joint.rounds * joint.epochs
    examples = TrainingSet(rows, verified=True)
    return supervised_stage(context, f"baselines/{name}", start, examples, settings, epochs=epochs, round_number=1)


def verified_stage(context: Context, name: str, data: Stage, rollouts: Stage) -> Stage:
    """Write the tokens of the data and of the kept rollouts, and a funnel; raise an error if no rollout is kept."""

    def compute(work: Path, out: Path) -> dict[str, Any]:
        funnel, counted, solved = Funnel(), Counter[str](), set[str]()
        with pa.OSFile(str(out / TOKENS), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
            for batch in pa.ipc.open_stream(pa.memory_map(str(data.path / TOKENS))):
                writer.write_batch(batch)
                counted.update(data=batch.num_rows)
            for rows in batches(own_rows(context, data, rollouts, funnel), BATCH):
                writer.write_batch(pa.RecordBatch.from_pylist([row for _, row in rows], SCHEMA))
                counted.update(verified_tokens=sum(len(row["input_ids"]) for _, row in rows))
                solved.update(id for id, _ in rows)
        refuse_none(funnel, ADVICE, "samples")
        write_json(out / FUNNEL, funnel.to_json())
        found = {
            "rows": counted["data"] + funnel.kept,
            **counted,
            "verified": funnel.kept,
            "prompts_solved": len(solved),
        }
        return found | {"samples": funnel.seen, "repeated": funnel.dropped.get(REPEATED, 0)}

    settings = {"max_length": context.recipe.data.max_length}
    return context.run.stage(
        f"verified/{name}", compute, settings=settings, inputs={"data": data, "rollouts": rollouts}
    )


def own_rows(context: Context, data: Stage, rollouts: Stage, funnel: Funnel) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the example's id and the tokens of each right rollout whose text is new."""
    for example, tried in with_rollouts(examples_of(data), read_rollouts(rollouts)):
        seen = {example.completion.strip()}
        for one in tried:
            text = one.row["text"]
            if one.fault is not None:
                funnel.drop(one.fault.reason, example.id, one.fault.detail)
                continue
            if text.strip() in seen:
                funnel.drop(REPEATED, example.id, f"sample {one.row['sample']}")
                continue
            seen.add(text.strip())
            own = replace(example, id=f"{example.id}#own{one.row['sample']}", completion=text, all_turns=False)
            row = tokenize(own, context.renderer, context.recipe.data.max_length)
            if row["truncated"]:  # tokenised again, it may be longer than when sampled
                funnel.drop("longer than data.max_length", example.id, f"sample {one.row['sample']}")
                continue
            funnel.keep()
            yield example.id, {name: row[name] for name in SCHEMA.names}
