"""Read the files of a run into plain values. Missing files give empty values; damage becomes a problem on the page."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import UndefinedError

from weakdriven.errors import UserError
from weakdriven.report import format
from weakdriven.report.files import Columns, read_columns, read_examples, read_lines, read_object
from weakdriven.report.run.tokens import token_view
from weakdriven.report.uniformity import uniformity, uniformity_words
from weakdriven.report.validation import table, validation_rows
from weakdriven.runs import directory
from weakdriven.runs.manifest import MANIFEST

Manifests = dict[str, dict[str, Any]]
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, UndefinedError)
"""Errors caused by JSON values of unexpected types: someone changed the file."""
SCATTER_POINTS, BARS = 2000, 24


def accuracy_rows(run: Path) -> list[dict[str, Any]]:
    """Return one row per benchmark and evaluated model, weak to strong; a number that was not recorded is None."""
    return _accuracy(_read_scores(run, current_manifests(run), []))


def validation_table(run: Path) -> dict[str, Any]:
    """Return titles, cells and caption of the validation losses; empty if there are none."""
    return table(validation_rows(run, current_manifests(run)))


def current_stages(run: Path) -> set[str]:
    return set(current_manifests(run))


def current_manifests(run: Path) -> Manifests:
    """Return the manifests of the finished stages that belong to the present recipe."""
    return _current(read_plan(run, []), _read_manifests(run, []))


def load_run(run: Path) -> dict[str, Any]:
    problems: list[str] = []
    plan, manifests = read_plan(run, problems), _read_manifests(run, problems)
    current = _current(plan, manifests)
    recipe, data = run / directory.RECIPE_FILE, current.get("data", {})
    names = list(dict.fromkeys([*plan, *manifests]))
    done = sorted((name for name in names if name in current), key=lambda name: str(current[name].get("finished")))
    scores = _read_scores(run, current, problems)
    works = {name: directory.work_folder(run, name) / "work" for name in names}
    logs = {name: (run / name if name in current else works[name]) / directory.METRICS for name in names}
    return {
        "folder": str(run),
        "info": read_object(run / directory.RUN_FILE, problems),
        "recipe_text": recipe.read_text(encoding="utf-8", errors="replace") if recipe.is_file() else "",
        "examples": data.get("counters", {}).get("examples"),
        "funnel": read_object(run / "data" / directory.FUNNEL, problems) if data else {},
        "stages": [
            {"name": name, "status": _status(run, name, plan, manifests), "manifest": manifests.get(name, {})}
            for name in names
        ],
        "done": {name: current[name] for name in done},
        "metrics": {name: rows for name, log in logs.items() if (rows := read_lines(log, problems))},
        "rounds": _read_rounds(run, plan, current, problems),
        "scores": scores,
        "accuracy": _accuracy(scores),
        "samples": {(name, model): _read_samples(run / f"eval/{model}/{name}", problems) for name, model in scores},
        "validation": _read_validation(run, current, problems),
        "diagnosis": _read_diagnosis(run, manifests, problems),
        "tokens": token_view(run, problems),
        "problems": problems,
    }


def read_plan(run: Path, problems: list[str]) -> dict[str, str]:
    """Read the names and keys of the stages that the recipe asks for, in order; empty if they were not recorded."""
    plan = read_object(run / directory.PLAN_FILE, problems)
    if all(map(format.is_place, plan)):
        return plan
    problems.append(f"{directory.PLAN_FILE} names something that is not a stage, so missing stages are not listed.")
    return {}


def _read_manifests(run: Path, problems: list[str]) -> Manifests:
    folders = sorted(path.parent.relative_to(run).as_posix() for path in run.glob(f"**/{MANIFEST}"))
    # skip the work folders of unfinished stages, and the measurements of `select pairing` and `diagnose`
    ours = [name for name in folders if not name.startswith((".", "pairing/")) and name != directory.DIAGNOSTICS]
    manifests = {name: read_object(run / name / MANIFEST, problems) for name in ours}
    return dict(sorted(manifests.items(), key=lambda entry: str(entry[1].get("finished", "~"))))


def _current(plan: dict[str, str], manifests: Manifests) -> Manifests:
    """Keep the stages that belong to the present recipe; all of them if there is no plan."""
    return {name: one for name, one in manifests.items() if not plan or (one and plan.get(name) == one.get("key"))}


def _status(run: Path, name: str, plan: dict[str, str], manifests: Manifests) -> str:
    if plan and name not in plan:
        return format.LEFTOVER
    if manifests.get(name):
        return format.STALE if plan and manifests[name].get("key") != plan[name] else "done"
    return "unfinished" if (run / name).exists() or directory.work_folder(run, name).exists() else "not run yet"


def _read_rounds(run: Path, plan: dict[str, str], current: Manifests, problems: list[str]) -> list[dict[str, Any]]:
    """Return each round's pair of models, the points of its scatter plot and the bars of its histogram."""

    @cache
    def columns(stage: str, file: str, *names: str) -> Columns | None:
        if stage not in current or not (run / stage / file).is_file():
            return None
        try:
            return read_columns(run, f"{stage}/{file}", names)
        except UserError as error:
            problems.append(str(error))
            return None

    stages = plan or [path.relative_to(run).as_posix() for path in run.glob("round-*/*")]
    found = (re.fullmatch(r"round-([1-9]\d*)/(active|strong)", name) for name in stages)  # some only draw
    rounds: list[dict[str, Any]] = []
    for t in sorted({int(one[1]) for one in found if one}):
        stage, strong = f"round-{t}/active", format.model_at(t)
        weak = format.weak_of(t, current.get(stage), current.get(f"round-{t}/strong"))
        drawn = columns(stage, directory.ACTIVE, "probability", "draws")
        shown: dict[str, Any] = {"points": [], "bars": odds_bars(**drawn.values) if drawn else [], "evenness": []}
        if drawn:
            multiplier = current[stage].get("settings", {}).get("multiplier", 1.0)
            even = uniformity(
                drawn.values["probability"], drawn.values["draws"], max(round(multiplier * len(drawn.ids)), 1)
            )
            shown["evenness"] = uniformity_words(even) if even else []
        entropies = [columns(f"entropy/{model}", directory.SCORES, "entropy") for model in (weak, strong)]
        if entropies[0] and entropies[1]:
            if all(one.ids.equals(entropies[0].ids) for one in (entropies[1], drawn) if one):
                shown |= sample_points(entropies[0], entropies[1], drawn)
            else:
                problems.append(f"{stage}: draw and entropies are of different examples, so no chart joins them.")
        rounds.append({"number": t, "weak": weak, "strong": strong, **shown})
    points = [point for one in rounds for point in one["points"]]
    wanted = {point["row"]: point["id"] for point in points}
    examples = read_examples(run, wanted)
    for point in points:
        point["question"] = format.shorten(examples.get(point["row"], {}).get("prompt"), 90)
    if (lost := len(wanted) - len(examples)) and (run / "data/examples.jsonl").is_file():
        problems.append(f"data/examples.jsonl: {lost:,} of {len(wanted):,} charted examples were not found.")
    return rounds


