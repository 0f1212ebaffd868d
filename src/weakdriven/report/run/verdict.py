"""The last WMSS model of a run against its SFT control, in words that claim no more than the paired test shows."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from weakdriven.eval.statistics import SeedComparison, compare_seeds
from weakdriven.report import validation
from weakdriven.report.format import CONTROLS, in_prose, plain, score

SIGNIFICANCE_LEVEL = 0.05


def final_model(data: dict[str, Any]) -> str | None:
    """The last round that has a score."""
    return _first_evaluated(data, [f"round-{one['number']}" for one in reversed(data["rounds"])])


def control_of(data: dict[str, Any]) -> str:
    return _first_evaluated(data, CONTROLS) or "baseline-sft"


def _first_evaluated(data: dict[str, Any], models: Iterable[str]) -> str | None:
    evaluated = {row["model"] for row in data["accuracy"]}
    return next((model for model in models if model in evaluated), None)


def verdict(data: dict[str, Any]) -> list[str]:
    """A headline, then a sentence for each benchmark."""
    rows = {(row["benchmark"], row["model"]): row for row in data["accuracy"]}
    final, control = final_model(data), control_of(data)
    if not rows:
        unknown = ["Nothing has been evaluated yet, so there is nothing to compare."]
        return validation.sentences(data["validation"]) or unknown
    if final is None:
        scored = [f"{in_prose(row['model'])} scores {score(row)} on {row['benchmark']}" for row in data["accuracy"]]
        opening = "No WMSS model has been evaluated yet; so far" if data["rounds"] else "This run trains no WMSS model;"
        return [f"{opening} {'; '.join(scored)}."]
    benchmarks = [benchmark for benchmark, model in rows if model == final]
    both = [name for name in benchmarks if (name, control) in rows]
    pairs = {name: pair for name in both if (pair := paired(data, name, control, final)) is not None}
    sentences = []
    for name in benchmarks:
        sentence = f"On {name}, {in_prose(final)} scores {score(rows[name, final])}"
        if name in pairs:
            sentence += f", {in_prose(control)} {score(rows[name, control])}"
            if len(pairs) > 1:
                result = compared({name: pairs[name]})
                significant = "significant" if result.p_items < SIGNIFICANCE_LEVEL else "not significant"
                sentence += f": {difference_words(result)}; {significant}"
        elif name in both:
            sentence += f"; not comparable with {in_prose(control)}: other items or version, or samples are missing"
        else:
            sentence += f"; {in_prose(control)} has no score to compare it with"
        sentences.append(f"{sentence}.")
    return [headline(final, control, list(pairs), compared(pairs)), *sentences] if pairs else sentences


def compared(pairs: dict[str, tuple[np.ndarray, np.ndarray]]) -> SeedComparison:
    return compare_seeds({name: a for name, (a, _) in pairs.items()}, {name: b for name, (_, b) in pairs.items()})


def paired(data: dict[str, Any], benchmark: str, a: str, b: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Share of right samples of each item under both models, (1, P); None where they are not of the same items."""
    terms = [[data["scores"][benchmark, model].get(key) for key in ("version", "items", "golds")] for model in (a, b)]
    right = [data["samples"][benchmark, model]["right"] for model in (a, b)]
    if terms[0] != terms[1] or right[0].keys() != right[1].keys() or not right[0]:
        return None
    first, second = (np.array([[np.mean(one[item]) for item in right[0]]]) for one in right)
    return first, second


def headline(final: str, control: str, benchmarks: list[str], whole: SeedComparison) -> str:
    where = f" on {benchmarks[0]}" if len(benchmarks) == 1 else f" on average over {len(benchmarks)} benchmarks"
    us, them = in_prose(final), in_prose(control)
    if whole.p_items >= SIGNIFICANCE_LEVEL:
        opening = f"No significant difference between {us} and {them}"
    else:
        opening = f"{us} is significantly {'better' if whole.difference > 0 else 'worse'} than {them}"
    return f"{opening}: {difference_words(whole, where)}."


def difference_words(result: SeedComparison, where: str = "") -> str:
    points, (low, high) = 100 * result.difference, result.interval
    words = "the same" if abs(points) < 0.05 else f"{abs(points):.1f} points {'more' if points > 0 else 'less'}"
    chance = "p < 0.001" if result.p_items < 0.001 else f"p = {result.p_items:.3f}"
    return f"{words}{where}, 95% interval {100 * low:+.1f} to {100 * high:+.1f}, {chance}"


def effort(data: dict[str, Any]) -> str:
    """Rows and steps that the two models of the verdict were trained on; equal epochs are not equal compute."""
    final, control = final_model(data), control_of(data)
    if final is None:
        return ""
    last = int(final.removeprefix("round-"))
    ours = ["sft", *(f"round-{t}/strong" for t in range(1, last + 1))]
    theirs = ["baselines/sft"] if control == "baseline-sft" else ["sft", "baselines/sft_restart"]
    parts = []
    for model, stages in ((final, ours), (control, theirs)):
        counters = [data["done"].get(stage, {}).get("counters", {}) for stage in stages]
        if not all("rows" in one and "steps" in one for one in counters):
            return ""
        rows, steps = (plain(sum(one[key] for one in counters)) for key in ("rows", "steps"))
        parts.append(f"{in_prose(model)} on {rows} rows, {steps} steps")
    return f"Total training: {parts[0]}; {parts[1]}."
