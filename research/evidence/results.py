"""Computes differences, tests and verdicts from the study's result files (docs/evidence/protocol.md)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from research.evidence.collect import VERSION, shares
from weakdriven.eval.statistics import SeedComparison, compare_seeds, interval_of, t_chance
from weakdriven.report.compare.table import REFERENCE
from weakdriven.runs.files import read_json

VALIDATION = ("rate", "wmss_rate", "epochs")
"""Studies on validation problems: two choose the learning rate and the epochs of saturated SFT, one is descriptive."""
POINTED = ("sampled", "sizes")
"""Studies with several samples per item, or other numbers of rows; each of their points has its own references."""
STARTS = ("base", "m1")
"""Models in every comparison besides the reference."""
SHARED = (*STARTS, REFERENCE, "sft")
"""Methods of every point of a sweep."""
STUDENTS = ("gemma-3-270m", "smollm2-135m", "qwen2.5-coder-0.5b")
HYPOTHESES = {
    ("core", "wmss"): "H1: WMSS",
    ("core", "wdjt_only"): "H2: WD-JT on all rows",
    ("variants", "wmss_annealed_matched"): "H3a: WMSS, strong weight 0.5 to 1, matched steps",
    ("variants", "wmss_anchor_matched"): "H3b: WMSS with the strong anchor, matched steps",
    ("saturated", "wmss"): "H4: WMSS after saturated SFT",
}
"""Study and method of each registered hypothesis (protocol.md); Holm's correction counts all of them, run or not."""
SEEDS = 5
"""Seeds that every hypothesis needs."""
GAIN, SAME = 0.01, 0.015
"""Smallest difference that counts as a gain, and the half-width of the range that counts as no difference."""
UNSCORED = {*SHARED, "wdjt_only", "sft_compute", "uniform_active"}
"""Methods that need no entropies; the others scan all rows with two models."""
DRAWS = 2000
"""Draws of each permutation test."""


@dataclass(frozen=True)
class Trained:
    """All trainings of one method on one student in one study."""

    student: str
    study: str
    method: str
    scores: dict[str, Any]
    """By benchmark: share of right answers of each item, (S, P)."""
    reference: dict[str, Any] | None
    """The reference's scores in the same files, by seed; None for the reference itself and models before it."""
    seeds: list[str]
    seconds: float | None
    """Mean time, over its trainings, of all stages of which the model was made."""
    over_sft: float | None
    """Time relative to two epochs of SFT in the same files, and so under the same load."""
    epochs: float | None
    """Compute in epochs of SFT; a token that is only scored counts a third of a trained one."""
    cut: float
    """Share of answers that reached the token limit."""

    @cached_property
    def against(self) -> SeedComparison | None:
        return compare_seeds(self.reference, self.scores, draws=DRAWS) if self.reference else None

    @property
    def differences(self) -> dict[str, Any]:
        assert self.reference
        return {name: self.scores[name] - self.reference[name] for name in self.scores}


def read_results(folder: Path) -> list[dict[str, Any]]:
    results = [read_json(path) | {"file": path.name} for path in sorted(folder.glob("*.json"))]
    for one in results:
        if one["version"] != VERSION:
            raise SystemExit(f"{one['file']} has version {one['version']}, expected {VERSION}; collect it again.")
    return results


def on_test_items(results: list[dict[str, Any]]) -> list[Trained]:
    """Return all trainings that were evaluated on test items.

    A point of `POINTED` is a separate study, such as `sizes-rows_2048`, whose method is WMSS. Several samples per item
    are also counted as one answer that is right if any of them is, in `sampled-t0.6-any`.
    """
    found = trained_methods([one for one in results if one["study"] not in (*VALIDATION, *POINTED)])
    files: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for one in results:
        for point, trained in one["methods"].items() if one["study"] in POINTED else ():
            if point not in SHARED and "like" not in trained:  # methods added by `also` are not points
                files.setdefault((one["student"], one["study"], point), []).append(one)
    for (_, study, point), own in files.items():
        for one in trained_methods(own):
            one = replace(one, study=f"{study}-{point}", method="wmss" if one.method == point else one.method)
            found.append(one)
            if "samples" in next(iter(own[0]["items"].values())):
                reference = one.reference and any_right(one.reference)
                found.append(replace(one, study=f"{one.study}-any", scores=any_right(one.scores), reference=reference))
    return found


def any_right(scores: dict[str, Any]) -> dict[str, Any]:
    return {name: (values_SP > 0).astype(float) for name, values_SP in scores.items()}


