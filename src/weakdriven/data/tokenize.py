"""Example -> token ids and labels: the only place that decides which tokens are supervised."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

from weakdriven.data.prompts import Renderer
from weakdriven.data.sources import Example
from weakdriven.errors import UserError

IGNORE = -100
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("truncated", pa.bool_()),
    ]
)


def tokenize(example: Example, renderer: Renderer, max_length: int) -> dict[str, Any]:
    """Prompt and completion are tokenised apart, because generation starts from the prompt's tokens alone."""
    encode = renderer.tokenizer
    prompt = encode(renderer.prompt(example.prompt), add_special_tokens=False)["input_ids"]
    completion = encode(example.completion + renderer.end_of_turn, add_special_tokens=False)["input_ids"]
    labels = [IGNORE] * len(prompt) + completion
    return {
        "id": example.id,
        "input_ids": (prompt + completion)[:max_length],
        "labels": labels[:max_length],
        "truncated": len(labels) > max_length,
    }


def write_tokens(
    examples: Iterable[Example],
    renderer: Renderer,
    path: Path,
    *,
    max_length: int,
    long_prompts: str,
    on_row: Callable[[int], None] = lambda done: None,
) -> dict[str, int]:
    """Tokenise into an Arrow file that `datasets` maps without a copy; returns what was kept, cut and left out."""
    counters = {"examples": 0, "truncated": 0, "dropped_long_prompts": 0, "dropped_empty_completions": 0}
    counters |= {"tokens": 0, "supervised_tokens": 0}
    too_long: list[str] = []
    batch: list[dict[str, Any]] = []
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
        for done, example in enumerate(examples, start=1):
            if not example.completion.strip():
                counters["dropped_empty_completions"] += 1
                continue
            row = tokenize(example, renderer, max_length)
            supervised = sum(label != IGNORE for label in row["labels"])
            if not supervised:
                too_long.append(example.id)
                continue
            counters["examples"] += 1
            counters["truncated"] += row["truncated"]
            counters["tokens"] += len(row["input_ids"])
            counters["supervised_tokens"] += supervised
            batch.append(row)
            if len(batch) == 1000:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, SCHEMA))
                batch = []
            on_row(done)
        if batch:
            writer.write_batch(pa.RecordBatch.from_pylist(batch, SCHEMA))
    counters["dropped_long_prompts"] = len(too_long)
    if too_long and long_prompts == "error":
        raise UserError(
            f"{len(too_long)} rows have prompts of data.max_length={max_length} tokens or more (first: id "
            f"{too_long[0]!r}), so nothing to learn; raise data.max_length, or leave them out with "
            "data.long_prompts=drop."
        )
    if not counters["examples"]:
        empty = counters["dropped_empty_completions"]
        raise UserError(
            f"Nothing is left to learn from: {len(too_long)} prompts are longer than data.max_length={max_length} "
            f"tokens and {empty} completions are empty; raise it, or use other rows."
        )
    return counters


def load_tokens(path: Path) -> Dataset:
    return Dataset.from_file(str(path))
