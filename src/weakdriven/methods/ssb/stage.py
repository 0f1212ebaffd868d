"""SSB in a run: attempts, hints made of a right and a wrong one, verified replies, and a student without hints."""

import gc
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from weakdriven.build.distil import rendered
from weakdriven.config.baselines import RolloutSettings
from weakdriven.data.funnel import Funnel
from weakdriven.data.tokenize import IGNORE, load_tokens
from weakdriven.errors import UserError
from weakdriven.methods.dpo_spin.stage import PAIRS, examples_of
from weakdriven.methods.rollouts.preference_pairs import (
    Tally,
    hinted_prompts,
    mixed_pairs,
    most_frequent,
    refuse_none,
    with_rollouts,
)
from weakdriven.methods.rollouts.stage import read_rollouts, rollout_stage
from weakdriven.methods.wmss import first_strong
from weakdriven.runs.directory import EXAMPLES, FUNNEL, SNAPSHOTS
from weakdriven.runs.files import append_jsonl, batches, read_json, write_json
from weakdriven.runs.manifest import MANIFEST
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model import Model
from weakdriven.stages.model_stage import model_stage
from weakdriven.stages.workload import Workload
from weakdriven.training.snapshots import publish_snapshots, snapshot_folders

TARGETS = "targets.arrow"
BLOCK = 256
"""Replies whose logits are written together; a killed stage resumes after the last complete block."""
REPLY_ADVICE = (
    "A reply is kept if it is right and short enough for the student: change the teacher's settings, use a model that "
    "follows instructions, or raise data.max_length."
)
Row = dict[str, Any]


def ssb(context: Context, data: Stage) -> Model:
    """Sample attempts, then replies of the same model with hints; train a student without hints on their logits."""
    settings = context.recipe.ssb
    start = context.base if settings.start == "base" else first_strong(context, data)
    limit = hint_limit(context)
    attempts = rollout_stage(context, "ssb", start, data, settings.rollouts)
    hints = hint_stage(context, data, attempts, limit)
    asked = RolloutSettings(samples=1, **settings.teacher.model_dump(exclude={"max_prompt_tokens"}))
    options: dict[str, Any] = {"round_number": 1, "at_most": settings.rollouts.subsample}
    replies = rollout_stage(context, "ssb-hinted", start, hints, asked, max_prompt_tokens=limit, **options)
    return student(context, start, target_stage(context, start, data, hints, replies))


def hint_limit(context: Context) -> int:
    """Return the maximum tokens of a hinted prompt, so that the model has positions left for a reply."""
    recipe, teacher = context.recipe, context.recipe.ssb.teacher
    room = context.positions
    if room is None:
        return teacher.max_prompt_tokens
    reply = teacher.max_new_tokens or recipe.data.max_length
    if room <= reply:
        raise UserError(
            f"ssb: the model has {room} positions, and a reply may take {reply} of them, which leaves none for the "
            "hinted prompt; lower ssb.teacher.max_new_tokens or data.max_length."
        )
    return min(teacher.max_prompt_tokens, room - reply)


def hint_stage(context: Context, data: Stage, attempts: Stage, limit: int) -> Stage:
    """Write the teacher's problems, with a right and a wrong attempt in the question."""
    template = context.recipe.ssb.hint

    def compute(work: Path, out: Path) -> dict[str, Any]:
        tally, fitting = Tally(), Funnel()
        asked = with_rollouts(examples_of(data), read_rollouts(attempts))
        options: dict[str, Any] = {"domain": context.recipe.data.domain, "template": template}
        pairs = mixed_pairs(asked, tally, most_frequent)
        hints = hinted_prompts(pairs, context.renderer, fitting, max_prompt_tokens=limit, **options)
        for batch in batches(hints, BLOCK):
            append_jsonl(out / EXAMPLES, (example.as_row() for _, example in batch))
            append_jsonl(out / PAIRS, (pair.as_row() for pair, _ in batch))
        write_json(out / FUNNEL, {**tally.funnel.then(fitting).to_json(), "rollouts": tally.rollouts})
        counted = {"mixed": tally.funnel.kept, "hints": fitting.kept, "too_long": sum(fitting.dropped.values())}
        return {"prompts": tally.prompts, **counted, **tally.rollouts}

    settings = {"max_prompt_tokens": limit} | ({"hint": template} if template else {})
    return context.run.stage("hints/ssb", compute, settings=settings, inputs={"data": data, "attempts": attempts})