def trained_methods(results: list[dict[str, Any]]) -> list[Trained]:
    """Return one entry for each student, study and method, over all files that have it."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for result in results:
        for method in result["methods"]:
            groups.setdefault((result["student"], result["study"], method), []).append(result)
    return [together(*key, files) for key, files in groups.items()]


def together(student: str, study: str, method: str, files: list[dict[str, Any]]) -> Trained:
    """Join files, each with its own comparison; a shared method's seed counts once even if several files trained it."""
    shared, what = method in SHARED, f"{student}, {study}, {method}"
    refuse_unlike(what, files, ("model", "data", "sft") if shared else ())
    own, reference = dict[str, list[Any]](), dict[str, list[Any]]()
    counts, seen = list[int](), list[Any]()
    for result in files:
        # points of a sweep share their reference and the models before it, so the same training counts once
        each = {seed: one for seed, one in result["methods"][method]["seeds"].items() if (seed, one) not in seen}
        seen += each.items()
        counts.append(len(each))
        for seed in each:
            if seed in own and not shared:
                names = ", ".join(one["file"] for one in files)
                raise SystemExit(f"{what}: seed {seed} is in two of {names}; remove one.")
            own.setdefault(seed, []).append(scores_in(result, method, [seed]))
            if method not in (REFERENCE, *STARTS):
                reference.setdefault(seed, []).append(scores_in(result, REFERENCE, [seed]))
    scores = averaged(own)
    answers = [one for _, by_benchmark in seen for one in by_benchmark.values()]
    tries = next(iter(files[0]["items"].values())).get("samples", 1)
    asked = tries * len(seen) * sum(fact["count"] for fact in files[0]["items"].values())
    return Trained(
        *(student, study, method, scores),
        reference=averaged(reference) if reference else None,
        seeds=list(own),
        **costs_of(method, files, counts),
        cut=sum(one["cut"] for one in answers) / asked,
    )


def refuse_unlike(what: str, files: list[dict[str, Any]], sections: Iterable[str]) -> None:
    """Raise an error unless files have the same items and the same recipe, up to the seed and settings of rounding.

    Methods have their names in the file; the recipe's own name of its method does not matter.

    Args:
        sections: Sections of the recipe to compare (default: all).
    """
    first, *others = files
    for other in others:
        if other["items"] != first["items"]:
            raise SystemExit(f"{what}: {first['file']} and {other['file']} have different items; remove one of them.")
        one, two = (dict(flat(file["recipe"])) for file in (first, other))
        for name in one.keys() & two.keys():
            counted = not sections or name.partition(".")[0] in sections
            rounds = name.endswith(("micro_batch_size", "gradient_checkpointing"))
            apart = rounds or name in ("seed", "method", "baselines")
            if counted and not apart and one[name] != two[name]:
                raise SystemExit(
                    f"{what}: {name} is {one[name]} in {first['file']} and {two[name]} in {other['file']}; collect "
                    "one of them as another --study, or remove it."
                )


