"""Scores of a dataset under one model: reused if they are known, else scanned by all processes together."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from transformers import PreTrainedModel

from weakdriven.data.tokenize import row_lengths
from weakdriven.errors import UserError
from weakdriven.runs.directory import SCORES, Progress
from weakdriven.wmss.entropy import column, plan_batches, scan
from weakdriven.wmss.score_files import (
    PartWriter,
    ScoreFacts,
    find_scores,
    merge_parts,
    read_parts,
    read_scores,
    wait_for,
    write_scores,
)


def score_examples(
    load: Callable[[], PreTrainedModel],
    dataset: Dataset,
    facts: Callable[[], ScoreFacts],
    *,
    reuse: list[str],
    batch_tokens: int,
    work: Path,
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Write the score file of one model into `out`; every process calls this, the first one merges.

    Args:
        facts: What the scores are computed from; asked of the first process only, because it reads the weights.
        work: Finished parts in here, of whichever processes, are used.
    """
    processes, ids = PartialState(), column(dataset, "id")
    known, found, done_N = None, None, np.zeros(len(ids), bool)
    parts = work / "parts"
    if processes.is_main_process:
        known = facts()
        found = find_scores(reuse, known)
        done_N[read_parts(parts)["row"].to_numpy()] = True
    if processes.num_processes > 1:
        found, done_N = broadcast_object_list([found, done_N])
    if found:
        if processes.is_main_process:
            shutil.copyfile(found, out / SCORES)
        return {**describe(_same_ids(read_scores(found), ids, found)), "reused_from": str(found)}
    lengths_N = row_lengths(dataset)
    batches = plan_batches(lengths_N, batch_tokens)
    mine = batches[processes.process_index :: processes.num_processes]
    left = [rows for batch in mine if len(rows := batch[~done_N[batch]])]
    total = sum(map(len, mine))
    finished = total - sum(map(len, left))
    with PartWriter(parts) as writer:
        for scores in scan(load(), dataset, left) if left else ():
            writer.add(scores)
            finished += len(scores)
            progress.update(finished * processes.num_processes, total * processes.num_processes)  # all go as fast
    written = gather_object(writer.written) if processes.num_processes > 1 else writer.written
    if known is None:
        return {}
    wait_for(parts, written)
    table = merge_parts(parts, ids)
    write_scores(out / SCORES, table, known)
    padded = sum(int(lengths_N[rows[0]]) * len(rows) for rows in batches)
    return {
        **describe(table),
        "tokens_read": int(lengths_N.sum()),
        "padding": 1 - int(lengths_N.sum()) / padded,
        "batches": len(batches),
        "processes": processes.num_processes,
    }


def describe(table: pa.Table) -> dict[str, Any]:
    """Totals and means over examples."""
    means = {name: float(np.nanmean(table[name].to_numpy())) for name in ("entropy", "nll", "target_probability")}
    sums = {name: int(table[name].to_numpy().sum()) for name in ("tokens", "truncated")}
    return {"examples": len(table), **sums, **means}


def _same_ids(table: pa.Table, ids: pa.ChunkedArray, path: Path) -> pa.Table:
    if not table["id"].equals(ids):
        raise UserError(f"selection.reuse: {path} is of other examples; remove it from selection.reuse.")
    return table
