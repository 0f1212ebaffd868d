"""The comparisons of docs/evidence/comparisons.yaml, and every number that a page quotes.

A page quotes a number as `-1.3 [-2.0, -0.6]<!--wmss-->`, where the invisible comment is its name. Names are those of
the list, or STUDY/METHOD for a method against the SFT restart of its own runs. Their forms:

    wmss                      mean over the students, with its interval
    wmss gemma-3-270m         the difference of that student
    wmss p                    p-value with students as a random factor
    core/sft_active of wmss   ratio of two means, in percent
    score core/wmss STUDENT   accuracy in percent; `epochs core/wmss STUDENT` its cost in epochs of SFT
    time core/wmss STUDENT    its time relative to two epochs of SFT
    seen FILE MODEL STATISTIC of what `weakdriven diagnose` measured
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.evidence.diagnosed import mechanism
from research.evidence.results import STUDENTS, Trained, on_test_items
from weakdriven.eval.statistics import Scores, interval_of, score_of, t_test
from weakdriven.report.format import MISSING, with_brackets
from weakdriven.runs.yaml import read_yaml

LIST = Path(__file__).parents[2] / "docs/evidence/comparisons.yaml"
QUOTED = re.compile(r"(?P<shown>[^\s|(]+(?: \[[^]]*\])?)<!--(?P<name>[\w./ -]+)-->")


@dataclass(frozen=True)
class Difference:
    """One method minus another, item by item."""

    by_student: dict[str, Scores]

    @property
    def mean(self) -> float:
        return float(np.mean([score_of(one) for one in self.by_student.values()]))

    @property
    def chance(self) -> float | None:
        """p-value of a t-test over students, with the null hypothesis that the mean over all students is 0."""
        return t_test(np.array([score_of(one) for one in self.by_student.values()]))

    def shown(self, student: str = "") -> str:
        """Format the difference with its interval, for one student or the mean of all."""
        if student and student not in self.by_student:
            return MISSING
        one = Difference({student: self.by_student[student]}) if student else self
        return with_brackets(one.mean, interval_of(*one.by_student.values()), "+")


class Numbers:
    """All numbers of tables and pages, computed from the result files on demand."""

    def __init__(self, results: list[dict[str, Any]], seen: list[dict[str, Any]], listed: Mapping[str, Any]):
        self.trained = {(one.student, f"{one.study}/{one.method}"): one for one in on_test_items(results)}
        self.listed = listed
        self.seen = {one["file"]: one for one in seen}

    def difference(self, name: str) -> Difference:
        what = self.listed.get(name) or {"of": name}
        found = {}
        for student in STUDENTS:
            of, to = (
                place.get(student) if isinstance(place, dict) else place for place in (what["of"], what.get("to"))
            )
            one, other = self.trained.get((student, of)), self.trained.get((student, to))
            if one is not None and (other is not None or "to" not in what):
                scores = paired(one, other, own="own" in what)
                kept = [key for key in scores if key not in what.get("without", ())]
                found[student] = {key: scores[key] for key in kept}
        if not found:
            raise SystemExit(f"{name}: no comparison of {LIST.name}, and no result of that name.")
        return Difference(found)

    def text(self, name: str) -> str:
        """Return a number by its name; see the top of this file."""
        first, *rest = name.split()
        match first, rest:
            case "mechanism", [fact]:
                return mechanism(self.seen)[fact]
            case "score", [place, student]:
                return f"{100 * score_of(self.trained[student, place].scores):.1f}"
            case "epochs", [place, student]:
                return f"{self.trained[student, place].epochs:.1f}"
            case "time", [place, student]:
                return f"{self.trained[student, place].over_sft:.2f}"
            case "seen", [file, model, statistic]:
                return f"{self.seen[file]['models'][model][statistic]['mean']:.3f}"
            case _, ["of", whole]:
                return f"{100 * self.difference(first).mean / self.difference(whole).mean:.0f}%"
            case _, ["p"]:
                return f"{self.difference(first).chance:.2f}"
            case _:
                return self.difference(first).shown(*rest)

    def quoted(self, page: str) -> str:
        """Return the page with every quoted number computed again."""
        return QUOTED.sub(lambda match: f"{self.text(match['name'])}<!--{match['name']}-->", page)

    def row(self, name: str) -> list[str]:
        """Return a table row: what is compared, each student's difference, their mean, and its p-value."""
        found = self.difference(name)
        chance = MISSING if found.chance is None else f"{found.chance:.2f}"
        return [self.listed[name]["text"], *(found.shown(student) for student in STUDENTS), found.shown(), chance]


def read_comparisons() -> dict[str, Any]:
    return read_yaml(LIST)


def paired(one: Trained, other: Trained | None, *, own: bool) -> Scores:
    """Return differences, (S, P), for the seeds that both have; by default, to the SFT restart of the same runs.

    Args:
        own: Compare both methods relative to the restart of their own runs, for runs of different sessions.
    """
    if other is None:
        return one.differences
    seeds = [seed for seed in one.seeds if seed in other.seeds]
    a, b = (
        {name: values_SP[[each.seeds.index(seed) for seed in seeds]] for name, values_SP in scores.items()}
        for each, scores in (
            (one, one.differences if own else one.scores),
            (other, other.differences if own else other.scores),
        )
    )
    return {name: a[name] - b[name] for name in a}
