"""Some run directories -> rows of one leaderboard, in the form that a comparison of methods has."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError
from weakdriven.eval.statistics import Scores, compare_seeds, interval_of, score_of
from weakdriven.report.compare.table import COSTS
from weakdriven.report.format import CONTROLS, in_prose
from weakdriven.report.read import current_manifests
from weakdriven.report.results import Row, costs, evaluated_models, scores
from weakdriven.runs.directory import BENCHMARK_SCORES
from weakdriven.runs.files import read_json

CAPTION = (
    "Score: mean accuracy in percent over the benchmarks that all runs share, one run each. Brackets: 95% bootstrap "
    "interval over problems. Difference: from the reference, in points, on the same problems. p (items): paired test "
    "over problems, not corrected for the number of rows. Time: from the base model on, without evaluation."
)


def runs_compared(runs: Sequence[Path], against: str | None) -> Row:
    """Every evaluated model of every run, on the benchmarks that all of them share.

    Args:
        against: Label of the reference; unset: the SFT control of the first run that has one, else the first row.
    """
    names, models, found, missing = run_names(runs), dict[str, tuple[Path, str]](), dict[str, Scores](), list[str]()
    for run, name in names.items():
        each = evaluated_models(run)
        missing += [] if each else [f"{name}: no model has been evaluated"]
        for model in sorted(each):
            label = f"{name}: {in_prose(model)}"
            models[label] = run, model
            if (complete := each[model]) is None:
                missing.append(f"{label}: not all of its benchmarks are finished")
            else:
                found[label] = scores([complete])
    facts: Row = {"recipe": ", ".join(names.values()), "missing": missing, "caption": CAPTION}
    if not found:
        return facts | {"against": "", "rows": []}
    common = common_benchmarks(models, found)
    controls = (label for control in CONTROLS for label in found if models[label][1] == control)
    reference = against or next(controls, next(iter(found)))
    if reference not in found:
        raise UserError(f"--against: {reference} is none of them; expected one of {', '.join(found)}.")
    shared: dict[str, Scores] = {label: {name: one[name] for name in common} for label, one in found.items()}
    rows = [model_row(label, *models[label], shared, reference) for label in shared]
    return facts | {"against": reference, "rows": rows}


def run_names(runs: Sequence[Path]) -> dict[Path, str]:
    """Each run's folder name, with as many of the folders above it as no other run shares."""
    parts = {run: run.resolve().parts for run in runs}
    ends = {run: ["/".join(path[-length:]) for length in range(1, len(path))] for run, path in parts.items()}
    count = Counter(end for each in ends.values() for end in each)
    return {run: next((end for end in each if count[end] == 1), str(run)) for run, each in ends.items()}


def common_benchmarks(models: dict[str, tuple[Path, str]], found: dict[str, Scores]) -> list[str]:
    """Benchmarks on which all models were evaluated with the same items, version and number of samples."""

    def terms(label: str, name: str) -> tuple[Any, ...]:
        run, model = models[label]
        one = read_json(run / "eval" / model / name / BENCHMARK_SCORES)
        return tuple(one.get(key) for key in ("version", "items", "golds", "samples"))

    first, *others = found
    common = [
        name
        for name in found[first]
        if all(name in found[other] and terms(other, name) == terms(first, name) for other in others)
    ]
    if not common:
        raise UserError(
            "The runs share no benchmark with the same items and version; evaluate them alike, or give fewer runs."
        )
    return common


def model_row(label: str, run: Path, model: str, found: dict[str, Scores], reference: str) -> Row:
    own = found[label]
    row: Row = {"method": label, "seeds": ["1"], "score": score_of(own), "interval": interval_of(own)}
    if label != reference:
        row["against"] = vars(compare_seeds(found[reference], own))
    return row | dict.fromkeys(COSTS) | costs(model, current_manifests(run))
