"""Two stages: tokenised validation rows, and one model's loss on each of them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weakdriven.data.example import Example
from weakdriven.data.rows.files import data_key
from weakdriven.data.rows.mixture import Mixture
from weakdriven.data.rows.sources import Source, open_source
from weakdriven.data.tokenize import load_tokens, row_lengths, write_tokens
from weakdriven.data.validation import is_taken, refuse_rows_in_both
from weakdriven.errors import UserError
from weakdriven.eval.validation import summarise
from weakdriven.runs.directory import EXAMPLES, LOSSES, TOKENS, VALIDATION
from weakdriven.runs.files import append_jsonl, digest, read_jsonl
from weakdriven.runs.processes import gathered, is_main, share, size
from weakdriven.runs.stage import Stage
from weakdriven.stages.context import Context
from weakdriven.stages.data import data_stage, decisive_settings, rows_keys, training_rows_of
from weakdriven.stages.model import Model
from weakdriven.stages.workload import Workload
from weakdriven.wmss.score_files import HITS_SCHEMA

VERSION = 1
"""Version of the computed loss; raised when older results must not be used."""


def validation_rows(context: Context) -> Stage:
    """Tokenise the validation rows; raise an error if there are none or some are in the training data."""
    settings, data = context.recipe.data, data_stage(context)
    taken = settings.validation_share

    def compute(work: Path, out: Path) -> dict[str, Any]:
        source = validation_source(context)

        def rows() -> Iterator[Example]:
            return (example for example in source if taken is None or is_taken(example, taken))

        try:
            counters = write_tokens(
                rows(),
                context.renderer,
                out / TOKENS,
                max_length=settings.max_length,
                long_prompts=settings.long_prompts,
                on_kept=lambda kept: append_jsonl(out / EXAMPLES, (example.as_row() for example in kept)),
            )
        except UserError as error:
            raise UserError(f"Validation rows: {error}") from error
        if taken is None:
            training = (Example(**row) for row in read_jsonl(data.path / EXAMPLES))
            refuse_rows_in_both(rows(), training, source.path)
        return {**counters, "layout": ", ".join(dict.fromkeys(source.layouts))}

    def decisive() -> dict[str, Any]:
        found = decisive_settings(settings)
        others = {"limit", "mixture"}
        return found if settings.validation is None else {key: found[key] for key in found if key not in others}

    own = {"rows": partial(data_key, settings.validation, settings.validation_split)} if settings.validation else None
    inputs = {
        **(own or rows_keys(settings)),
        "tokenizer": lambda: digest([context.base.key, context.renderer.tokenizer.chat_template]),
        "data": data,
    }
    source = settings.model_dump(mode="json", include={"validation", "validation_split"})
    workload = Workload(VALIDATION, "data")
    return context.run.stage(VALIDATION, compute, settings=decisive, inputs=inputs, execution=source, workload=workload)


def validation_source(context: Context) -> Source | Mixture:
    settings = context.recipe.data
    if settings.validation is None:
        return training_rows_of(settings)
    options = settings.model_dump(include={"domain", "empty_completions", "fields"})
    return open_source(settings.validation, settings.validation_split, **options)


def validation_stage(context: Context, model: Model) -> Stage:
    """Compute the loss and token accuracy of `model` on each validation row."""
    rows, name, budget = validation_rows(context), f"validation/{model.name}", context.recipe.selection.batch_tokens

    def compute(work: Path, out: Path) -> dict[str, Any]:
        from weakdriven.wmss.entropy import plan_batches, scan

        dataset = load_tokens(rows.path / TOKENS)
        mine = share(plan_batches(row_lengths(dataset), budget))
        parts, done, total = list[pa.RecordBatch](), 0, sum(map(len, mine))
        network = context.loader.load(model, train=False, scan=True) if mine else None
        for part in scan(network, dataset, mine, hits=True) if network else ():
            parts.append(part)
            done += len(part)
            context.progress.update(done * size(), total * size())
        table = pa.Table.from_batches(gathered(parts), HITS_SCHEMA).sort_by("row")
        if not is_main():
            return {}
        tokens_P, hits_P = (table[key].to_numpy().astype(np.float64) for key in ("tokens", "hits"))
        loss_P = table["nll"].to_numpy() * tokens_P
        columns = {"id": table["id"], "tokens": table["tokens"], "loss": loss_P, "hits": table["hits"]}
        pq.write_table(pa.table(columns), out / LOSSES)
        return summarise(tokens_P, loss_P[None], hits_P[None])

    return context.run.stage(
        name,
        compute,
        settings={"precision": context.forward_precision, "version": VERSION},
        inputs={"model": model, "data": rows},
        execution=lambda: {
            "batch_tokens": budget,
            "fast_layers": context.layers,
            "attention": context.recipe.attention,
        },
        shared=True,
        workload=Workload(name, "scan"),
    )
