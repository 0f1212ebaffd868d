"""Compare two models item by item: which items each solved, and how much of the difference is missing answers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from weakdriven.report.format import in_prose

Answer = dict[str, Any]
LARGE = 1 / 3
"""The verdict mentions missing answers if they make up at least this share of the difference."""


@dataclass(frozen=True)
class Wins:
    """Counts of the items that both models were evaluated on, by the first sample of each."""

    both: int
    only_ours: int
    only_theirs: int
    neither: int
    ours_missing: int
    """Items that only the other model solved and where ours gave no answer or was cut off."""
    theirs_missing: int

    @property
    def share(self) -> float:
        """Share of the difference due to items where the losing model gave no answer; 0 if there is no difference."""
        difference = self.only_theirs - self.only_ours
        return (self.ours_missing - self.theirs_missing) / difference if difference else 0.0


def is_missing(answer: Answer) -> bool:
    """Return whether a completion has no answer to grade or reached the length limit."""
    return answer.get("answer") is None or answer.get("finish") == "length"


def count_wins(data: dict[str, Any], benchmarks: Iterable[str], ours: str, theirs: str) -> Wins | None:
    """Count wins over shared items; None if there are none, or the samples do not record how they ended."""
    cells, missing = {(a, b): 0 for a in (True, False) for b in (True, False)}, [0, 0]
    for benchmark in benchmarks:
        own, other = (data["samples"].get((benchmark, model), {}).get("first", {}) for model in (ours, theirs))
        for a, b in ((own[item], other[item]) for item in own if item in other):
            if not all("answer" in one and "finish" in one for one in (a, b)):
                return None
            right = bool(a.get("correct")), bool(b.get("correct"))
            cells[right] += 1
            missing[0] += right == (False, True) and is_missing(a)
            missing[1] += right == (True, False) and is_missing(b)
    if not any(cells.values()):
        return None
    return Wins(cells[True, True], cells[True, False], cells[False, True], cells[False, False], *missing)


def missing_words(wins: Wins | None, ours: str, theirs: str) -> str:
    """Say how many answers are missing if they make up a third or more of the difference; else return nothing."""
    if wins is None or wins.share < LARGE:
        return ""
    us, them = in_prose(ours), in_prose(theirs)
    if wins.only_theirs > wins.only_ours:
        loser, winner, lost, missing, back = us, them, wins.only_theirs, wins.ours_missing, wins.theirs_missing
    else:
        loser, winner, lost, missing, back = them, us, wins.only_ours, wins.theirs_missing, wins.ours_missing
    part = "all" if wins.share >= 0.995 else f"{100 * wins.share:.0f}%"
    return (
        f"Missing answers make up {part} of this difference: in {missing:,} of the {lost:,} items that only {winner} "
        f"solved, {loser} gave no answer in the required form or was cut off (the reverse: {back:,})."
    )


def sample_items(benchmark: str, data: dict[str, Any], ours: str, theirs: str) -> list[dict[str, Any]]:
    """Choose items on which every model was evaluated, with equally many wins and losses of WMSS to avoid a bias."""
    models = {model: one["first"] for (name, model), one in data["samples"].items() if name == benchmark}
    models = {model: rows for model, rows in models.items() if rows}
    if not models:
        return []
    shared = [item for item in next(iter(models.values())) if all(item in rows for rows in models.values())]
    chosen, own, other = shared[:4], models.get(ours), models.get(theirs)
    if own and other:
        kinds: dict[tuple[bool, bool], list[str]] = {(a, b): [] for a in (True, False) for b in (True, False)}
        for item in shared:
            kinds[bool(own[item].get("correct")), bool(other[item].get("correct"))].append(item)
        each = min(2, len(kinds[True, False]), len(kinds[False, True]))
        chosen = kinds[True, False][:each] + kinds[False, True][:each] + kinds[True, True][:1] + kinds[False, False][:1]
    return [{"benchmark": benchmark, "answers": {m: rows[item] for m, rows in models.items()}} for item in chosen]
