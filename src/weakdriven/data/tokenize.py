"""Convert examples to token ids and labels: the only place that decides which tokens are supervised.

A reply is supervised if it directly follows the text that the chat template renders before it, because the model sees
that text when it generates the reply. Earlier replies can be supervised in the same sequence unless the template
rewrites them, as Qwen3's does by dropping their thinking. Rewritten replies are not supervised, and are counted.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weakdriven.data.example import Example
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

IGNORE = -100
VERSION = 2
"""Raised when the same rows give other tokens, so that finished runs are redone."""
BATCH = 1000
BLOCK = 10_000
"""Rows in memory at once when only their lengths are needed."""
IDS = pa.list_(pa.int32())
SCHEMA = pa.schema({"id": pa.string(), "input_ids": IDS, "labels": IDS, "truncated": pa.bool_()})


def tokenize(example: Example, renderer: Renderer, max_length: int | None = None) -> dict[str, Any]:
    """Tokenize prompts and replies separately, because generation starts from the prompt's tokens alone."""
    input_ids, labels = [], []
    pieces, unlearned = split_turns(example, renderer)
    for text, supervised in pieces:
        ids = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        input_ids += ids
        labels += ids if supervised else [IGNORE] * len(ids)
    if not example.prompt and labels:
        labels[0] = IGNORE  # no token predicts it
    return {
        "id": example.id,
        "input_ids": input_ids[:max_length],
        "labels": labels[:max_length],
        "truncated": max_length is not None and len(labels) > max_length,
        "unlearned": unlearned,
    }


def split_turns(example: Example, renderer: Renderer) -> tuple[list[tuple[str, bool]], int]:
    """Split an example's text into (text, supervised) pieces, and count the replies that are not supervised.

    Prompts and replies alternate, and a reply includes its end of turn. Plain text is one piece between the tokens that
    begin and end a text.
    """
    if not example.prompt:
        return [(renderer.beginning, False), (example.completion + renderer.end_of_text, True)], 0
    last = _rendered(example, renderer, len(example.prompt))
    pieces: list[tuple[str, bool]] = []
    past = unlearned = 0
    for place, turn in enumerate(example.prompt):
        if not example.all_turns or turn["role"] != "assistant":
            continue
        written = _written(example, renderer, place, last)
        if written is None or written[0] < past:
            unlearned += 1
            continue
        start, end = written
        pieces += [(last[past:start], False), (last[start:end], True)]
        past = end
    return [*pieces, (last[past:], False), (example.completion + renderer.end_of_turn, True)], unlearned


def _written(example: Example, renderer: Renderer, place: int, last: str) -> tuple[int, int] | None:
    """Find where the last prompt contains the reply at this place; None if the template rewrote it."""
    if all(turn["role"] == "system" for turn in example.prompt[:place]):  # a greeting does not reply to anything
        return None
    before, reply = _rendered(example, renderer, place), example.prompt[place]["content"]
    for text in (reply, reply.strip()):  # templates may trim earlier replies, as Gemma's does
        if last.startswith(whole := before + text + renderer.end_of_turn):
            return len(before), len(whole)
    return None


def _rendered(example: Example, renderer: Renderer, turns: int) -> str:
    try:
        return renderer.prompt(example.prompt[:turns], example.domain)
    except UserError as error:
        raise UserError(f"Row {example.id!r}: {error}") from error


def tokenize_pair(
    example: Example, chosen: tuple[str, bool], rejected: tuple[str, bool], renderer: Renderer, max_length: int
) -> dict[str, Any]:
    """Tokenize two replies to the prompt of an example in the same way as `tokenize`.

    A reply is its text, and whether it has an end of turn, which a truncated reply lacks.
    """

    texts = [renderer.prompt(example.prompt, example.domain)]
    texts += [text + renderer.end_of_turn * ended for text, ended in (chosen, rejected)]
    prompt, *replies = (renderer.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
    room = max(max_length - len(prompt), 0)
    return {
        "id": example.id,
        "prompt_ids": prompt,
        "chosen_ids": replies[0][:room],
        "rejected_ids": replies[1][:room],
        "truncated": any(len(reply) > room for reply in replies),
    }


def write_tokens(
    examples: Iterable[Example],
    renderer: Renderer,
    path: Path,
    *,
    max_length: int,
    long_prompts: str,
    on_row: Callable[[int], None] = lambda done: None,
    on_kept: Callable[[list[Example]], None] = lambda kept: None,
) -> dict[str, int]:
    """Tokenize into an Arrow file that `datasets` maps without a copy; return counts of kept, cut and dropped rows.

    Args:
        on_kept: Called with batches of the examples in the file, in its order.
    """
    names = ("examples", "truncated", "dropped_long_prompts", "dropped_empty_completions")
    counters: dict[str, int] = dict.fromkeys((*names, "tokens", "supervised_tokens"), 0)
    first_too_long, unlearned = "", 0
    batch: list[tuple[Example, dict[str, Any]]] = []
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:

        def flush() -> None:
            writer.write_batch(pa.RecordBatch.from_pylist([row for _, row in batch], SCHEMA))
            on_kept([example for example, _ in batch])
            batch.clear()

        for done, example in enumerate(examples, start=1):
            if not example.completion.strip():
                counters["dropped_empty_completions"] += 1
                continue
            row = tokenize(example, renderer, max_length)
            supervised = sum(label != IGNORE for label in row["labels"])
            if not supervised:
                first_too_long = first_too_long or example.id
                counters["dropped_long_prompts"] += 1
                continue
            counters["examples"] += 1
            counters["truncated"] += row["truncated"]
            counters["tokens"] += len(row["input_ids"])
            counters["supervised_tokens"] += supervised
            unlearned += row["unlearned"]
            batch.append((example, row))
            if len(batch) == BATCH:
                flush()
            on_row(done)
        if batch:
            flush()
    too_long = counters["dropped_long_prompts"]
    if too_long and long_prompts == "error":
        raise UserError(
            f"{too_long} rows have prompts of data.max_length={max_length} tokens or more (first: id "
            f"{first_too_long!r}), which leave no room for a completion; raise data.max_length, or drop them with "
            "data.long_prompts=drop."
        )
    if not counters["examples"]:
        empty = counters["dropped_empty_completions"]
        raise UserError(
            f"Nothing is left to train on: {too_long} prompts are longer than data.max_length={max_length} "
            f"tokens and {empty} completions are empty; raise it, or use other rows."
        )
    return counters | ({"unlearned_replies": unlearned} if unlearned else {})


def unlearned_warning(counters: dict[str, int]) -> str:
    if not (count := counters.get("unlearned_replies", 0)):
        return ""
    return (
        f"{count} replies before the last of their conversation are not supervised: the chat template rewrites earlier "
        "replies, or no user turn precedes them."
    )


def load_tokens(path: Path) -> "Dataset":
    from datasets import Dataset

    return Dataset.from_file(str(path))


def row_lengths(dataset: "Dataset", name: str = "input_ids") -> np.ndarray:
    """Count the tokens of each row, block by block, since a whole column of a large set may not fit in memory."""
    arrow, found = dataset.select_columns(name).with_format("arrow"), [np.zeros(0, np.int32)]
    for begin in range(0, len(dataset), BLOCK):
        block: Any = arrow[begin : begin + BLOCK]
        found.append(pc.call_function("list_value_length", [block[name]]).to_numpy())
    return np.concatenate(found)


def column(dataset: "Dataset", name: str) -> pa.ChunkedArray:
    """Return an Arrow column, because a million lists of tokens would not fit in memory as Python lists."""
    return dataset.select_columns(name).with_format("arrow")[:][name]
