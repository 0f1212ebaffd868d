"""Some run directories -> rows of one leaderboard, in the form that a comparison of methods has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError
from weakdriven.eval.statistics import Scores, compare_seeds, interval_of, score_of
from weakdriven.report.compare.table import scores_of
from weakdriven.report.format import CONTROLS, in_prose
from weakdriven.report.read import current_stages
from weakdriven.report.sweep.table import costs, manifests_of
from weakdriven.runs.directory import BENCHMARK_SCORES
from weakdriven.runs.files import read_json

Row = dict[str, Any]
CAPTION = (
    "Score: mean accuracy in percent over the benchmarks that all were asked alike, one run each. Brackets: 95% "
    "bootstrap interval over problems. Difference: to the reference, in points, on the same problems. p (items): other "
    "problems for these models; not corrected for the number of rows. Time: from the base model on, evaluation aside."
)


def runs_compared(runs: Sequence[Path], against: str | None) -> Row:
    """Every evaluated model of every run, on the benchmarks that all of them were asked alike.

    Args:
        against: Label of the reference; unset: the SFT control of the first run that has one, else the first row.
    """
    names = names_of(runs)
    models = {label: (run, model) for run, name in names.items() for label, model in evaluated(run, name)}
    found = {label: next(iter(scores_of(model, {"": run}).values()), {}) for label, (run, model) in models.items()}
    missing = [f"{name}: no model has been evaluated" for run, name in names.items() if not evaluated(run, name)]
    missing += [f"{label}: not all of its benchmarks are finished" for label, scores in found.items() if not scores]
    found = {label: scores for label, scores in found.items() if scores}
    facts: Row = {"recipe": ", ".join(names.values()), "missing": missing, "caption": CAPTION}
    if not found:
        return facts | {"against": "", "rows": []}
    common = common_benchmarks({label: models[label] for label in found}, found)
    reference = against or next(
        (label for control in CONTROLS for label in found if models[label][1] == control), next(iter(found))
    )
    if reference not in found:
        raise UserError(f"--against: {reference} is none of them; expected one of {', '.join(found)}.")
    scores: dict[str, Scores] = {label: {name: one[name] for name in common} for label, one in found.items()}
    rows = [row_of(label, *models[label], scores, reference) for label in scores]
    return facts | {"against": reference, "rows": rows}


def names_of(runs: Sequence[Path]) -> dict[Path, str]:
    """Each run's folder name, with as many of the folders above it as tell it from all others."""
    parts = {run: run.resolve().parts for run in runs}

    def name(run: Path) -> str:
        ends = ("/".join(parts[run][-length:]) for length in range(1, len(parts[run])))
        return next(
            (end for end in ends if sum("/".join(one).endswith(f"/{end}") for one in parts.values()) == 1), str(run)
        )

    return {run: name(run) for run in parts}


def evaluated(run: Path, name: str) -> list[tuple[str, str]]:
    """Label and name of each model with a score."""
    stages = [stage.split("/") for stage in sorted(current_stages(run)) if stage.startswith("eval/")]
    return [(f"{name}: {in_prose(model)}", model) for model in dict.fromkeys(parts[1] for parts in stages)]


def common_benchmarks(models: dict[str, tuple[Path, str]], found: dict[str, Scores]) -> list[str]:
    """Benchmarks that all models were asked with the same items, version and number of samples."""

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
            "The runs have no benchmark in common with the same items and version; evaluate them alike, or give fewer."
        )
    return common


def row_of(label: str, run: Path, model: str, scores: dict[str, Scores], reference: str) -> Row:
    own = scores[label]
    row: Row = {"method": label, "name": in_prose(model), "model": model, "seeds": ["1"]}
    row |= {"score": score_of(own), "interval": interval_of(own)}
    row["benchmarks"] = {name: float(values_SP.mean()) for name, values_SP in own.items()}
    if label != reference:
        row["against"] = vars(compare_seeds(scores[reference], own))
    empty = dict.fromkeys(("seconds", "seconds_after_m1", "trained_tokens", "generated_tokens", "peak_bytes"))
    return row | empty | costs(model, manifests_of(run))
