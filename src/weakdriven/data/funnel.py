"""Count rows on their way into a training set: seen, kept, or dropped by reason."""

from dataclasses import dataclass, field
from typing import Any

EXAMPLES = 5
"""Dropped rows listed per reason."""
LONGEST_DETAIL = 200


@dataclass
class Funnel:
    """Counts of one step.

    >>> funnel = Funnel()
    >>> funnel.keep()
    >>> funnel.drop("wrong answer", "7", "found 3, expected 4")
    >>> funnel.to_json()["dropped"]
    {'wrong answer': {'rows': 1, 'first': [{'id': '7', 'detail': 'found 3, expected 4'}]}}
    """

    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    """First few rows of each reason."""

    @property
    def seen(self) -> int:
        return self.kept + sum(self.dropped.values())

    def keep(self) -> None:
        self.kept += 1

    def drop(self, reason: str, id: str, detail: str = "") -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        named = self.first.setdefault(reason, [])
        if len(named) < EXAMPLES:
            detail = detail.encode(errors="backslashreplace").decode()
            long = len(detail) > LONGEST_DETAIL
            named.append({"id": id, "detail": detail[: LONGEST_DETAIL - 3] + "..." if long else detail})

    def merge(self, other: "Funnel") -> None:
        """Add the counts of the next block of rows at the same step."""
        self.kept += other.kept
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
            self.first[reason] = [*self.first.get(reason, []), *other.first.get(reason, [])][:EXAMPLES]

    def then(self, after: "Funnel") -> "Funnel":
        """Join both steps into one; `after` saw the rows that this step kept."""
        both = Funnel()
        both.merge(self)
        both.merge(after)
        both.kept = after.kept
        return both

    def to_json(self) -> dict[str, Any]:
        """Return plain values, the most frequent reason first."""
        reasons = sorted(self.dropped, key=lambda reason: (-self.dropped[reason], reason))
        dropped = {reason: {"rows": self.dropped[reason], "first": self.first.get(reason, [])} for reason in reasons}
        return {"in": self.seen, "kept": self.kept, "dropped": dropped}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Funnel":
        dropped = value["dropped"].items()
        rows, first = ({reason: one[name] for reason, one in dropped} for name in ("rows", "first"))
        return cls(value["kept"], rows, first)
