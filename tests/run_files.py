"""Files of a run directory, made by hand for tests that read one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet


def put(path: Path, value: Any) -> None:
    """Write a list as JSON lines, a string as it is, and anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in value) if isinstance(value, list) else json.dumps(value)
    path.write_text(value if isinstance(value, str) else lines, encoding="utf-8")


def put_table(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def put_scores(run: Path, model: str, ids: Sequence[str], entropy: Sequence[float | None], **columns: Any) -> None:
    """Write scores as an entropy stage does; missing columns are constant."""
    rows = len(ids)
    usual = {"tokens": [20] * rows, "nll": [0.5] * rows, "target_probability": [0.7] * rows}
    values = {"id": list(ids), "entropy": list(entropy), **usual, "truncated": [False] * rows, **columns}
    values["tokens"] = pa.array(values["tokens"], pa.int32())
    put_table(run / f"entropy/{model}/scores.parquet", **values)


def put_active(
    run: Path, turn: int, ids: Sequence[str], probability: Sequence[float], draws: Sequence[int | None]
) -> None:
    columns = {"id": list(ids), "probability": list(probability), "draws": pa.array(draws, pa.int32())}
    put_table(run / f"round-{turn}/active/active.parquet", **columns)
