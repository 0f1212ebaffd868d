"""Prepare examples token by token: where weak and strong disagree, and which hard negatives get gradient.

N = examples, T = their tokens, K = hard negatives listed for a token.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weakdriven.diagnose.forward_pass import Measured, Sample, hardest

LISTS = ("hardest", "regressed", "random")
EACH = 12
"""Examples per list."""
NEGATIVES = 8
"""Hard negatives listed per token."""
VALUES = tuple(f"{model}_probability" for model in ("weak", "strong", "mixed", "after"))
VALUES += ("weak_entropy", "strong_entropy", "disagreement", "hard_negatives", "uniform_margin")
SCHEMA = pa.schema(
    {"lists": pa.list_(pa.string()), "id": pa.string(), "row": pa.int64(), "position": pa.int32(), "token": pa.int32()}
    | {"text": pa.string(), **dict.fromkeys(VALUES, pa.float64())}
    | {"negative_tokens": pa.list_(pa.int32()), "negative_texts": pa.list_(pa.string())}
    | {f"negative_{name}": pa.list_(pa.float32()) for name in ("weak", "strong", "mixed", "gradient")}
)
"""One row for each supervised token; unknown values are null.

lists: lists that contain the example. row: its row in the data. position: the token's, among supervised tokens.
*_probability: the true token's; `after`: under the strong model after the round. negative_*: the hard negatives'."""


def choose_examples(weak_N: np.ndarray, strong_N: np.ndarray, seed: int, each: int = EACH) -> dict[str, list[int]]:
    """Choose examples by mean entropy under the strong model, by its rise from weak to strong, and at random.

    >>> choose_examples(np.array([1.0, 0.5, 0.8]), np.array([0.4, 0.6, 1.0]), seed=0, each=1)["regressed"]
    [2]
    """

    def largest(value_N: np.ndarray, least: float) -> list[int]:
        order = np.argsort(-np.nan_to_num(value_N, nan=-np.inf), kind="stable")
        return [int(n) for n in order[:each] if value_N[n] > least]

    drawn = np.random.default_rng([seed, 1]).permutation(len(strong_N))
    return {
        "hardest": largest(strong_N, -np.inf),
        "regressed": largest(strong_N - weak_N, 0.0),
        "random": sorted(int(n) for n in drawn[:each]),
    }


def write_token_view(
    path: Path,
    sample: Sample,
    weak: Measured,
    strong: Measured,
    after: Measured | None,
    pair: dict[str, np.ndarray],
    *,
    strong_weight: float,
    seed: int,
    decode: Callable[[int], str],
) -> dict[str, int]:
    """Write the file from the models and the columns of `pair_statistics`; return the number of examples per list."""
    means = [np.bincount(sample.example_T, one.statistics["entropy"]) / sample.count_N for one in (weak, strong)]
    lists, text = choose_examples(means[0], means[1], seed), cache(decode)
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for n in sorted({n for chosen in lists.values() for n in chosen}):
            count = int(sample.count_N[n])
            place_T = sample.begin_N[n] + np.arange(count)
            top = hardest(strong, weak, strong_weight, place_T, NEGATIVES)
            targets = strong.target_T[place_T].tolist()
            known = (top.ids_TK >= 0).numpy()
            columns: dict[str, Any] = {
                "lists": [[name for name in LISTS if n in lists[name]]] * count,
                "id": [str(sample.dataset[n]["id"])] * count,
                "row": [int(sample.row_N[n])] * count,
                "position": range(count),
                "token": targets,
                "text": [text(token) for token in targets],
                "after_probability": _numbers(np.exp(-after.statistics["nll"][place_T])) if after else [None] * count,
                "weak_entropy": _numbers(weak.statistics["entropy"][place_T]),
                "strong_entropy": _numbers(strong.statistics["entropy"][place_T]),
                "negative_tokens": _ragged(top.ids_TK.numpy(), known),
                "negative_texts": [[text(k) for k in ids if k >= 0] for ids in top.ids_TK.tolist()],
            }
            for name in ("weak", "strong", "mixed"):
                columns[f"{name}_probability"] = _numbers(1 - pair[f"negative_mass_{name}"][place_T])
            for name in ("weak", "strong", "mixed", "gradient"):
                columns[f"negative_{name}"] = _ragged(getattr(top, f"{name}_TK").float().numpy(), known)
            for name in ("disagreement", "hard_negatives", "uniform_margin"):
                columns[name] = _numbers(pair[name][place_T])
            writer.write_table(pa.Table.from_pydict(columns, schema=SCHEMA))
    return {name: len(chosen) for name, chosen in lists.items()}


def _numbers(value_T: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in value_T]


def _ragged(value_TK: np.ndarray, known_TK: np.ndarray) -> list[list[Any]]:
    return [value_K[known_K].tolist() for value_K, known_K in zip(value_TK, known_TK, strict=True)]
