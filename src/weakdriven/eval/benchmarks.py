"""BENCHMARKS: what each benchmark is, where its items come from, and how many there must be.

A local file `<name>.jsonl` (or `.jsonl.gz`) holds one object per line with `id`, `question` and `answer` (the final
answer as text); `level` is optional.
"""

from dataclasses import dataclass
from pathlib import Path

from weakdriven.data.sources import EMBEDDED, read_rows, refuse_broken_text
from weakdriven.demo.problems import TEST_ITEMS
from weakdriven.errors import UserError


@dataclass(frozen=True)
class Benchmark:
    rows: int
    max_new_tokens: int
    embedded: bool = False
    version: int = 1
    """Raised when prompt or grader change, so that scores of two versions are never averaged."""


BENCHMARKS = {
    "arithmetic": Benchmark(rows=TEST_ITEMS, max_new_tokens=96, embedded=True),
    "aime2025": Benchmark(rows=30, max_new_tokens=8192),
    "amc23": Benchmark(rows=40, max_new_tokens=8192),
    "gsm8k": Benchmark(rows=1319, max_new_tokens=4096),
    "math500": Benchmark(rows=500, max_new_tokens=4096),
    "mawps": Benchmark(rows=238, max_new_tokens=4096),
    "svamp": Benchmark(rows=1000, max_new_tokens=4096),
}


@dataclass(frozen=True)
class Item:
    id: str
    question: str
    gold: str
    level: str | None = None


def benchmark_source(name: str, data_dir: str | None) -> str:
    """Where the items of a benchmark are: the embedded set, or a file in `data_dir`."""
    if BENCHMARKS[name].embedded:
        return EMBEDDED
    if data_dir is None:
        raise UserError(f"Benchmark {name} needs eval.data_dir, a folder that holds {name}.jsonl.")
    for ending in (".jsonl", ".jsonl.gz"):
        if (path := Path(data_dir).expanduser() / (name + ending)).is_file():
            return str(path)
    raise UserError(f"Benchmark {name}: there is no {name}.jsonl or {name}.jsonl.gz in eval.data_dir={data_dir}.")


def load_items(name: str, data_dir: str | None) -> list[Item]:
    """All items of a benchmark; a missing field or a wrong number of rows is an error."""
    source = benchmark_source(name, data_dir)
    items: list[Item] = []
    for number, row in enumerate(read_rows(source, "test"), start=1):
        for key in ("id", "question", "answer"):
            if row.get(key) in (None, ""):
                raise UserError(f"{source}, row {number}: the field {key!r} is missing; benchmark items need it.")
            refuse_broken_text(str(row[key]), f"{source}, row {number}")
        level = row.get("level")
        items.append(
            Item(str(row["id"]), str(row["question"]), str(row["answer"]), None if level is None else str(level))
        )
    expected = BENCHMARKS[name].rows
    if len(items) != expected:
        raise UserError(f"{source} holds {len(items)} items, but {name} has {expected}; use the published test set.")
    if len({item.id for item in items}) != len(items):
        raise UserError(f"{source} holds an id twice; ids must be unique.")
    return items
