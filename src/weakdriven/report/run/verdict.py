"""Compare a run's last WMSS model with its SFT control, claiming no more than the paired test shows."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from weakdriven.eval.statistics import SeedComparison, compare_shares
from weakdriven.report import validation
from weakdriven.report.format import CONTROLS, in_prose, plain, score, stage_of
from weakdriven.report.run.answers import count_wins, missing_words

SIGNIFICANCE_LEVEL = 0.05
Pairs = dict[str, tuple[np.ndarray, np.ndarray]]
"""By benchmark: the share of right samples of each item under two models."""


def final_model(data: dict[str, Any]) -> str | None:
    """Name the last round that has a score."""
    return _first_evaluated(data, [f"round-{one['number']}" for one in reversed(data["rounds"])])


def control_of(data: dict[str, Any]) -> str:
    return _first_evaluated(data, CONTROLS) or "baseline-sft"


def _first_evaluated(data: dict[str, Any], models: Iterable[str]) -> str | None:
    evaluated = {row["model"] for row in data["accuracy"]}
    return next((model for model in models if model in evaluated), None)


def verdict(data: dict[str, Any]) -> list[str]:
    """Say whether WMSS is worse than M1 or M0, then the headline, its reason, and a sentence for each benchmark."""
    rows = {(row["benchmark"], row["model"]): row for row in data["accuracy"]}
    final, control = final_model(data), control_of(data)
    if not rows:
        unknown = ["Nothing has been evaluated yet, so there is nothing to compare."]
        return validation.sentences(data["validation"]) or unknown
    if final is None:
        scored = [f"{in_prose(row['model'])} scores {score(row)} on {row['benchmark']}" for row in data["accuracy"]]
        opening = "No WMSS model has been evaluated yet; so far" if data["rounds"] else "This run trains no WMSS model:"
        return [*below_m1(data), f"{opening} {'; '.join(scored)}."]
    benchmarks = [benchmark for benchmark, model in rows if model == final]
    both, pairs = [name for name in benchmarks if (name, control) in rows], pairs_of(data, final, control)
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
            sentence += f"; not comparable with {in_prose(control)}: items or version differ, or samples are missing"
        else:
            sentence += f"; {in_prose(control)} has no score to compare it with"
        sentences.append(f"{sentence}.")
    if pairs:
        why = missing_words(count_wins(data, pairs, final, control), final, control)
        sentences = [headline(final, control, list(pairs), compared(pairs)), *([why] if why else []), *sentences]
    return [*below_m1(data), *below_base(data), *sentences]


def below_m1(data: dict[str, Any]) -> list[str]:
    """List models worse than M1, at most in one sentence: the last WMSS model and all that were trained from M1."""
    final, worse = final_model(data), []
    for model in dict.fromkeys(row["model"] for row in data["accuracy"]):
        if model != final and not started_from_m1(data, model):
            continue
        if pairs := pairs_of(data, model, "sft"):
            result = compared(pairs)
            significant = result.p_items < SIGNIFICANCE_LEVEL
            if result.difference < 0 and (significant or model == final):
                worse.append(
                    f"{in_prose(model)}: {difference_words(result)}{'' if significant else ', not significant'}"
                )
    return [f"Worse than M1, where training started: {'; '.join(worse)}."] if worse else []


def below_base(data: dict[str, Any]) -> list[str]:
    final = final_model(data)
    pairs = pairs_of(data, final, "base") if final else {}
    result = compared(pairs) if pairs else None
    if result is None or result.difference >= 0:
        return []
    significant = "" if result.p_items < SIGNIFICANCE_LEVEL else ", not significant"
    return [
        f"{in_prose(final or '')} scores lower than the untrained base model: {difference_words(result)}{significant}."
    ]


def started_from_m1(data: dict[str, Any], model: str) -> bool:
    """Return whether a model was trained from M1; a model may also use M1 only to know how long to train."""
    m1 = data["done"].get("sft", {}).get("key")
    inputs = data["done"].get(stage_of(model), {}).get("inputs", {})
    return m1 is not None and m1 in [key for name, key in inputs.items() if name != "budget"]


def outcome(data: dict[str, Any]) -> str:
    """Compare the last WMSS model with its control: better, worse, or open if no difference is significant.

    A model below M1 or M0 is never better, even if it beats its control.
    """
    final = final_model(data)
    pairs = pairs_of(data, final, control_of(data)) if final else {}
    result = compared(pairs) if pairs else None
    if result is None or result.p_items >= SIGNIFICANCE_LEVEL:
        return "open"
    if result.difference < 0:
        return "worse"
    return "open" if below_m1(data) or below_base(data) else "better"


def pairs_of(data: dict[str, Any], model: str, other: str) -> Pairs:
    """Pair both models' samples on each benchmark where they were evaluated on the same items."""
    names = list(dict.fromkeys(row["benchmark"] for row in data["accuracy"] if row["model"] == model))
    both = [name for name in names if (name, other) in data["scores"]]
    return {name: pair for name in both if (pair := paired(data, name, other, model)) is not None}


def compared(pairs: Pairs) -> SeedComparison:
    return compare_shares({name: a for name, (a, _) in pairs.items()}, {name: b for name, (_, b) in pairs.items()})


def paired(data: dict[str, Any], benchmark: str, a: str, b: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the share of right samples of each item under both models, (1, P); None if their items differ."""
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
    low, high = result.interval
    chance = "p < 0.001" if result.p_items < 0.001 else f"p = {result.p_items:.3f}"
    return f"{100 * result.difference:+.1f} points{where}, 95% interval {100 * low:+.1f} to {100 * high:+.1f}, {chance}"


def effort(data: dict[str, Any]) -> str:
    """Say how many examples and steps both models were trained on, because equal epochs are not equal compute."""
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
        parts.append(f"{in_prose(model)} on {rows} examples, {steps} steps")
    return f"Total training: {parts[0]}; {parts[1]}."
