"""The training set as `weakdriven data build` made it: one line for each reason to drop a row."""

from typing import Any

from weakdriven.report.format import mapping, number


def training_set(funnel: dict[str, Any]) -> dict[str, Any]:
    """The part of funnel.json that the page shows; empty if there is none.

    >>> training_set({"in": 4, "kept": 3, "dropped": {"no gold": {"rows": 1, "first": [{"id": "7", "detail": ""}]}}})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'domain': '', 'sources': [], 'teacher': '', 'rows': 3,
     'tables': [('Rows', 4, 3, [{'reason': 'no gold', 'rows': 1, 'share': 0.25, 'first': ['7']}])]}
    """
    if number(funnel.get("in")) is None:
        return {}
    tables = [("Rows", funnel)]
    if completions := mapping(funnel.get("completions")):
        tables.append(("Completions of the teacher", completions))
    sources = funnel.get("sources")
    return {
        "domain": str(funnel.get("domain") or ""),
        "sources": list(map(str, sources)) if isinstance(sources, list) else [],
        "teacher": str(mapping(funnel.get("teacher")).get("model") or ""),
        "rows": number(funnel.get("rows", funnel.get("kept"))),
        "tables": [(name, *_table(one)) for name, one in tables],
    }


def _table(funnel: dict[str, Any]) -> tuple[float | None, float | None, list[dict[str, Any]]]:
    seen = number(funnel.get("in"))
    lines = []
    for reason, dropped in mapping(funnel.get("dropped")).items():
        rows, first = number(mapping(dropped).get("rows")), mapping(dropped).get("first")
        first = first if isinstance(first, list) else []
        named = [": ".join(filter(None, map(str, mapping(one).values()))) for one in first]
        lines.append({"reason": reason, "rows": rows, "share": (rows or 0) / seen if seen else None, "first": named})
    return seen, number(funnel.get("kept")), lines
