"""Completions of all models for some items, and the share of right ones by level."""

from typing import Any

from weakdriven.report.format import mapping, number
from weakdriven.report.run.verdict import control_of, final_model


def level_table(benchmark: str, scores: dict[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Level to model to share of right answers."""
    table: dict[str, dict[str, float]] = {}
    for (name, model), one in scores.items():
        for level, cell in mapping(one.get("levels") if name == benchmark else None).items():
            correct, items = (number(mapping(cell).get(key)) for key in ("correct", "items"))
            answers = number(mapping(cell).get("answers")) or items  # several to each item
            table.setdefault(level, {}).update({model: correct / answers} if answers and correct is not None else {})
    return dict(sorted(table.items(), key=lambda entry: (len(entry[0]), entry[0])))


def sample_items(benchmark: str, data: dict[str, Any]) -> list[dict[str, Any]]:
    """Items on which every model was evaluated; as many wins of WMSS as losses, so that the choice is not biased."""
    by_model = {
        model: one["first"] for (name, model), one in data["samples"].items() if name == benchmark and one["first"]
    }
    if not by_model:
        return []
    shared = [item for item in next(iter(by_model.values())) if all(item in rows for rows in by_model.values())]
    chosen, ours, theirs = shared[:4], by_model.get(final_model(data) or ""), by_model.get(control_of(data))
    if ours and theirs:
        kinds: dict[tuple[bool, bool], list[str]] = {(a, b): [] for a in (True, False) for b in (True, False)}
        for item in shared:
            kinds[bool(ours[item].get("correct")), bool(theirs[item].get("correct"))].append(item)
        each = min(2, len(kinds[True, False]), len(kinds[False, True]))
        chosen = kinds[True, False][:each] + kinds[False, True][:each] + kinds[True, True][:1] + kinds[False, False][:1]
    return [{"benchmark": benchmark, "answers": {m: rows[item] for m, rows in by_model.items()}} for item in chosen]
