"""Prints the screens and verdicts of the second study (docs/evidence/protocol-2.md) as tables from its result files.

python -m research.evidence.gains [RESULTS] [--screen extrapolate_0.25]
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from research.evidence.collect import shares
from research.evidence.results import DRAWS, chance_of, holm, judged, read_results
from research.evidence.run import FOLDER
from weakdriven.eval.statistics import Scores, compare_seeds, interval_of, score_of
from weakdriven.report.compare.table import REFERENCE
from weakdriven.report.format import MISSING, markdown_table, with_brackets

SEEN = 500
"""Items of GSM8K and SVAMP that earlier work has used; hypotheses are tested on the rest."""
MATCHED, SCREEN = "sft_N", "the screen that passed"
HYPOTHESES = {
    "G1": ("rft", MATCHED),
    "G2": ("weak_negatives", MATCHED),
    "G3": ("weak_negatives", "rft"),
    "G4": ("weak_negatives", "own_negatives"),
    "G5": ("wdds_problems", "uniform_problems"),
    "G6": (SCREEN, "m1"),
}
STUDENTS = 2
FROZEN = "frozen_mixture"
"""The only screen that trains more than M1, so its reference is SFT with matched compute."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=FOLDER / "trial")
    parser.add_argument("--screen", default="", help="the screen that passed, if one did")
    args = parser.parse_args()
    results = read_results(args.results)
    for text in (screen_table(results), verdict_table(results, args.screen), cost_table(results)):
        print(text, end="\n\n")


def screen_table(results: list[dict[str, Any]]) -> str:
    """Tabulate the validation accuracy of every method, and its differences to M1 and to the restart."""
    rows = []
    for result in (one for one in results if one["study"] == "screens"):
        for method in result["methods"]:
            found = scores(result, method)
            cells = [
                result["file"],
                method,
                str(len(result["methods"][method]["seeds"])),
                f"{100 * score_of(found):.1f}",
            ]
            for other in ("m1", REFERENCE):
                apart = differences([result], result["student"], method, other)
                cells.append(f"{100 * score_of(apart):+.1f}" if apart else MISSING)
            rows.append(cells)
    return table(["file", "method", "seeds", "score", "over m1", f"over {REFERENCE}"], rows)


def verdict_table(results: list[dict[str, Any]], screen: str) -> str:
    """Tabulate each hypothesis on the new items; then, for description only, without AQuA and on the used items."""
    trials = [one for one in results if one["study"] == "trial"]
    students = sorted({one["student"] for one in trials})
    pairs = {name: named(of, to, screen) for name, (of, to) in HYPOTHESES.items()}
    found: dict[str, dict[str, Scores]] = {}
    for name, (of, to) in pairs.items():
        each = {student: differences(trials, student, of, to) for student in students}
        found[name] = {student: one for student, one in each.items() if one}
    against = {name: {x: against_zero(new(one)) for x, one in each.items()} for name, each in found.items()}
    chances = holm([chance_of(each.values()) for each in against.values()])
    rows = []
    for (name, each), chance in zip(found.items(), chances, strict=True):
        own = "; ".join(f"{x} {shown(new(one))}" for x, one in each.items())
        cells = [f"{name}: {' vs '.join(pairs[name])}", own or MISSING]
        if each:
            fresh = [new(one) for one in each.values()]
            mean = float(np.mean([score_of(one) for one in fresh]))
            word = judged(against[name], mean, interval_of(*fresh), chance, students=STUDENTS)
            if word == "gain" and pairs[name][1] == MATCHED:  # a longer SFT may be worse than M1
                to_m1 = [new(differences(trials, student, pairs[name][0], "m1")) for student in each]
                word = word if np.mean([score_of(one) for one in to_m1]) > 0 else "no gain over m1"
            kinds = (fresh, [without_letters(one) for one in fresh], [used(one) for one in each.values()])
            cells += [*(shown(*kind) for kind in kinds), MISSING if chance is None else f"{chance:.3f}", word]
        rows.append(cells + [MISSING] * (7 - len(cells)))
    return table(["hypothesis", "by student", "mean", "without AQuA", "used items", "p (Holm)", "verdict"], rows)


def cost_table(results: list[dict[str, Any]]) -> str:
    rows = [
        [
            one["file"],
            method,
            f"{facts['epochs']:.2f}",
            "" if not facts["cost"]["seconds"] else f"{facts['cost']['seconds']:.0f}",
        ]
        for one in results
        for method, facts in one["methods"].items()
    ]
    return table(["file", "method", "epochs of SFT", "seconds"], rows)


def named(of: str, to: str, screen: str) -> tuple[str, str]:
    return (screen or of, MATCHED if screen == FROZEN else to) if of == SCREEN else (of, to)


def scores(result: dict[str, Any], method: str, seeds: list[str] | None = None) -> Scores:
    each = result["methods"][method]["seeds"]
    return {
        name: np.array([shares(each[seed][name]["right"], fact) for seed in seeds or each])
        for name, fact in result["items"].items()
    }


def differences(results: list[dict[str, Any]], student: str, of: str, to: str) -> Scores:
    """Return differences, (S, P), for each benchmark, over seeds for which one file (one session) has both."""
    parts: list[Scores] = []
    for result in (one for one in results if one["student"] == student):
        methods: Mapping[str, Any] = result["methods"]
        longest = max((int(name[4:]) for name in methods if name[4:].isdecimal()), default=0)
        other = f"sft_{longest}" if to == MATCHED else to
        both = [methods[name]["seeds"] for name in (of, other) if name in methods]
        if seeds := [seed for seed in both[0] if seed in both[1]] if len(both) == 2 else []:
            one, two = scores(result, of, seeds), scores(result, other, seeds)
            parts.append({name: one[name] - two[name] for name in one})
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]} if parts else {}


def new(values: Scores) -> Scores:
    """Select the items that were not used before; of MAWPS and AQuA, all."""
    return {name: each[:, SEEN:] if each.shape[1] > SEEN else each for name, each in values.items()}


def used(values: Scores) -> Scores:
    return {name: each[:, :SEEN] for name, each in values.items()}


def without_letters(values: Scores) -> Scores:
    return {name: each for name, each in values.items() if name != "aqua"}


def against_zero(values: Scores) -> Any:
    return compare_seeds({name: np.zeros_like(each) for name, each in values.items()}, values, draws=DRAWS)


def shown(*groups: Scores) -> str:
    return with_brackets(float(np.mean([score_of(one) for one in groups])), interval_of(*groups), "+")


def table(titles: list[str], rows: list[list[str]]) -> str:
    return "\n".join(markdown_table(titles, rows))


if __name__ == "__main__":
    main()
