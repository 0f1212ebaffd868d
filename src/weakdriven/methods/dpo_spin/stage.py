"""DPO and SPIN in a run: completions of the start model, pairs of them, and training on the pairs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from datasets import concatenate_datasets

from weakdriven.config.baselines import PreferenceSettings
from weakdriven.data.example import Example
from weakdriven.data.funnel import Funnel
from weakdriven.data.tokenize import load_tokens
from weakdriven.methods.dpo_spin.trainer import COLUMNS, SIDES, train_preference
from weakdriven.methods.rollouts.preference_pairs import (
    Asked,
    Pair,
    Tally,
    dpo_pairs,
    pair_rows,
    spin_pairs,
    with_rollouts,
)
from weakdriven.methods.rollouts.stage import read_rollouts, rollout_stage
from weakdriven.methods.wmss import first_strong
from weakdriven.runs.directory import EXAMPLES, FUNNEL, Stage
from weakdriven.runs.files import append_jsonl, read_jsonl, write_json
from weakdriven.stages.stages import Model, Stages, keys
from weakdriven.training.phase import Phase
from weakdriven.training.snapshots import publish_snapshots

PAIRS, PAIR_TOKENS = "pairs.jsonl", "pairs.arrow"
SCHEMA = pa.schema(
    [("id", pa.string()), *((name, pa.list_(pa.int32())) for name in COLUMNS), ("truncated", pa.bool_())]
)
BATCH = 1000
"""Pairs in memory at a time."""
MakePairs = Callable[[Iterable[Asked], Tally], Iterator[Pair]]
T = TypeVar("T")


def dpo(stages: Stages, data: Stage) -> Model:
    """M1's own completions, verified: the first right one of a prompt is preferred to the first wrong one."""
    settings, start = stages.recipe.dpo, first_strong(stages, data)
    rollouts = rollout_stage(stages, "dpo", start, data, settings.rollouts)
    pairs = pair_stage(stages, "dpo", data, rollouts, dpo_pairs)
    return preference(stages, "dpo", start, [pairs], settings, turn=1)


def spin(stages: Stages, data: Stage) -> Model:
    """Iterations from M1: the data's completion is preferred to that of the model as the iteration found it."""
    settings, model = stages.recipe.spin, first_strong(stages, data)
    ends = stages.renderer.tokenizer.convert_ids_to_tokens(stages.renderer.stop_ids)
    make, made = partial(spin_pairs, end_tokens=list(ends)), list[Stage]()
    for turn in range(1, settings.iterations + 1):
        name = "spin" if turn == 1 else f"spin-{turn}"  # so that one more iteration keeps those before it
        rollouts = rollout_stage(stages, name, model, data, settings.rollouts, verified=False, turn=turn - 1)
        made.append(pair_stage(stages, name, data, rollouts, make))
        used = made[-2:] if settings.mix_previous else made[-1:]
        model = preference(stages, name, model, used, settings, turn=turn)
    return model


def pair_stage(stages: Stages, name: str, data: Stage, rollouts: Stage, make: MakePairs) -> Stage:
    """Rollouts -> pairs.jsonl, their tokens, and a funnel of what became of every prompt; no pair is an error."""

    def compute(work: Path, out: Path) -> dict[str, Any]:
        tally, fitting, counted = Tally(), Funnel(), Counter[str]()
        pairs = make(with_rollouts(examples_of(data), read_rollouts(rollouts)), tally)
        rows = pair_rows(pairs, stages.renderer, fitting, max_length=stages.recipe.data.max_length)
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

    inputs = keys(data=data, rollouts=rollouts)
    return stages.run.stage(f"pairs/{name}", compute, settings={"method": name.partition("-")[0]}, inputs=inputs)


def preference(
    stages: Stages, name: str, start: Model, pairs: list[Stage], settings: PreferenceSettings, *, turn: int
) -> Model:
    """Training of `start` on pairs, held to what it is now.

    Args:
        pairs: Those of the last iteration before its own, where both are trained on.
    """
    stage = f"baselines/{name}"

    def compute(work: Path, out: Path) -> dict[str, Any]:
        model, tokenizer = stages.loader.load(start), stages.renderer.tokenizer
        phase = Phase(stage, turn, settings.epochs, work, stages.run.progress, keep=partial(stages.save, model))
        rows = concatenate_datasets([load_tokens(part.path / PAIR_TOKENS) for part in pairs])
        counters = train_preference(model, tokenizer, rows, settings, stages.recipe, phase, beta=settings.beta)
        stages.save(model, out, work)
        publish_snapshots(work, out, settings.snapshots)
        return counters

    inputs = keys(start=start, pairs=pairs[-1], previous_pairs=pairs[0] if len(pairs) > 1 else None)
    return stages.model_stage(stage, compute, settings, inputs=inputs, also={"beta": settings.beta})


def examples_of(stage: Stage) -> Iterator[Example]:
    return map(Example.from_row, read_jsonl(stage.path / EXAMPLES))


def batches(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """
    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rows = iter(rows)
    while batch := list(islice(rows, size)):
        yield batch
