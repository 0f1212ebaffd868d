"""Validation losses of runs: read them, test them against a reference, and show them in tables and sentences."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.eval.statistics import Floats, compare_seeds
from weakdriven.eval.validation import as_scores, draws_for, summarise
from weakdriven.report.files import Columns, read_columns
from weakdriven.report.format import CONTROLS, MISSING, chance_words, colour, in_prose, model_name, model_order, percent
from weakdriven.runs.directory import LOSSES

Row = dict[str, Any]
STAGE = "validation/"
SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class Validated:
    """Validation losses of one model. Two are equal if one run reuses the losses of the other."""

    key: str
    run: Path = field(compare=False)
    stage: str = field(compare=False)


BySeed = Mapping[str, Validated]


def validated_models(run: Path, manifests: Mapping[str, Any]) -> dict[str, Validated]:
    """Find the models whose validation loss is finished, weak to strong."""
    found = {
        name.removeprefix(STAGE): Validated(one["key"], run, name)
        for name, one in manifests.items()
        if name.startswith(STAGE)
    }
    return dict(sorted(found.items(), key=lambda entry: model_order(entry[0])))


@cache
def _columns(model: Validated) -> Columns:
    return read_columns(model.run, f"{model.stage}/{LOSSES}", ["tokens", "loss", "hits"])


def _sums(models: Sequence[Validated], name: str) -> Floats:
    """Stack a column, summed over the tokens of each example, (S, P)."""
    return np.array([_columns(model).values[name] for model in models])


def describe(models: Sequence[Validated]) -> Row:
    """Average the losses of one model over its seeds."""
    tokens_SP, loss_SP = _sums(models, "tokens"), _sums(models, "loss")
    by_seed = loss_SP.sum(axis=1) / tokens_SP.sum(axis=1)
    return summarise(tokens_SP[0], loss_SP, _sums(models, "hits")) | {"by_seed": by_seed.tolist()}


def compare(own: BySeed, theirs: BySeed) -> Row | None:
    """Test the difference in loss on the seeds that both have; None if there are none or the examples differ."""
    seeds = [seed for seed in own if seed in theirs]
    found = _difference(tuple(theirs[one] for one in seeds), tuple(own[one] for one in seeds)) if seeds else None
    return found and found | {"seeds": seeds}


def compared(own: BySeed, theirs: BySeed) -> Row:
    """Return a method's losses, and their difference from the reference if it can be tested, as part of a row."""
    row: Row = {"validation": describe([*own.values()])} if own else {}
    against = compare(own, theirs)
    return row | ({"validation_against": against} if against else {})


@cache
def _difference(theirs: tuple[Validated, ...], own: tuple[Validated, ...]) -> Row | None:
    first, *rest = map(_columns, (*theirs, *own))
    tokens_P = first.values["tokens"]
    if not all(one.ids.equals(first.ids) and np.array_equal(one.values["tokens"], tokens_P) for one in rest):
        return None  # other examples, or another tokenizer: a loss per token has another unit
    a, b = (as_scores(_sums(models, "loss"), tokens_P) for models in (theirs, own))
    return vars(compare_seeds(a, b, draws=draws_for(len(tokens_P))))


def validation_rows(run: Path, manifests: Mapping[str, Any]) -> list[Row]:
    """Return one row per model of a run, weak to strong, with its difference from the reference."""
    models = validated_models(run, manifests)
    against = reference(list(models))
    rows = []
    for model, one in models.items():
        row: Row = {"model": model, "name": model_name(model), **describe([one])}
        if against and model != against:
            row["against"] = compare({"": one}, {"": models[against]})
        rows.append(row | {"reference": against})
    return rows


def reference(models: Sequence[str]) -> str | None:
    """Choose the model that others are tested against: an SFT control, else M1, else M0."""
    return next((name for name in (*CONTROLS, "sft", "base") if name in models), None)


def loss_words(row: Row) -> str:
    return _with_brackets(row["loss"], row["loss_interval"])


def difference_words(against: Row | None) -> str:
    return _with_brackets(against["difference"], against["interval"], "+") if against else MISSING


def _with_brackets(value: float, interval: Sequence[float], sign: str = "") -> str:
    low, high = interval
    return f"{value:{sign}.4f} [{low:{sign}.4f}, {high:{sign}.4f}]"


def table(rows: Sequence[Row]) -> Row:
    """Return titles, cells and caption of a run's table; empty if nothing was validated."""
    if not rows:
        return {}
    titles = ["model", "loss", "perplexity", "token accuracy", "difference", "p"]
    return {"titles": titles, "cells": _cells(rows), "caption": _caption(rows)}


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    return [
        [
            row["name"],
            loss_words(row),
            f"{row['perplexity']:.4g}",
            percent(row["token_accuracy"]),
            difference_words(row.get("against")),
            chance_words((row.get("against") or {}).get("p_items")),
        ]
        for row in rows
    ]