def sample_points(weak: Columns, strong: Columns, drawn: Columns | None) -> dict[str, Any]:
    """Sample at most `SCATTER_POINTS` examples before anything is built for them, and return both entropies of each."""
    weak_N, strong_N = weak.values["entropy"], strong.values["entropy"]
    rows = usable = np.flatnonzero(np.isfinite(weak_N) & np.isfinite(strong_N))
    if len(usable) > SCATTER_POINTS:
        rows = np.sort(np.random.default_rng(0).choice(usable, SCATTER_POINTS, replace=False))
    draws = drawn.values["draws"][rows].tolist() if drawn else [None] * len(rows)
    columns = zip(weak.ids_of(rows).items(), weak_N[rows].tolist(), strong_N[rows].tolist(), draws, strict=True)
    points = [{"row": row, "id": item, "weak": x, "strong": y, "draws": times} for (row, item), x, y, times in columns]
    return {"points": points, "usable": len(usable), "left_out": len(weak_N) - len(usable), "drawn": drawn is not None}


def odds_bars(probability: np.ndarray, draws: np.ndarray) -> list[dict[str, Any]]:
    """Compute a histogram of sampling probability / uniform probability, counting the chosen examples separately too.

    The last bar includes everything above it, so that one extreme example does not flatten the rest.
    """
    finite = np.isfinite(probability)
    if not finite.any():
        return []
    odds, chosen = probability[finite] * len(probability), draws[finite] > 0
    top = max(float(np.quantile(odds, 0.995)), 2.0)
    edges = np.linspace(0, top, BARS + 1)
    all_counts, chosen_counts = (np.histogram(np.minimum(part, top), edges)[0] for part in (odds, odds[chosen]))
    bars = zip(edges[:-1].tolist(), edges[1:].tolist(), all_counts.tolist(), chosen_counts.tolist(), strict=True)
    largest = float(odds.max())
    return [
        {"low": low, "high": high, "to": largest if high == top else high, "examples": count, "chosen": taken}
        for low, high, count, taken in bars
    ]


