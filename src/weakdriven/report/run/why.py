"""Why a selection (WD-DS) came out as it did, and why one example is in it or not, as plain values. N = examples."""

import difflib
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pyarrow import compute

from weakdriven.errors import UserError
from weakdriven.report.format import mapping, model_at, number, share_words, shorten, weak_of
from weakdriven.report.run.columns import Columns, read_columns, read_examples, read_row
from weakdriven.runs.directory import ACTIVE, PLAN_FILE, RECIPE_FILE, RUN_FILE, SCORES
from weakdriven.runs.manifest import MANIFEST
from weakdriven.runs.yaml import read_yaml
from weakdriven.wmss.selection import draws, selection_weights

LETTERS = {"consolidation": "alpha", "difficulty": "beta", "repair": "gamma"}
FALL, RISE = "fall of the entropy from weak to strong", "rise of the entropy from weak to strong"
TERMS = {
    "paper": (FALL, "entropy under the strong model", RISE),
    "official": ("entropy under the weak model", FALL, RISE),
}
SCORED = ("tokens", "entropy", "nll", "target_probability")
LOOKED_AT = 2000
"""Ids compared with an unknown one; comparing is slow and ten million ids are possible."""


@dataclass(frozen=True)
class Selection:
    """A finished selection and the scores it was drawn from, row by row in the order of the data."""

    run: Path
    turn: int
    settings: dict[str, Any]
    counters: dict[str, Any]
    active: Columns
    weak_entropy: np.ndarray
    strong_entropy: np.ndarray
    truncated: np.ndarray
    weak: str
    """Name of the weak model."""
    note: str
    """What makes the explanation doubtful; empty if nothing does."""

    @property
    def models(self) -> tuple[str, str]:
        return self.weak, model_at(self.turn)

    @property
    def draws(self) -> int:
        """How many times an example was drawn, repeats included."""
        return draws(len(self.active.ids), self.settings["multiplier"])

    def terms(self, rows: list[int] | None = None) -> np.ndarray:
        """The three weighted terms of every example or of some, (3, N)."""
        weights = {name: self.settings[name] for name in (*LETTERS, "formula")}
        return selection_weights(self.weak_entropy, self.strong_entropy, rows=rows, **weights)


def load_selection(run: Path, turn: int | None = None) -> Selection:
    """The selection of a round, by default of the last that has one, with its scores."""
    turn, outdated = find_round(run, turn)
    stage, strong = f"round-{turn}/active", model_at(turn)
    manifest = _read_json(run / stage / MANIFEST)
    weak = weak_of(turn, manifest)
    settings = mapping(manifest.get("settings"))
    if lacking := [name for name in (*LETTERS, "formula", "multiplier") if name not in settings]:
        raise UserError(
            f"{stage}/{MANIFEST} does not say {', '.join(lacking)}; remove the folder {stage} and run the recipe again."
        )
    active = read_columns(run, f"{stage}/{ACTIVE}", ["probability", "draws"])
    weak_scores = _scores(run, weak, ["entropy"], active, stage)
    strong_scores = _scores(run, strong, ["entropy", "truncated"], active, stage)
    note = f"The recipe has changed since {stage} was drawn; run it again to draw anew." if outdated else ""
    counters = mapping(manifest.get("counters"))
    columns = (weak_scores["entropy"], strong_scores["entropy"], strong_scores["truncated"])
    selection = Selection(run, turn, settings, counters, active, *columns, weak, note)
    if _follows(selection):
        return selection
    note += f" The probabilities in {stage} do not follow from the entropies that are there now; run the recipe again."
    return replace(selection, note=note.strip())


def _scores(run: Path, model: str, names: list[str], active: Columns, stage: str) -> dict[str, np.ndarray]:
    """Score columns of a model, if they are of the examples that were drawn from."""
    columns = read_columns(run, f"entropy/{model}/{SCORES}", names)
    if not columns.ids.equals(active.ids):
        raise UserError(
            f"entropy/{model} scores {len(columns.ids):,} examples and {stage} draws from {len(active.ids):,}, "
            "and their ids are not the same; the data has changed between them, so run the recipe again."
        )
    return columns.values


