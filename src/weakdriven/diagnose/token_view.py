"""Some examples of a diagnosis token by token: where weak and strong disagree, and which hard negatives get gradient.

N = examples, T = tokens of all of them, K = hard negatives of a token that are named.
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
"""Examples of each list."""
NEGATIVES = 8
"""Hard negatives named for each token."""
VALUES = tuple(f"{model}_probability" for model in ("weak", "strong", "mixed", "after"))
VALUES += ("weak_entropy", "strong_entropy", "disagreement", "hard_negatives", "uniform_margin")
SCHEMA = pa.schema(
    {"lists": pa.list_(pa.string()), "id": pa.string(), "row": pa.int64(), "position": pa.int32(), "token": pa.int32()}
    | {"text": pa.string(), **dict.fromkeys(VALUES, pa.float64())}
    | {"negative_tokens": pa.list_(pa.int32()), "negative_texts": pa.list_(pa.string())}
    | {f"negative_{name}": pa.list_(pa.float32()) for name in ("weak", "strong", "mixed", "gradient")}
)
"""One row for each supervised token; what is not known is null.

lists: which lists the example is on. row: its place in the data. position: of the token among the supervised ones.
*_probability: of the true token, `after` under the strong model after the round. negative_*: of the hard negatives."""


def choose_examples(weak_N: np.ndarray, strong_N: np.ndarray, seed: int, each: int = EACH) -> dict[str, list[int]]:
    """Examples by mean entropy under the strong model, by its rise from weak to strong, and at random.

    >>> choose_examples(np.array([1.0, 0.5, 0.8]), np.array([0.4, 0.6, 1.0]), seed=0, each=1)["regressed"]
    [2]
    """
    rise_N = strong_N - weak_N

    def largest(value_N: np.ndarray, allowed_N: np.ndarray) -> list[int]:
        order = np.argsort(-np.where(allowed_N, value_N, -np.inf), kind="stable")
        return [int(n) for n in order[:each] if allowed_N[n]]

    some_N = np.isfinite(strong_N)
    drawn = np.random.default_rng([seed, 1]).permutation(len(strong_N))
    return {
        "hardest": largest(strong_N, some_N),
        "regressed": largest(rise_N, np.isfinite(rise_N) & (rise_N > 0)),
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
    """Write the file; returns how many examples each list has.

    Args:
        pair: Columns of `PairStatistics` over all tokens.
    """
    entropies = [_example_means(sample, one.statistics["entropy"]) for one in (weak, strong)]
    lists = choose_examples(entropies[0], entropies[1], seed)
    text = cache(decode)
    names = [str(name) for name in sample.dataset["id"]]
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for n in sorted({n for chosen in lists.values() for n in chosen}):
            place_T = sample.begin_N[n] + np.arange(sample.count_N[n])
            if not len(place_T):
                continue
            top = hardest(strong, weak, strong_weight, place_T, NEGATIVES)
            targets = strong.target_T[place_T].tolist()
            unknown = [None] * len(place_T)
            known = (top.ids_TK >= 0).numpy()
            columns: dict[str, Any] = {
                "lists": [[name for name in LISTS if n in lists[name]]] * len(place_T),
                "id": [names[n]] * len(place_T),
                "row": [int(sample.row_N[n])] * len(place_T),
                "position": range(len(place_T)),
                "token": targets,
                "text": [text(token) for token in targets],
                "after_probability": _numbers(np.exp(-after.statistics["nll"][place_T])) if after else unknown,
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


def _example_means(sample: Sample, value_T: np.ndarray) -> np.ndarray:
    """Mean over each example's tokens; NaN where it has none."""
    sum_N = np.bincount(sample.example_T, value_T, minlength=len(sample.count_N))
    return np.divide(sum_N, sample.count_N, out=np.full(len(sum_N), np.nan), where=sample.count_N > 0)


def _numbers(value_T: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in value_T]


def _ragged(value_TK: np.ndarray, known_TK: np.ndarray) -> list[list[Any]]:
    return [value_K[known_K].tolist() for value_K, known_K in zip(value_TK, known_TK, strict=True)]
