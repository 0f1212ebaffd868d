"""The training set as `weakdriven data build` made it: one line for each reason to drop a row."""

from typing import Any


def training_set(funnel: dict[str, Any]) -> dict[str, Any]:
    """The part of funnel.json that the page shows; empty if there is none.

    >>> training_set({"in": 4, "kept": 3, "dropped": {"no gold": {"rows": 1, "first": [{"id": "7", "detail": ""}]}}})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'domain': '', 'sources': [], 'teacher': '', 'rows': 3,
     'tables': [('Rows', 4, 3, [{'reason': 'no gold', 'rows': 1, 'share': 0.25, 'first': ['7']}])]}
    """
    if not funnel:
        return {}
    steps = {"Rows": funnel, "Completions of the teacher": funnel.get("completions")}
    return {
        "domain": funnel.get("domain") or "",
        "sources": funnel.get("sources", []),
        "teacher": (funnel.get("teacher") or {}).get("model") or "",
        "rows": funnel.get("rows", funnel["kept"]),
        "tables": [(name, step["in"], step["kept"], _reasons(step)) for name, step in steps.items() if step],
    }


def _reasons(step: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "reason": reason,
            "rows": dropped["rows"],
            "share": dropped["rows"] / step["in"],
            "first": [": ".join(filter(None, row.values())) for row in dropped["first"]],
        }
        for reason, dropped in step["dropped"].items()
    ]