def find_round(run: Path, turn: int | None = None) -> tuple[int, bool]:
    """The round to explain, and whether its selection belongs to an older recipe."""
    if not (run / RUN_FILE).is_file():
        raise UserError(f"{run} is not a run directory: it has no {RUN_FILE}; give the folder that a run wrote.")
    keys = {
        int(found[1]): _read_json(path).get("key")
        for path in run.glob(f"round-*/active/{MANIFEST}")
        if (found := re.fullmatch(r"round-([1-9]\d*)", path.parts[-3]))
    }
    if not keys:
        raise UserError(_why_none(run))
    plan = _read_json(run / PLAN_FILE)
    current = [t for t, key in keys.items() if not plan or plan.get(f"round-{t}/active") == key]
    if turn is None:
        turn = max(current or keys)
    if turn not in keys:
        have = ", ".join(map(str, sorted(keys)))
        raise UserError(f"{run} has no selection of round {turn}; there are those of round {have}: give --round.")
    return turn, turn not in current


def summarise(selection: Selection, top: int = 5) -> dict[str, Any]:
    """The selection in numbers: what was counted when it was drawn, and what its files add."""
    weak_N, strong_N = selection.weak_entropy, selection.strong_entropy
    change_N, drawn_N = strong_N - weak_N, selection.active.values["draws"]
    hardest = _top(strong_N, top)
    regressed = [row for row in _top(change_N, top) if change_N[row] > 0]
    examples = _examples(selection, sorted({*hardest, *regressed}))
    return {
        "round": selection.turn,
        "models": selection.models,
        "settings": selection.settings,
        "counters": selection.counters,
        "examples": len(weak_N),
        "draws": selection.draws,
        "active": int((drawn_N > 0).sum()),
        "weak_entropy": float(weak_N.mean()),
        "strong_entropy": float(strong_N.mean()),
        "change": float(change_N.mean()),
        "truncated_active": int(((selection.truncated > 0) & (drawn_N > 0)).sum()),
        "hardest": [examples[row] for row in hardest],
        "regressed": [examples[row] for row in regressed],
        "note": selection.note,
    }


def describe_example(selection: Selection, example_id: str) -> dict[str, Any]:
    """Everything that decided whether one example was drawn."""
    row = selection.active.ids.index(example_id).as_py()
    if row < 0:
        raise UserError(_unknown_id(selection, example_id))
    strong_N, probability_N = selection.strong_entropy, selection.active.values["probability"]
    p = float(probability_N[row])
    weak, strong = (read_row(selection.run, f"entropy/{name}/{SCORES}", SCORED, row) for name in selection.models)
    facts: dict[str, Any] = {
        "round": selection.turn,
        "models": selection.models,
        "settings": selection.settings,
        "weak": weak,
        "strong": strong,
        "terms": dict(zip(LETTERS, selection.terms([row])[:, 0].tolist(), strict=True)),
        "probability": p,
        "times_uniform": p * len(probability_N),
        "harder_than": float((strong_N < strong_N[row]).mean()),
        "likelier_than": float((probability_N < p).mean()),
        "examples": len(probability_N),
        "all_draws": selection.draws,
        "expected_draws": selection.draws * p,
        "chance": chance_of_any(p, selection.draws),
        "truncated": bool(selection.truncated[row] > 0),
        "note": selection.note,
        **_examples(selection, [row], whole=True)[row],
    }
    return facts | {"verdict": verdict(facts)}


def chance_of_any(probability: float, count: int) -> float:
    """Chance to be drawn at least once in `count` draws, exact also where it is tiny.

    >>> round(chance_of_any(0.25, 4), 6)
    0.683594
    """
    return 1.0 if probability >= 1 else -math.expm1(count * math.log1p(-probability))


def verdict(facts: dict[str, Any]) -> str:
    """One sentence: never possible, or chosen or not by chance, with that chance and where the weight came from."""
    if facts["probability"] == 0:
        silent = max(facts[role]["entropy"] for role in ("weak", "strong")) <= 0
        why = "both entropies are zero" if silent else "all three of its terms are zero with these weights"
        return f"It could never be chosen: {why}, so its weight is zero."
    chance = f"its chance to be drawn at least once in {facts['all_draws']:,} draws was {share_words(facts['chance'])}"
    (largest, value), whole = max(facts["terms"].items(), key=lambda term: term[1]), sum(facts["terms"].values())
    if whole:
        words = dict(zip(LETTERS, TERMS[facts["settings"]["formula"]], strict=True))[largest]
        source = f"{share_words(value / whole)} of its weight comes from {largest}, the {words}"
    else:
        source = "every weight in the data is zero, so all examples were equally likely"
    return f"{'Chosen' if facts['draws'] else 'Not chosen'}, by chance: {chance}; {source}."