def target_stage(context: Context, start: Model, data: Stage, hints: Stage, replies: Stage) -> Stage:
    """Write the right replies after the plain prompt, each with the largest logits of the hinted model."""
    recipe, settings = context.recipe, context.recipe.ssb

    def compute(work: Path, out: Path) -> dict[str, Any]:
        from weakdriven.methods.ssb.targets import SCHEMA, with_logits, write_rows

        funnel, network, tokens = Funnel(), None, 0
        right = read_json(replies.path / MANIFEST)["counters"]["right"]
        for number, block in enumerate(batches(reply_rows(context, data, hints, replies, funnel), BLOCK)):
            part = work / f"{number:05d}.arrow"
            if not part.exists():
                network = network or context.loader.load(start, train=False, scan=True)
                written = pa.RecordBatch.from_pylist(with_logits(network, block, context), SCHEMA)
                write_rows(part.with_suffix(".part"), [written])
                part.with_suffix(".part").rename(part)
            tokens += sum(row["reply"] for row in block)
            context.progress.update(funnel.kept, right)
        del network
        gc.collect()
        write_json(out / FUNNEL, funnel.to_json())
        parts = (pa.ipc.open_stream(part.read_bytes()) for part in sorted(work.glob("*.arrow")))
        write_rows(out / TARGETS, chain.from_iterable(parts))
        whole = load_tokens(out / TARGETS).select_columns(["coverage", "coverage_at_temperature"])
        coverage = {name: float(np.mean(whole[name])) for name in whole.column_names}
        return {"replies": funnel.seen, "right": right, "kept": funnel.kept, "tokens": tokens, **coverage}

    return context.run.stage(
        "targets/ssb",
        compute,
        settings={**settings.model_dump(include={"top_k", "temperature"}), **context.inference_settings()},
        inputs={"model": start, "data": data, "hints": hints, "replies": replies},
        execution={"batch_tokens": recipe.selection.batch_tokens},
    )


def reply_rows(context: Context, data: Stage, hints: Stage, replies: Stage, funnel: Funnel) -> Iterator[Row]:
    """Yield the tokens of each right reply, after the plain and the hinted prompt; raise an error if there is none."""
    tokenizer, recipe = context.renderer.tokenizer, context.recipe
    asked, plain = with_rollouts(examples_of(hints), read_rollouts(replies)), examples_of(data)
    for hinted, [rollout] in asked:
        id, fault = hinted.id, rollout.fault
        if fault is not None:
            funnel.drop(fault.reason, id, fault.detail)
            continue
        example = next(one for one in plain if one.id == id)
        prompt, hint = (rendered(context.renderer, recipe.data.domain, one)[0] for one in (example, hinted))
        text = rollout.row["text"] + context.renderer.end_of_turn
        reply: Any = tokenizer(text, add_special_tokens=False)["input_ids"]
        if (length := len(prompt) + len(reply)) > recipe.data.max_length:
            funnel.drop("reply too long", id, f"{length} tokens of {recipe.data.max_length}")
            continue
        labels = [IGNORE] * len(prompt) + reply
        funnel.keep()
        yield {"id": id, "input_ids": prompt + reply, "labels": labels, "hinted": hint + reply, "reply": len(reply)}
    refuse_none(funnel, REPLY_ADVICE)


def student(context: Context, start: Model, targets: Stage) -> Model:
    """Train an adapter over the start model on the replies; merge it into the model unless `lora` is set."""
    recipe, settings, name = context.recipe, context.recipe.ssb, "baselines/ssb"
    adapted = recipe.model_copy(update={"lora": recipe.student_lora})

    def compute(work: Path, out: Path) -> dict[str, Any]:
        from weakdriven.methods.ssb.trainer import train_student
        from weakdriven.models.adapters import load_merged
        from weakdriven.stages.model_loader import Loader

        model = Loader(adapted, context.base if recipe.lora else start).load(start)
        keep = partial(context.save, model) if recipe.lora else partial(save_adapter, model)
        phase = context.phase(name, 1, settings.epochs, work, keep=keep)
        rows = load_tokens(targets.path / TARGETS)
        counters = train_student(model, context.renderer.tokenizer, rows, settings, adapted, phase)
        if recipe.lora:
            context.save(model, out, work)
            publish_snapshots(work, out, settings.snapshots)
            return counters
        options = {"precision": recipe.saved_precision, "trust_remote_code": recipe.trust_remote_code}
        save_adapter(model, work / "adapter")
        context.save(load_merged(work / "adapter", start.folder, **options), out, work)
        for place, folder in snapshot_folders(work, settings.snapshots).items():
            context.save(load_merged(folder, start.folder, **options), out / SNAPSHOTS / place)
        return counters

    losses = settings.model_dump(include={"kd_weight", "ce_weight", "temperature", "renormalize", "student_support"})
    also = {**losses, "lora": recipe.student_lora.model_dump(mode="json", exclude={"output", "quantize"})}
    workload = Workload(name, "train", settings, epochs=settings.epochs, start=start, adapter=settings.rank)
    inputs = {"start": start, "targets": targets}
    return model_stage(context, workload, compute, settings, inputs=inputs, also=also)


def save_adapter(model: Any, folder: Path) -> None:
    model.save_pretrained(str(folder), save_embedding_layers=False)