def _caption(rows: Sequence[Row]) -> str:
    first = rows[0]
    words = (
        f"{first['examples']:,} validation examples with {first['tokens']:,} completion tokens; no model was trained "
        "on them. Loss: nats per token; brackets: 95% interval over examples."
    )
    if first["reference"] and len(rows) > 1:
        words += f" Difference: loss minus that of {in_prose(first['reference'])}; p: paired test over examples."
    return words


BOARD = ["validation loss", "loss difference", "p (loss)"]
"""Columns of validation losses in a comparison."""
CSV = ["validation_loss", "validation_low", "validation_high", "perplexity", "token_accuracy"]
CSV += ["loss_difference", "loss_difference_low", "loss_difference_high", "loss_p_items", "loss_p_seeds"]


def board_cells(row: Row) -> list[str]:
    against = row.get("validation_against")
    loss = loss_words(row["validation"]) if "validation" in row else MISSING
    return [loss, difference_words(against), chance_words((against or {}).get("p_items"))]


def csv_cells(row: Row) -> list[Any]:
    own, against = row.get("validation", {}), row.get("validation_against", {})
    cells = [own.get("loss"), *own.get("loss_interval", [None] * 2), own.get("perplexity"), own.get("token_accuracy")]
    cells += [against.get("difference"), *against.get("interval", [None] * 2)]
    return [*cells, against.get("p_items"), against.get("p_seeds")]


def board_caption(rows: Sequence[Row]) -> str:
    """Explain the columns `BOARD` in a comparison's caption; empty if nothing was validated."""
    first = next((row["validation"] for row in rows if "validation" in row), None)
    if first is None:
        return ""
    return (
        f" Validation loss: nats per completion token of {first['examples']:,} examples that no model was trained on; "
        "brackets: 95% interval over seeds and examples; p (loss): paired test over examples."
    )


def headline(rows: Sequence[Row], against: str) -> list[str]:
    """Summarize a comparison without scores: the lowest loss, and which rows differ significantly."""
    losses = {row["name"]: row["validation"] for row in rows if "validation" in row}
    if not losses:
        return []
    best = min(losses, key=lambda method: losses[method]["loss"])
    words = [f"Lowest validation loss: {best}, {loss_words(losses[best])} nats per token."]
    tested = {row["name"]: row["validation_against"] for row in rows if "validation_against" in row}
    sure = {method: one for method, one in tested.items() if is_significant(one)}
    for word, sign in (("lower", -1), ("higher", 1)):
        moved = {name: one["difference"] for name, one in sure.items() if one["difference"] * sign > 0}
        if names := [f"{name} ({difference:+.4f})" for name, difference in moved.items()]:
            words.append(f"Significantly {word} than {against}: {', '.join(names)}.")
    if rest := [name for name in tested if name not in sure]:
        words.append(f"No significant difference from {against}: {', '.join(rest)}.")
    return words


def loss_dots(rows: Sequence[Row]) -> list[Row]:
    """Return the losses with their intervals for a figure, lowest first."""
    found = []
    for row in sorted((row for row in rows if "validation" in row), key=lambda row: row["validation"]["loss"]):
        one = row["validation"]
        shown = {"label": row["name"], "colour": colour(row["model"]), "value": one["loss"], "text": loss_words(one)}
        found.append(shown | dict(zip(("low", "high"), one["loss_interval"], strict=True)))
    return found


def is_significant(against: Row) -> bool:
    """Return whether the test over examples is significant, and the test over seeds if there are several."""
    chances = (against["p_items"], against["p_seeds"])
    return all(chance is None or chance < SIGNIFICANCE_LEVEL for chance in chances)


def sentences(rows: Sequence[Row]) -> list[str]:
    """Give the verdict of a run without benchmarks: its last round, else its best model, against the reference."""
    if not rows:
        return []
    rounds = [row for row in rows if re.fullmatch(r"round-\d+", row["model"])]
    row = rounds[-1] if rounds else min(rows, key=lambda one: one["loss"])
    name, against = in_prose(row["model"]), row.get("against")
    if against is None:
        return [f"On the validation examples, {name} has a loss of {row['loss']:.4f} nats per token."]
    other, (low, high) = in_prose(row["reference"]), against["interval"]
    if against["p_items"] >= SIGNIFICANCE_LEVEL:
        opening = f"No significant difference in validation loss between {name} and {other}"
    else:
        better = "lower" if against["difference"] < 0 else "higher"
        opening = f"{name} has a significantly {better} validation loss than {other}"
    difference = f"{against['difference']:+.4f} nats per token, 95% interval {low:+.4f} to {high:+.4f}"
    chance = "p < 0.001" if against["p_items"] < 0.001 else f"p = {against['p_items']:.3f}"
    return [f"{opening}: {difference}, {chance}."]