def _follows(selection: Selection) -> bool:
    """Whether the stored probabilities are those that the scores give now."""
    weight_N = selection.terms().sum(0)
    total, stored_N = weight_N.sum(), selection.active.values["probability"]
    return np.allclose(stored_N, weight_N / total if total > 0 else 1 / len(weight_N), rtol=1e-6, atol=0)


def _why_none(run: Path) -> str:
    try:
        recipe = mapping(read_yaml(run / RECIPE_FILE))
    except (OSError, ValueError, yaml.YAMLError):
        recipe = {}
    if mapping(recipe.get("selection")).get("enabled") is False:
        return f"{run} selects nothing: its recipe has selection.enabled: false; set it to true and run it again."
    if recipe.get("method", "wmss") != "wmss":
        return f"{run} selects nothing: its recipe has method: {recipe['method']}, and only wmss selects."
    return f"{run} has no finished selection yet; make one with `weakdriven select`, or let `weakdriven run` go on."


def _unknown_id(selection: Selection, example_id: str) -> str:
    ids = selection.active.ids
    likely = ids.slice(0, LOOKED_AT).to_pylist()
    for end in range(len(example_id), 0, -1):
        options = compute.MatchSubstringOptions(example_id[:end])
        same_start = ids.filter(compute.call_function("starts_with", [ids], options))
        if len(same_start):
            likely = same_start.slice(0, LOOKED_AT).to_pylist()
            break
    close = difflib.get_close_matches(example_id, likely, n=3)
    told = f"No example of round {selection.turn} has the id {example_id!r}"
    told += f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    told += f" Its {len(ids):,} ids look like {', '.join(map(repr, ids.slice(0, 3).to_pylist()))}."
    counters = mapping(_read_json(selection.run / "data" / MANIFEST).get("counters"))
    reasons = {
        "dropped_long_prompts": "the prompt fills data.max_length",
        "dropped_empty_completions": "no completion",
        "dropped_held_out": "a benchmark's question",
    }
    left_out = [f"{count:,} ({words})" for name, words in reasons.items() if (count := number(counters.get(name)))]
    if left_out:
        told += f" Rows that were left out of the data, of which it may be one: {', '.join(left_out)}."
    return told


def _top(values_N: np.ndarray, count: int) -> list[int]:
    """Rows of the largest values, largest first."""
    count = min(count, len(values_N))
    if count <= 0:
        return []
    rows = np.sort(np.argpartition(-values_N, count - 1)[:count])
    return rows[np.argsort(-values_N[rows], kind="stable")].tolist()


def _examples(selection: Selection, rows: list[int], whole: bool = False) -> dict[int, dict[str, Any]]:
    """Row number to id, entropies, draws and text; the text on one short line unless `whole`."""
    ids = selection.active.ids_of(rows)
    texts = read_examples(selection.run, ids)
    return {
        row: {
            "id": ids[row],
            "weak_entropy": float(selection.weak_entropy[row]),
            "strong_entropy": float(selection.strong_entropy[row]),
            "draws": int(selection.active.values["draws"][row]),
            "prompt": _prompt(texts.get(row, {}), whole),
            "completion": _line(texts.get(row, {}).get("completion"), whole),
        }
        for row in rows
    }


def _prompt(example: dict[str, Any], whole: bool) -> str:
    """All messages, or the last one on one line."""
    messages = example.get("prompt")
    if whole and isinstance(messages, list):
        parts = (mapping(message) for message in messages)
        return "\n".join(f"{part.get('role')}: {part.get('content')}" for part in parts)
    return _line(shorten(messages, 400), whole)


def _line(text: Any, whole: bool) -> str:
    text = "" if text is None else str(text)
    return text if whole else shorten(" ".join(text[:400].split()), 80)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
