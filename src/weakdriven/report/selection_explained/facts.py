"""Numbers behind a selection (WD-DS) and behind the choice of one example, as plain values. N = examples."""

import difflib
import math
from typing import Any

import numpy as np
from pyarrow import compute

from weakdriven.errors import UserError
from weakdriven.report.files import read_examples, read_object, read_row
from weakdriven.report.format import mapping, number, share_words, shorten
from weakdriven.report.selection_explained.load import LETTERS, Selection
from weakdriven.runs.directory import SCORES
from weakdriven.runs.manifest import MANIFEST

FALL, RISE = "fall of the entropy from weak to strong", "rise of the entropy from weak to strong"
TERMS = {
    "paper": (FALL, "entropy under the strong model", RISE),
    "official": ("entropy under the weak model", FALL, RISE),
}
LOOKED_AT = 2000
"""Ids compared with an unknown one; comparing is slow and ten million ids are possible."""


def summarise(selection: Selection, top: int = 5) -> dict[str, Any]:
    """The selection in numbers: what was counted when it was drawn, and what its files add."""
    weak_N, strong_N = selection.weak_entropy, selection.strong_entropy
    change_N, drawn_N = strong_N - weak_N, selection.active.values["draws"]
    hardest, regressed = (np.argsort(-values_N, kind="stable")[:top].tolist() for values_N in (strong_N, change_N))
    regressed = [row for row in regressed if change_N[row] > 0]
    examples = _examples(selection, sorted({*hardest, *regressed}))
    return {
        "round": selection.round_number,
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
    scored = ("tokens", "entropy", "nll", "target_probability")
    weak, strong = (read_row(selection.run, f"entropy/{name}/{SCORES}", scored, row) for name in selection.models)
    facts: dict[str, Any] = {
        "round": selection.round_number,
        "models": selection.models,
        "settings": selection.settings,
        "weak": weak,
        "strong": strong,
        "terms": dict(zip(LETTERS, selection.terms([row])[:, 0].tolist(), strict=True)),
        "probability": p,
        "times_uniform": p * len(probability_N),
        "harder_than": float((strong_N < strong_N[row]).mean()),
        "likelier_than": float((probability_N < p).mean()),
        "all_draws": selection.draws,
        "expected_draws": selection.draws * p,
        "chance": chance_of_any(p, selection.draws),
        "truncated": bool(selection.truncated[row] > 0),
        "note": selection.note,
        **_examples(selection, [row], whole=True)[row],
    }
    return facts | {"verdict": verdict(facts)}


def chance_of_any(probability: float, count: int) -> float:
    """Chance to be drawn at least once in `count` draws, exact also if it is tiny.

    >>> round(chance_of_any(0.25, 4), 6)
    0.683594
    """
    return 1.0 if probability >= 1 else -math.expm1(count * math.log1p(-probability))


def verdict(facts: dict[str, Any]) -> str:
    """One sentence: never possible, or chosen or not by chance, with that chance and the source of its weight."""
    if facts["probability"] == 0:
        silent = max(facts[role]["entropy"] for role in ("weak", "strong")) <= 0
        why = "both entropies are zero" if silent else "all three of its terms are zero with these weights"
        return f"It could never be chosen: {why}, so its weight is zero."
    chance = f"its chance of at least one of {facts['all_draws']:,} draws was {share_words(facts['chance'])}"
    (largest, value), whole = max(facts["terms"].items(), key=lambda term: term[1]), sum(facts["terms"].values())
    if whole:
        words = dict(zip(LETTERS, TERMS[facts["settings"]["formula"]], strict=True))[largest]
        source = f"{share_words(value / whole)} of its weight comes from {largest}, the {words}"
    else:
        source = "every weight in the data is zero, so all examples were equally likely"
    return f"{'Chosen' if facts['draws'] else 'Not chosen'}, by chance: {chance}; {source}."


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
    words = f"No example of round {selection.round_number} has the id {example_id!r}"
    words += f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    words += f" Its {len(ids):,} ids look like {', '.join(map(repr, ids.slice(0, 3).to_pylist()))}."
    counters = mapping(read_object(selection.run / "data" / MANIFEST).get("counters"))
    reasons = {
        "dropped_long_prompts": "the prompt fills data.max_length",
        "dropped_empty_completions": "no completion",
        "dropped_held_out": "a benchmark's question",
    }
    if left_out := [f"{count:,} ({why})" for name, why in reasons.items() if (count := number(counters.get(name)))]:
        words += f" It may be one of the rows that were left out of the data: {', '.join(left_out)}."
    return words


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