def flat(recipe: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Flatten a recipe to dotted names.

    >>> dict(flat({"seed": 1, "sft": {"epochs": 2}}))
    {'seed': 1, 'sft.epochs': 2}
    """
    for name, value in recipe.items():
        yield from flat(value, f"{before}{name}.") if isinstance(value, Mapping) else [(f"{before}{name}", value)]


def costs_of(method: str, files: list[dict[str, Any]], counts: list[int]) -> dict[str, float | None]:
    """Average costs over files, weighted by trainings; the ratio to SFT leaves out files without two epochs of SFT."""
    own = [(one["methods"][method]["cost"], count) for one, count in zip(files, counts, strict=True)]
    if not own[0][0]["seconds"]:
        return {"seconds": None, "over_sft": None, "epochs": None}
    seconds = sum(cost["seconds"] * count for cost, count in own)
    sft = [one["methods"].get("sft", {"cost": None})["cost"] for one in files]
    beside = [(cost["seconds"] * n, two["seconds"] * n) for (cost, n), two in zip(own, sft, strict=True) if two]
    ratio = sum(mine for mine, _ in beside) / sum(two for _, two in beside) if beside else None
    return {"seconds": seconds / sum(counts), "over_sft": ratio, "epochs": epochs_of(method, files[0])}


def epochs_of(method: str, result: dict[str, Any]) -> float | None:
    """Return a method's compute in epochs of SFT, or None if it generates rows, whose compute is unknown."""
    methods = result["methods"]
    if "m1" not in methods or methods[method]["cost"]["generated_tokens"]:
        return None
    epoch = methods["m1"]["cost"]["trained_tokens"] / result["recipe"]["sft"]["epochs"]
    scans = 0.0 if method in UNSCORED else 2 / 3
    frozen = (methods[method]["cost"]["trained_tokens"] / epoch - 1) / 3 if method == "wmss_frozen" else 0.0
    return methods[method]["cost"]["trained_tokens"] / epoch + scans + frozen


def scores_in(result: dict[str, Any], method: str, seeds: Iterable[str]) -> dict[str, Any]:
    """Return the scores of one file by benchmark, (S, P)."""
    each = result["methods"].get(method, {"seeds": {}})["seeds"]
    if missing := [seed for seed in seeds if seed not in each]:
        raise SystemExit(f"{result['file']}: {method} has no seed {missing[0]}, so nothing can be paired with it.")
    return {
        name: np.array([shares(each[seed][name]["right"], fact) for seed in seeds])
        for name, fact in result["items"].items()
    }


def averaged(by_seed: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the mean over each seed's trainings by benchmark, (S, P)."""
    names = next(iter(by_seed.values()))[0]
    return {
        name: np.concatenate([np.mean([one[name] for one in each], axis=0) for each in by_seed.values()])
        for name in names
    }


@dataclass(frozen=True)
class Verdict:
    """One hypothesis over all students with results."""

    text: str
    by_student: dict[str, Trained]
    chance: float | None
    """p-value over seeds, with Holm's correction over all registered hypotheses."""

    @property
    def against(self) -> dict[str, SeedComparison]:
        return {name: one.against for name, one in self.by_student.items() if one.against}

    @property
    def difference(self) -> float:
        return float(np.mean([one.difference for one in self.against.values()]))

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval; the students share the items and have their own seeds."""
        return interval_of(*(one.differences for one in self.by_student.values()))

    @property
    def word(self) -> str:
        return judged(self.against, self.difference, self.interval, self.chance) if self.by_student else "not run"


def verdicts(found: list[Trained]) -> list[Verdict]:
    each = [{one.student: one for one in found if (one.study, one.method) == key} for key in HYPOTHESES]
    adjusted = holm([chance_of(one.against for one in ones.values() if one.against) for ones in each])
    return [Verdict(*one) for one in zip(HYPOTHESES.values(), each, adjusted, strict=True)]


def chance_of(each: Iterable[SeedComparison]) -> float | None:
    """Compute a t-test of the mean over students; seeds vary equally around each student's mean.

    >>> comparison = SeedComparison(0.02, (0, 0), (0.01, 0.02, 0.03), 1.0, None)
    >>> round(chance_of([comparison]), 4), round(chance_of([comparison] * 2), 4)
    (0.0742, 0.0081)
    """
    groups = [np.array(one.by_seed) for one in each]
    freedom = sum(len(values_S) - 1 for values_S in groups)
    if not groups or freedom < 1:
        return None
    variance = sum(float(((values_S - values_S.mean()) ** 2).sum()) for values_S in groups) / freedom
    error = math.sqrt(variance * sum(1 / len(values_S) for values_S in groups)) / len(groups)
    mean = float(np.mean([values_S.mean() for values_S in groups]))
    return t_chance(mean / error, freedom) if error > 1e-12 else None


def holm(chances: list[float | None]) -> list[float | None]:
    """Apply Holm's correction; tests that were not run count as the largest p-values.

    >>> holm([0.01, None, 0.02])
    [0.03, None, 0.04]
    """
    adjusted, highest = list(chances), 0.0
    order = sorted((chance, place) for place, chance in enumerate(chances) if chance is not None)
    for rank, (chance, place) in enumerate(order):
        highest = max(highest, min(1.0, chance * (len(chances) - rank)))
        adjusted[place] = highest
    return adjusted


def judged(
    each: Mapping[str, SeedComparison],
    difference: float,
    interval: tuple[float, float],
    chance: float | None,
    *,
    students: int = len(STUDENTS),
) -> str:
    """Return the verdict of protocol.md for a result."""
    if len(each) < students:
        return f"open: {len(each)} of {students} students"
    few = {name: len(one.by_seed) for name, one in each.items() if len(one.by_seed) < SEEDS}
    if few:
        return "open: " + ", ".join(f"{count} of {SEEDS} seeds of {name}" for name, count in few.items())
    sign = 1 if difference > 0 else -1
    agreeing = sum(sign * one.difference > 0 for one in each.values())
    away = min(sign * end for end in interval) > 0
    if away and sign * difference >= GAIN and chance is not None and chance < 0.05 and agreeing >= 2:
        return "gain" if sign > 0 else "loss"
    return "no difference" if max(map(abs, interval)) <= SAME else "undecided"
