"""The entropy of each example under one model, as a stage: reused from another run or scanned by all processes."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weakdriven.data.tokenize import column, load_tokens, row_lengths
from weakdriven.runs.directory import SCORES, TOKENS
from weakdriven.runs.files import digest, file_digest
from weakdriven.runs.processes import agree, gathered, is_main, share, size
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.model import Model
from weakdriven.stages.workload import Workload
from weakdriven.wmss.score_files import (
    MEANS,
    VERSION,
    PartWriter,
    ScoreFacts,
    find_scores,
    merge_parts,
    read_parts,
    read_scores,
    wait_for,
    write_scores,
)

if TYPE_CHECKING:
    from datasets import Dataset


def entropy_stage(context: Context, model: Model, data: Stage, examples: int | None = None) -> Stage:
    """Compute the entropy under `model` of all examples, or of `examples` examples drawn at random."""
    recipe, settings = context.recipe, context.recipe.selection
    sample: dict[str, Any] = {"examples": examples, "seed": recipe.seed} if examples else {}
    name = f"{'pairing' if examples else 'entropy'}/{model.name}"
    if trained := not examples and context.scored_in_training(model.name):
        sample = {"scores": "training"}

    def compute(work: Path, out: Path) -> dict[str, Any]:
        dataset = load_tokens(data.path / TOKENS)
        if examples and examples < len(dataset):
            draw = np.random.default_rng(recipe.seed).permutation(len(dataset))
            dataset = dataset.select(np.sort(draw[:examples]))
        known = found = None
        if is_main():  # one process reads the weights for their fingerprint
            known = score_facts(context, model, data, sample)
            found = find_scores([] if sample else settings.reuse, known)  # these files hold scans of all rows
        if found := agree(found):
            if known:
                shutil.copyfile(found, out / SCORES)
            return {**describe(read_scores(found)), "reused_from": str(found)}
        parts = work / "parts"
        if trained and is_main() and not any(parts.glob("*")):
            with PartWriter(parts) as writer:
                for batch in pq.read_table(model.folder / SCORES).to_batches():
                    writer.add(batch)
        return scan_examples(context, model, dataset, work, out, known)  # those that training left out

    return context.run.stage(
        name,
        compute,
        settings={"precision": context.forward_precision, "version": VERSION, **sample},
        inputs={"model": model, "data": data},
        execution=lambda: {
            "batch_tokens": settings.batch_tokens,
            "reuse": settings.reuse,
            "fast_layers": context.layers,
            "attention": recipe.attention,
        },
        shared=True,
        workload=Workload(name) if trained else Workload(name, "scan"),
    )


def score_facts(context: Context, model: Model, data: Stage, sample: dict[str, Any]) -> ScoreFacts:
    """Return what the scores are computed from, so that another run can reuse them."""
    from weakdriven.models.adapters import ADAPTER_FILE
    from weakdriven.models.load import fingerprint

    own = fingerprint(model.folder)
    return ScoreFacts(
        model=digest([own, context.base.key]) if (model.folder / ADAPTER_FILE).is_file() else own,
        rows=digest([file_digest(data.path / TOKENS), sample]),
        tokenizer=context.tokenizer_key,
        max_length=context.recipe.data.max_length,
        precision=context.forward_precision,
    )


def scan_examples(
    context: Context, model: Model, dataset: "Dataset", work: Path, out: Path, facts: ScoreFacts | None
) -> dict[str, Any]:
    """Scan the examples without scores; the main process, which has `facts`, merges and writes all scores."""
    from weakdriven.wmss.entropy import plan_batches, scan

    parts, ids, lengths_N = work / "parts", column(dataset, "id"), row_lengths(dataset)
    done_N = np.zeros(len(ids), bool)
    if facts:
        done_N[read_parts(parts)["row"].to_numpy()] = True
    done_N = agree(done_N)
    batches = plan_batches(lengths_N, context.recipe.selection.batch_tokens)
    mine = share(batches)
    left = [rows for batch in mine if len(rows := batch[~done_N[batch]])]
    total = sum(map(len, mine))
    finished = total - sum(map(len, left))
    with PartWriter(parts) as writer:
        for scores in scan(context.loader.load(model, train=False, scan=True), dataset, left) if left else ():
            writer.add(scores)
            finished += len(scores)
            context.progress.update(finished * size(), total * size())  # assumes equal speed
    written = gathered(writer.written)
    if facts is None:
        return {}
    wait_for(parts, written)
    table = merge_parts(parts, ids)
    write_scores(out / SCORES, table, facts)
    padded = sum(int(lengths_N[rows[0]]) * len(rows) for rows in batches)
    return {
        **describe(table),
        "tokens_read": int(lengths_N.sum()),
        "padding": 1 - int(lengths_N.sum()) / padded,
        "batches": len(batches),
        "processes": size(),
    }


def describe(table: pa.Table) -> dict[str, Any]:
    """Return totals and means over examples."""
    means = {name: float(np.nanmean(table[name].to_numpy())) for name in MEANS}
    sums = {name: int(table[name].to_numpy().sum()) for name in ("tokens", "truncated")}
    return {"examples": len(table), **sums, **means}
