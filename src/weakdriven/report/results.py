"""Scores of several runs' models, item by item, and the cost of each model. S = seeds, P = problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weakdriven.eval.scoring import correct_counts
from weakdriven.eval.statistics import Scores, by_seed, compare_shares, interval_of, score_of, with_room
from weakdriven.report.format import stage_of
from weakdriven.report.read import current_manifests, read_plan
from weakdriven.runs.directory import SAMPLES
from weakdriven.runs.files import read_jsonl

Row = dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """One model on one benchmark. Two are equal if one run reuses the evaluation of the other."""

    benchmark: str
    key: str
    changed: int
    """Modification time of its samples, because they may be graded again."""
    samples: Path = field(compare=False)


Evaluated = tuple[Evaluation, ...]
"""One trained model on all of its benchmarks."""
BySeed = Mapping[str, Evaluated]


def evaluated_models(run: Path) -> dict[str, Evaluated | None]:
    """Find the evaluated models of a run; None for a model that misses a benchmark of the recipe."""
    manifests, found = current_manifests(run), dict[str, list[Evaluation | None]]()
    for name in read_plan(run, []) or sorted(manifests):
        if name.startswith("eval/"):
            _, model, benchmark = name.split("/")
            path, done = run / name / SAMPLES, manifests.get(name)
            one = Evaluation(benchmark, done["key"], path.stat().st_mtime_ns, path) if done else None
            found.setdefault(model, []).append(one)
    whole = {model: tuple(one for one in each if one) for model, each in found.items()}
    return {model: one if len(one) == len(found[model]) else None for model, one in whole.items() if one}


def complete_models(run: Path) -> dict[str, Evaluated]:
    return {model: one for model, one in evaluated_models(run).items() if one is not None}


def scores(models: Sequence[Evaluated]) -> Scores:
    """Return the share of right samples by benchmark, (S, P), for one model under several seeds."""
    same = zip(*models, strict=False)
    return {each[0].benchmark: np.concatenate([_shares(one) for one in each]) for each in same}


@cache
def _shares(evaluation: Evaluation) -> NDArray[np.float64]:
    """Read the share of right samples of each problem, (1, P), once."""
    right, n = correct_counts(list(read_jsonl(evaluation.samples)))
    return np.array([right]) / n


def describe(whole: Scores) -> Row:
    low, high = with_room(interval_of(whole), whole)
    interval = (max(0.0, low), min(1.0, high))
    return {"score": score_of(whole), "interval": interval, "by_seed": by_seed(whole).tolist()}


def compare(own: BySeed, theirs: BySeed, **more: Any) -> Row | None:
    """Compare two models on the seeds that both have; None if there are none or the benchmarks differ."""
    seeds = [seed for seed in own if seed in theirs]
    a, b = (tuple(models[seed] for seed in seeds) for models in (theirs, own))
    found = _difference(a, b) if seeds else None
    return found and found | more | {"seeds": seeds}


@cache
def _difference(theirs: tuple[Evaluated, ...], own: tuple[Evaluated, ...]) -> Row | None:
    a, b = scores(theirs), scores(own)
    shapes = [{name: values_SP.shape for name, values_SP in one.items()} for one in (a, b)]
    return vars(compare_shares(a, b)) if shapes[0] == shapes[1] else None


def costs(model: str, manifests: dict[str, Row]) -> Row:
    """Sum the cost of every stage behind a model, without tokenizing and evaluation, as if computed for it alone.

    The input `budget` only sets how long to train, so the stages behind it do not count.
    """
    by_key = {one["key"]: (name, one) for name, one in manifests.items()}
    left, used = [manifests.get(stage_of(model), {}).get("key")], dict[str, Row]()
    while left:
        name, one = by_key.get(left.pop(), ("data", {}))
        if name != "data" and name not in used:
            used[name] = one
            left += [key for source, key in one["inputs"].items() if source != "budget"]
    if not used:
        return {}
    return {
        "seconds": sum(one["wall_seconds"] for one in used.values()),
        "trained_tokens": sum(one["counters"].get("trained_tokens") or 0 for one in used.values()),
        "peak_bytes": max(one["peak_memory_bytes"] for one in used.values()),
    }
