"""Samples on disk: each requested (item, number) is written once before it is used."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weakdriven.eval.generate.requests import Completion, Engine, Request, Sampling, generate, request_seed
from weakdriven.runs.files import append_jsonl

Row = dict[str, Any]
"""id, sample, prompt, text, tokens, finish, perhaps reasoning; graders add their verdict."""
Key = tuple[str, int]


class Ask(NamedTuple):
    """One sample of one item."""

    id: str
    sample: int
    prompt: list[int] | list[dict[str, str]]
    shown: Any
    """The prompt as the row shows it."""


def by_key(rows: Sequence[Row]) -> dict[Key, Row]:
    return {(row["id"], row["sample"]): row for row in rows}


def collect(
    asks: Sequence[Ask],
    engine: Callable[[], Engine],
    sampling: Sampling,
    file: Path,
    *,
    seed: int,
    on_rows: Callable[[list[Row]], None],
) -> None:
    """Append a row for each ask to `file`, and pass it to `on_rows`; call `engine` only if there are asks."""

    def keep(completions: Mapping[int, Completion]) -> None:
        rows = []
        for place, completion in completions.items():
            ask = asks[place]
            rows.append({"id": ask.id, "sample": ask.sample, "prompt": ask.shown, **completion.row()})
        append_jsonl(file, rows, sealed=True)
        on_rows(rows)

    if asks:
        requests = [Request(ask.prompt, request_seed(seed, ask.id, ask.sample)) for ask in asks]
        generate(engine(), requests, sampling, keep)
