"""DPO and SPIN in a run: completions of the start model, pairs made of them, and training on the pairs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from weakdriven.config.baselines import PreferenceSettings
from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.tokenize import load_tokens
from weakdriven.methods.rollouts.preference_pairs import (
    COLUMNS,
    SIDES,
    Asked,
    Pair,
    Tally,
    mixed_pairs,
    pair_rows,
    spin_pairs,
    with_rollouts,
)
from weakdriven.methods.rollouts.stage import read_rollouts, rollout_stage
from weakdriven.methods.wmss import first_strong
from weakdriven.runs.directory import EXAMPLES, FUNNEL
from weakdriven.runs.files import append_jsonl, batches, read_jsonl, write_json
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context, present
from weakdriven.stages.model import Model
from weakdriven.stages.model_stage import model_stage
from weakdriven.stages.workload import Workload
from weakdriven.training.snapshots import publish_snapshots

PAIRS, PAIR_TOKENS = "pairs.jsonl", "pairs.arrow"
SCHEMA = pa.schema({"id": pa.string(), **dict.fromkeys(COLUMNS, pa.list_(pa.int32())), "truncated": pa.bool_()})
BATCH = 1000
"""Pairs in memory at a time."""
MakePairs = Callable[[Iterable[Asked], Tally], Iterator[Pair]]


def dpo(context: Context, data: Stage) -> Model:
    """Train M1 on its own verified completions: each prompt's first right one is preferred to its first wrong one."""
    settings, start = context.recipe.dpo, first_strong(context, data)
    rollouts = rollout_stage(context, "dpo", start, data, settings.rollouts)
    pairs = pair_stage(context, "dpo", data, rollouts, mixed_pairs)
    return preference(context, "dpo", start, [pairs], settings, round_number=1)


def spin(context: Context, data: Stage) -> Model:
    """Train M1 in iterations: the data's completions are preferred to those that the current model samples."""
    settings, model = context.recipe.spin, first_strong(context, data)
    made = list[Stage]()
    for round_number in range(1, settings.iterations + 1):
        # the first iteration has no number, so that raising `iterations` keeps the earlier ones
        name = "spin" if round_number == 1 else f"spin-{round_number}"
        rollouts = rollout_stage(
            context, name, model, data, settings.rollouts, verified=False, round_number=round_number - 1
        )
        made.append(pair_stage(context, name, data, rollouts, partial(own_pairs, context)))
        used = made[-2:] if settings.mix_previous else made[-1:]
        model = preference(context, name, model, used, settings, round_number=round_number)
    return model


def own_pairs(context: Context, asked: Iterable[Asked], tally: Tally) -> Iterator[Pair]:
    ends = context.renderer.tokenizer.convert_ids_to_tokens(context.renderer.stop_ids)
    return spin_pairs(asked, tally, end_tokens=list(ends))


def pair_stage(context: Context, name: str, data: Stage, rollouts: Stage, make: MakePairs, **also: Stage) -> Stage:
    """Turn rollouts into pairs.jsonl, their tokens and a funnel of the prompts; raise an error if there is no pair.

    Args:
        also: Other stages that `make` reads.
    """

    def compute(work: Path, out: Path) -> dict[str, Any]:
        tally, fitting, counted = Tally(), Funnel(), Counter[str]()
        pairs = make(with_rollouts(examples_of(data), read_rollouts(rollouts)), tally)
        rows = pair_rows(pairs, context.renderer, fitting, max_length=context.recipe.data.max_length)
        with pa.OSFile(str(out / PAIR_TOKENS), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
            for batch in batches(rows, BATCH):
                append_jsonl(out / PAIRS, (pair.as_row() for pair, _ in batch))
                writer.write_batch(pa.RecordBatch.from_pylist([row for _, row in batch], SCHEMA))
                for _, row in batch:
                    tokens = {f"{side}_tokens": len(row[f"{side}_ids"]) for side in SIDES}
                    counted.update(pairs=1, truncated=int(row["truncated"]), **tokens)
        funnel = tally.funnel.then(fitting)
        write_json(out / FUNNEL, {**funnel.to_json(), "rollouts": tally.rollouts})
        dropped = sum(funnel.dropped.values())
        return {"prompts": tally.prompts, **counted, "dropped": dropped, **tally.rollouts}

    settings, inputs = {"method": name.partition("-")[0]}, {"data": data, "rollouts": rollouts, **also}
    return context.run.stage(f"pairs/{name}", compute, settings=settings, inputs=inputs)


def preference(
    context: Context, name: str, start: Model, pairs: list[Stage], settings: PreferenceSettings, *, round_number: int
) -> Model:
    """Train `start` on pairs, with itself as the reference; with `mix_previous`, on the pairs of two iterations."""
    stage = f"baselines/{name}"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        from datasets import concatenate_datasets

        from weakdriven.methods.dpo_spin.trainer import train_preference

        model, tokenizer = context.loader.load(start), context.renderer.tokenizer
        phase = context.phase(stage, round_number, settings.epochs, work, keep=partial(context.save, model))
        rows = concatenate_datasets([load_tokens(part.path / PAIR_TOKENS) for part in pairs])
        counters = train_preference(model, tokenizer, rows, settings, context.recipe, phase, **settings.loss())
        context.save(model, out, work)
        publish_snapshots(work, out, settings.snapshots)
        return counters

    inputs = present(start=start, pairs=pairs[-1], previous_pairs=pairs[0] if len(pairs) > 1 else None)
    workload = Workload(stage, "train", settings, epochs=settings.epochs, start=start, pairs=True)
    return model_stage(context, workload, compute, settings, inputs=inputs, also=settings.loss())


def examples_of(stage: Stage) -> Iterator[Example]:
    return (Example(**row) for row in read_jsonl(stage.path / EXAMPLES))
