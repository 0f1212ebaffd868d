"""Turn graded samples into the scores of a benchmark, and compare two models on the same items."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS
from weakdriven.eval.statistics import (
    Comparison,
    bootstrap_interval,
    mcnemar,
    paired_bootstrap,
    pass_at_k,
    wilson_interval,
)
from weakdriven.eval.test_sets import VERSION
from weakdriven.runs.directory import BENCHMARK_SCORES, SAMPLES
from weakdriven.runs.files import read_json, read_jsonl

Sample = dict[str, Any]


def score(benchmark: str, samples: Sequence[Sample], k: Sequence[int], *, version: int, rows: int) -> dict[str, Any]:
    """Compute all numbers of one benchmark; every fraction is a ratio of counts that can be checked from the samples.

    Args:
        rows: Number of items in the whole benchmark.
    """
    correct_P, n = correct_counts(samples)
    items, correct = len(correct_P), sum(correct_P)
    by_k = {each: [pass_at_k([count], n, each) for count in correct_P] for each in k}
    accuracy = pass_at_k(correct_P, n, 1)
    return {
        "benchmark": benchmark,
        "version": version,
        "items": items,
        "samples": n,
        "correct": correct,
        "accuracy": accuracy,
        "interval": list(interval(correct_P, n)),
        "interval_method": "Wilson" if n == 1 else "bootstrap over items",
        "first_sample": sum(sample["correct"] for sample in samples if sample["sample"] == 0) / items,
        "mean_at_n": accuracy,
        "observed_pass_at_n": sum(count > 0 for count in correct_P) / items,
        "pass_at_k": {str(each): pass_at_k(correct_P, n, each) for each in k},
        "pass_at_k_intervals": {str(each): list(bootstrap_interval(values)) for each, values in by_k.items()},
        "unanswered": sum(sample["answer"] is None for sample in samples),
        "cut": sum(sample["finish"] == "length" for sample in samples),
        "undecided": sum(sample["undecided"] for sample in samples),
        "tokens": sum(sample["tokens"] for sample in samples),
        "levels": by_level(samples),
        "whole": items == rows,
    }


def interval(correct_P: Sequence[int], n: int) -> tuple[float, float]:
    """Compute the 95% interval of the accuracy; if all samples are equal, a bootstrap interval would have no width."""
    share = sum(correct_P) / (n * len(correct_P))
    if n == 1 or share in (0, 1):
        return wilson_interval(round(share * len(correct_P)), len(correct_P))
    return bootstrap_interval(np.array(correct_P) / n)


def correct_counts(samples: Sequence[Sample]) -> tuple[list[int], int]:
    """Return the number of right samples of each item, in order, and the number of samples per item."""
    right: dict[str, list[bool]] = {}
    for sample in samples:
        right.setdefault(sample["id"], []).append(sample["correct"])
    return [sum(verdicts) for verdicts in right.values()], len(samples) // len(right)


def by_level(samples: Sequence[Sample]) -> dict[str, dict[str, int]]:
    levels: dict[str, dict[str, int]] = {}
    for sample in samples:
        if sample["level"] is not None:
            level = levels.setdefault(sample["level"], {"items": 0, "answers": 0, "correct": 0})
            level["items"] += sample["sample"] == 0
            level["answers"] += 1
            level["correct"] += sample["correct"]
    return dict(sorted(levels.items()))


def read_folder(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the scores by benchmark from a folder of `weakdriven eval`, or RUN/eval/MODEL; test sets come last."""
    saved = {path.parent.name: read_json(path) for path in sorted(folder.glob(f"*/{BENCHMARK_SCORES}"))}
    own = [name for name, one in saved.items() if name not in BENCHMARKS and "test_set" in one]
    found = {name: saved[name] for name in (*BENCHMARKS, *own) if name in saved}
    if not found:
        below = sorted(path.parents[1] for path in folder.glob(f"[!.]*/**/{BENCHMARK_SCORES}"))
        hint = f"; did you mean {below[0]}?" if below else "; expected <benchmark>/scores.json in it."
        raise UserError(f"{folder} has no results of an evaluation{hint}")
    return found


def average(scores: dict[str, dict[str, Any]]) -> float | None:
    """Average the accuracy over benchmarks; None if versions, models, sampling or completeness differ."""
    current = all(
        one["version"] == (BENCHMARKS[name].version if name in BENCHMARKS else VERSION) for name, one in scores.items()
    )
    asked = ("samples", "temperature", "top_p")
    terms = {(one["whole"], one.get("model"), *(one["protocol"][key] for key in asked)) for one in scores.values()}
    if len(scores) < 2 or not current or len(terms) > 1:
        return None
    return float(np.mean([one["accuracy"] for one in scores.values()]))


@dataclass(frozen=True)
class Compared:
    """Model b compared with model a on one benchmark."""

    benchmark: str
    version: int
    items: int
    accuracy_a: float
    accuracy_b: float
    test: str
    result: Comparison


def compare(folder_a: Path, folder_b: Path) -> tuple[list[Compared], list[str]]:
    """Compare both folders on all shared benchmarks; also return the names of the benchmarks that only one has."""
    scores_a, scores_b = read_folder(folder_a), read_folder(folder_b)
    common = [name for name in scores_a if name in scores_b]
    if not common:
        raise UserError(
            f"{folder_a} has {', '.join(scores_a)} and {folder_b} has {', '.join(scores_b)}: no benchmark in common."
        )
    for name in common:
        refuse_different_terms(name, scores_a[name], scores_b[name])
    found = []
    for name in common:
        (counts_a, n), (counts_b, _) = (
            correct_counts(list(read_jsonl(folder / name / SAMPLES))) for folder in (folder_a, folder_b)
        )
        a, b = np.array(counts_a) / n, np.array(counts_b) / n
        test, result = ("McNemar", mcnemar(a, b)) if n == 1 else ("paired bootstrap", paired_bootstrap(a, b))
        means = float(a.mean()), float(b.mean())
        found.append(Compared(name, scores_a[name]["version"], len(a), *means, test, result))
    return found, [name for name in scores_a | scores_b if (name in scores_a) != (name in scores_b)]


def refuse_different_terms(name: str, a: dict[str, Any], b: dict[str, Any]) -> None:
    if a["golds"] != b["golds"]:
        raise UserError(
            f"{name}: their items, options, gold answers or graders differ; use one file and the same limit."
        )
    remedies = {"version": "run weakdriven eval regrade on the older folder"}
    remedies |= dict.fromkeys(("samples", "temperature", "top_p", "max_new_tokens"), "sample both alike")
    for key, remedy in remedies.items():
        first, second = ((scores | scores["protocol"])[key] for scores in (a, b))
        if first != second:
            raise UserError(f"{name}: {key} is {first} in the first folder and {second} in the second; {remedy}.")