def _read_scores(run: Path, current: Manifests, problems: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the scores by (benchmark, model), in the order of `format.model_order`."""
    found = {
        (path.parts[-2], path.parts[-3]): path
        for path in run.glob(f"eval/*/*/{directory.BENCHMARK_SCORES}")
        if path.parent.relative_to(run).as_posix() in current
    }
    order = sorted(found, key=lambda pair: (pair[0], format.model_order(pair[1])))
    return {pair: one for pair in order if (one := read_object(found[pair], problems))}


def _accuracy(scores: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for (benchmark, model), one in scores.items():
        row: dict[str, Any] = {"model": model, "name": format.model_name(model), "benchmark": benchmark}
        row |= {key: one.get(key) for key in ("items", "correct", "accuracy")}
        row["answers"] = row["items"] and row["items"] * one.get("samples", 1)
        row["pass_at_k"] = {k: share for k, share in one.get("pass_at_k", {}).items() if k != "1"}
        row["low"], row["high"] = one.get("interval", (None, None))
        row["no_answer"], row["cut"] = one.get("unanswered"), one.get("cut")
        rows.append(row)
    return rows


def _read_samples(stage: Path, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Read which samples of each item are right, and the first sample with its texts cut to what the page shows."""
    right: dict[str, list[bool]] = {}
    first: dict[str, dict[str, Any]] = {}
    for row in read_lines(stage / directory.SAMPLES, problems):
        item = str(row.get("id"))
        right.setdefault(item, []).append(bool(row.get("correct")))
        if not row.get("sample"):
            first[item] = row | {key: format.shorten(row.get(key)) for key in ("prompt", "text")}
    return {"right": right, "first": first}


def _read_validation(run: Path, current: Manifests, problems: list[str]) -> list[dict[str, Any]]:
    try:
        return validation_rows(run, current)
    except DAMAGED as error:
        problems.append(f"The validation losses cannot be shown ({type(error).__name__}: {error}).")
        return []


def _read_diagnosis(run: Path, manifests: Manifests, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Read the output of `weakdriven diagnose` if it is complete; report a problem if a model was retrained since."""
    folder = run / directory.DIAGNOSTICS
    if not folder.is_dir():
        return {}
    found = {name: read_object(folder / f"{name}.json", problems) for name in ("logits", "gradients", "drift")}
    facts = found["logits"].get("facts", {})
    if not all(found.values()) or facts.get("version") != directory.DIAGNOSIS_VERSION:
        problems.append("diagnostics is incomplete or was written by another version; run weakdriven diagnose again.")
        return {}
    # a model that has no stage (M0, an M1 of the user's, a snapshot) cannot have been retrained under its name
    stages = {name: manifests.get(format.stage_of(name)) for name in facts["models"]}
    if old := [name for name, one in stages.items() if one and one["key"] != facts["models"][name]["key"]]:
        names = ", ".join(old)
        problems.append(f"diagnostics is outdated: {names} has been retrained since; run weakdriven diagnose again.")
    return found
