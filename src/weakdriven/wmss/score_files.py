"""Score files: a model's scores of each example, written in parts that survive a kill and merged into one file.

The metadata of a score file says what it was computed from (`ScoreFacts`), so that another run can reuse it.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weakdriven.errors import UserError
from weakdriven.runs.directory import SCORES
from weakdriven.runs.files import PART, file_digest, sync

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("tokens", pa.int32()),
        ("entropy", pa.float64()),
        ("nll", pa.float64()),
        ("target_probability", pa.float64()),
        ("truncated", pa.bool_()),
    ]
)
"""Per example: supervised tokens; means over them of entropy (nats), -log P(true token) and P(true token)."""
PART_SCHEMA = pa.schema([("row", pa.int64()), *SCHEMA])
"""Adds the row number of each example in the dataset."""
HITS_SCHEMA = pa.schema([*PART_SCHEMA, ("hits", pa.int32())])
"""Adds the number of supervised tokens to which the model gave the highest probability."""
MEANS = ("entropy", "nll", "target_probability")
METADATA = b"weakdriven.scores"
VERSION = 2
"""Version of what a scan computes and stores; raised when older scores must not be reused."""
FLUSH_SECONDS = 30.0
"""A kill loses at most this much work and the batches in progress."""

HASHED = 16
"""Digits of its hash in a part's name."""


@dataclass(frozen=True)
class ScoreFacts:
    """What determines scores: two files with equal facts hold equal numbers, up to rounding."""

    model: str
    """Fingerprint of the weights."""
    rows: str
    """Fingerprint of the tokenised data."""
    tokenizer: str
    """Fingerprint of the tokenizer and its chat template."""
    max_length: int
    precision: str
    """Precision of the forward pass: bf16, fp32 or 4bit."""
    version: int = VERSION


class PartWriter:
    """Writes one process's batches as small Parquet files: at intervals, and at the end even if the scan fails."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.waiting: list[pa.RecordBatch] = []
        self.flushed = time.monotonic()
        self.written: list[str] = []

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def add(self, batch: pa.RecordBatch) -> None:
        self.waiting.append(batch)
        if time.monotonic() - self.flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write a part atomically, under the number of its first row, which is in no other part, and its hash."""
        if self.waiting:
            table = pa.Table.from_batches(self.waiting, PART_SCHEMA)
            name = f"rows-{table['row'][0].as_py():010d}"
            part = self.folder / f"{name}.parquet{PART}"
            pq.write_table(table, part)
            sync(part)
            path = self.folder / f"{name}-{file_digest(part)[:HASHED]}.parquet"
            os.replace(part, path)
            self.written.append(path.name)
        self.waiting, self.flushed = [], time.monotonic()


def wait_for(folder: Path, names: list[str], seconds: float = 60.0) -> None:
    """Wait until this process sees the files of other processes; a network file system may show them late."""
    end = time.monotonic() + seconds
    while not all((folder / name).exists() for name in names) and time.monotonic() < end:
        time.sleep(0.2)


def read_parts(folder: Path) -> pa.Table:
    """Read all parts written so far; remove those whose hash does not match, so that their rows are scored again."""
    tables = []
    for path in sorted(folder.glob("rows-*.parquet")):
        try:
            if not path.stem.endswith(file_digest(path)[:HASHED]):
                raise OSError(f"{path} has changed since it was written")
            tables.append(pq.read_table(path, schema=PART_SCHEMA))
        except (OSError, pa.ArrowException):
            path.unlink()
    return pa.concat_tables(tables) if tables else PART_SCHEMA.empty_table()


def merge_parts(folder: Path, ids: pa.ChunkedArray) -> pa.Table:
    """Merge all parts in the order of the data; a missing, double or foreign score raises an error."""
    parts = read_parts(folder)
    row_N = parts["row"].to_numpy()
    count_N = np.bincount(row_N, minlength=len(ids))
    if len(wrong := np.flatnonzero(count_N[: len(ids)] != 1)):
        raise UserError(
            f"{folder}: {len(wrong)} of {len(ids)} examples were not scored exactly once (first: row {wrong[0]}, "
            f"{count_N[wrong[0]]} times); remove that folder and run again."
        )
    table = parts.take(np.argsort(row_N)).select(SCHEMA.names)
    if not table["id"].equals(ids):
        raise UserError(f"{folder}: the parts hold scores of other data; remove that folder and run again.")
    return table


def write_scores(path: Path, table: pa.Table, facts: ScoreFacts) -> None:
    pq.write_table(table.replace_schema_metadata({METADATA: json.dumps(asdict(facts)).encode()}), path)


def read_scores(path: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(path, columns=columns or SCHEMA.names)
    except (OSError, pa.ArrowException) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read as a score file ({why}); remove its folder and score again.") from error


def read_entropies(path: Path, ids: pa.ChunkedArray) -> np.ndarray:
    """Read the mean entropy of each example, in the order of the data."""
    table = read_scores(path, ["id", "entropy"])
    if not table["id"].equals(ids):
        raise UserError(f"{path} holds scores of other data; remove its folder and run again.")
    return table["entropy"].to_numpy()


def read_facts(path: Path) -> ScoreFacts:
    """Read the facts of a score file that a recipe names; any other file raises an error."""
    try:
        facts = json.loads(pq.read_schema(path).metadata[METADATA])
        if facts.get("version") == VERSION:
            return ScoreFacts(**facts)
        found = f"of version {facts.get('version', 1)}, but this package uses version {VERSION}"
    except (OSError, pa.ArrowException, KeyError, TypeError, AttributeError, ValueError):
        found = "not a score file of weakdriven"
    raise UserError(f"selection.reuse: {path} is {found}; remove it from selection.reuse.")


def score_files(places: list[str]) -> Iterator[tuple[Path, ScoreFacts]]:
    """Yield the score files that a recipe names: as files, folders with one, or run directories."""
    for place in places:
        path = Path(place).expanduser()
        found = [path] if path.is_file() else [*path.glob(SCORES), *sorted(path.glob(f"entropy/*/{SCORES}"))]
        if not found:
            raise UserError(
                f"selection.reuse: there are no score files in {place}; give a run directory or its {SCORES}."
            )
        for file in found:
            yield file, read_facts(file)


def refuse_other_tokens(places: list[str], *, tokenizer: str, max_length: int) -> None:
    """Raise an error for scores that were computed on other tokens, before anything runs."""
    for path, facts in score_files(places):
        if facts.tokenizer != tokenizer or facts.max_length != max_length:
            other = "another tokenizer or chat template"
            if facts.tokenizer == tokenizer:
                other = f"data.max_length={facts.max_length}, and this recipe has {max_length}"
            raise UserError(
                f"selection.reuse: {path} was computed with {other}; change that, or remove it from selection.reuse."
            )


def find_scores(places: list[str], facts: ScoreFacts) -> Path | None:
    """Return the score file with these facts, or None; scores of the same model on other rows raise an error."""
    others = []
    for path, found in score_files(places):
        if found == facts:
            return path
        if found.model == facts.model:
            others.append((path, found))
    if others:
        path, found = others[0]
        what = "rows" if found.rows != facts.rows else f"precision ({found.precision}, not {facts.precision})"
        raise UserError(
            f"selection.reuse: {path} holds scores of the same model with other {what}; use the same here, or "
            "remove it from selection.reuse."
        )
    return None
