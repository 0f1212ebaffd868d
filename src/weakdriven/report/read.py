"""Files of a run -> plain values. What is missing is empty, and what cannot be read becomes a problem on the page."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weakdriven.errors import UserError
from weakdriven.report.files import Columns, read_columns
from weakdriven.report.format import (
    LEFTOVER,
    STALE,
    is_place,
    mapping,
    model_at,
    model_name,
    model_order,
    number,
    shorten,
    stage_of,
    weak_of,
)
from weakdriven.report.run.examples import add_questions, odds_bars, sample_points
from weakdriven.report.run.tokens import token_view
from weakdriven.runs.directory import (
    ACTIVE,
    BENCHMARK_SCORES,
    DIAGNOSIS_VERSION,
    DIAGNOSTICS,
    FUNNEL,
    METRICS,
    PLAN_FILE,
    RECIPE_FILE,
    RUN_FILE,
    SAMPLES,
    SCORES,
    work_folder,
)
from weakdriven.runs.manifest import MANIFEST

Manifests = dict[str, dict[str, Any]]


def accuracy_rows(run: Path) -> list[dict[str, Any]]:
    """One row per benchmark and evaluated model, weak to strong; a number that was not recorded is None."""
    return _accuracy(_read_scores(run, current_manifests(run), []))


def current_stages(run: Path) -> set[str]:
    return set(current_manifests(run))


def current_manifests(run: Path) -> Manifests:
    """Finished stages that belong to the recipe as it is now, with their manifests."""
    return _current(_read_plan(run, []), _read_manifests(run, []))


def planned_stages(run: Path) -> list[str]:
    """The stages that the recipe asks for, in order; empty where they were not recorded."""
    return list(_read_plan(run, []) or [])


def load_run(run: Path) -> dict[str, Any]:
    problems: list[str] = []
    plan, manifests = _read_plan(run, problems), _read_manifests(run, problems)
    current = _current(plan, manifests)
    recipe, data = run / RECIPE_FILE, current.get("data", {})
    names: list[str] = list(dict.fromkeys([*(plan or []), *manifests]))
    scores = _read_scores(run, current, problems)
    logs = {name: run / name if name in current else work_folder(run, name) / "work" for name in names}
    known = list(plan) if plan else [path.relative_to(run).as_posix() for path in run.glob("round-*/*")]
    rounds = (re.fullmatch(r"round-([1-9]\d*)/(active|strong)", name) for name in known)  # that train, or only draw
    numbers = sorted({int(found[1]) for found in rounds if found})
    return {
        "info": _read_json(run / RUN_FILE, problems),
        "recipe_text": recipe.read_text(encoding="utf-8", errors="replace") if recipe.is_file() else "",
        "examples": number(mapping(data.get("counters")).get("examples")),
        "funnel": _read_json(run / "data" / FUNNEL, problems) if data else {},
        "stages": [
            {"name": name, "status": _status(run, name, plan, manifests), "manifest": manifests.get(name, {})}
            for name in names
        ],
        "metrics": {name: rows for name, folder in logs.items() if (rows := _read_lines(folder / METRICS, problems))},
        "rounds": _read_rounds(run, numbers, current, problems),
        "scores": scores,
        "accuracy": _accuracy(scores),
        "samples": {
            (benchmark, model): _read_samples(run / f"eval/{model}/{benchmark}" / SAMPLES, problems)
            for benchmark, model in scores
        },
        "diagnosis": _read_diagnosis(run, manifests, problems),
        "tokens": token_view(run, problems),
        "problems": problems,
    }


def _read_samples(path: Path, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Of each item which samples are right, and its first one with texts as short as the page shows them."""
    right: dict[str, list[bool]] = {}
    first: dict[str, dict[str, Any]] = {}
    for row in _read_lines(path, problems):
        item = str(row.get("id"))
        right.setdefault(item, []).append(bool(row.get("correct")))
        if not row.get("sample"):
            first[item] = row | {key: shorten(row.get(key)) for key in ("prompt", "text")}
    return {"right": right, "first": first}


def _read_diagnosis(run: Path, manifests: dict[str, Any], problems: list[str]) -> dict[str, dict[str, Any]]:
    """What `weakdriven diagnose` wrote, if it is complete; a problem says if a model has been retrained since."""
    folder = run / DIAGNOSTICS
    if not folder.is_dir():
        return {}
    found = {name: _read_json(folder / f"{name}.json", problems) for name in ("logits", "gradients", "drift")}
    facts = mapping(found["logits"].get("facts"))
    if facts.get("version") != DIAGNOSIS_VERSION or "pairs" not in found["gradients"] or "models" not in found["drift"]:
        problems.append(f"{DIAGNOSTICS} is incomplete or of another version; run weakdriven diagnose again.")
        return {}
    keys = {name: manifests.get(stage_of(name), {}).get("key") for name in mapping(facts.get("models"))}
    # a model without a stage of its own (M0, a given M1, a snapshot) cannot have been retrained under its name
    if old := [name for name, key in keys.items() if key and mapping(facts["models"][name]).get("key") != key]:
        problems.append(
            f"{DIAGNOSTICS} is outdated: {', '.join(old)} has been retrained since; run weakdriven diagnose again."
        )
    return found


def _read_rounds(run: Path, numbers: list[int], current: Manifests, problems: list[str]) -> list[dict[str, Any]]:
    """Each round's pair of models, the points of its scatter and the bars of its odds."""

    def columns(stage: str, file: str, *names: str) -> Columns | None:
        if stage not in current or not (run / stage / file).is_file():
            return None
        try:
            return read_columns(run, f"{stage}/{file}", names)
        except UserError as error:
            problems.append(str(error))
            return None

    weak_at = {t: weak_of(t, current.get(f"round-{t}/active"), current.get(f"round-{t}/strong")) for t in numbers}
    models = {*weak_at.values(), *map(model_at, numbers)}
    entropy = {model: columns(f"entropy/{model}", SCORES, "entropy") for model in sorted(models)}
    rounds: list[dict[str, Any]] = []
    for t in numbers:
        weak, strong, stage = weak_at[t], model_at(t), f"round-{t}/active"
        one = _fitting(entropy[weak], entropy[strong], columns(stage, ACTIVE, "probability", "draws"), stage, problems)
        rounds.append({"number": t, "weak": weak, "strong": strong, **one})
    add_questions(run, rounds, problems)
    return rounds


def _fitting(
    weak: Columns | None, strong: Columns | None, drawn: Columns | None, stage: str, problems: list[str]
) -> dict[str, Any]:
    """What can be shown of a round; files are joined row by row, so only those with the same ids."""
    shown: dict[str, Any] = {"points": [], "bars": odds_bars(**drawn.values) if drawn else []}
    if weak is None or strong is None:
        return shown
    if not weak.ids.equals(strong.ids):
        problems.append(f"{stage}: the entropies of the two models are of different examples; their chart is left out.")
        return shown
    if drawn and not drawn.ids.equals(weak.ids):
        problems.append(f"{stage}: the draw is of other examples than the entropies; the chart leaves it out.")
        drawn = None
    return shown | sample_points(weak, strong, drawn)


def _current(plan: dict[str, str] | None, manifests: Manifests) -> Manifests:
    """Stages whose result belongs to the recipe as it is now; all of them where there is no plan to say."""
    return {
        name: one for name, one in manifests.items() if plan is None or (name in plan and plan[name] == one.get("key"))
    }


def _status(run: Path, name: str, plan: dict[str, str] | None, manifests: dict[str, Any]) -> str:
    if plan is not None and name not in plan:
        return LEFTOVER
    if plan is not None and manifests.get(name) and manifests[name].get("key") != plan[name]:
        return STALE
    begun = (run / name).exists() or work_folder(run, name).exists()
    return "done" if manifests.get(name) else "unfinished" if begun else "not run yet"


def _accuracy(scores: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for (benchmark, model), one in scores.items():
        row: dict[str, Any] = {"model": model, "name": model_name(model), "benchmark": benchmark}
        row |= {key: number(one.get(key)) for key in ("items", "correct", "accuracy")}
        answers = row["items"] and row["items"] * (number(one.get("samples")) or 1)
        chances = {k: number(share) for k, share in mapping(one.get("pass_at_k")).items() if is_count(k) and k != "1"}
        row |= {"answers": answers, "pass_at_k": {k: share for k, share in chances.items() if share is not None}}
        interval = one.get("interval")
        low, high = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
        rows.append(row | {"low": number(low), "high": number(high)})
    return rows


def is_count(name: str) -> bool:
    """Whether a name is that of a whole number which a figure can place.

    >>> is_count("8"), is_count("x"), is_count("0"), is_count("9" * 99)
    (True, False, False, False)
    """
    return name.isascii() and name.isdecimal() and len(name) < 9 and int(name) > 0


def _read_plan(run: Path, problems: list[str]) -> dict[str, str] | None:
    """Names and keys of the stages that the recipe asks for, in order; None where they were not recorded."""
    path = run / PLAN_FILE
    if not path.is_file():
        return None
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        plan = None
    if isinstance(plan, dict) and plan:
        if odd := [name for name in plan if not is_place(name)]:
            problems.append(f"{PLAN_FILE} names {shorten(odd[0], 60)!r}, which is not a stage; it is left out.")
        return {name: key for name, key in plan.items() if name not in odd}
    problems.append(f"{PLAN_FILE} names no stages; the page shows what is there, but does not know what is missing.")
    return None


def _read_manifests(run: Path, problems: list[str]) -> Manifests:
    """Stage to manifest, in the order in which stages finished."""
    folders = sorted(path.parent.relative_to(run).as_posix() for path in run.glob(f"**/{MANIFEST}"))
    # not the work folders of stages in progress, nor what `select pairing` and `diagnose` measured
    ours = [name for name in folders if not name.startswith((".", "pairing/")) and name != DIAGNOSTICS]
    manifests = {name: _read_json(run / name / MANIFEST, problems) for name in ours}
    return dict(sorted(manifests.items(), key=lambda entry: str(entry[1].get("finished", "~"))))


def _read_scores(run: Path, current: Manifests, problems: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """(benchmark, model) to its scores; models in the order of `model_order`."""
    found = {
        (path.parts[-2], path.parts[-3]): path
        for path in run.glob(f"eval/*/*/{BENCHMARK_SCORES}")
        if path.parent.relative_to(run).as_posix() in current
    }
    order = sorted(found, key=lambda pair: (pair[0], model_order(pair[1])))
    return {pair: _read_json(found[pair], problems) for pair in order}


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    texts = [path.read_text(encoding="utf-8", errors="replace")] if path.is_file() else []
    return next(iter(_parse(texts, path, problems)), {})


def _read_lines(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", errors="replace") as lines:
        return _parse(filter(str.strip, lines), path, problems)


def _parse(texts: Iterable[str], path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """JSON objects; a killed run may leave a torn line, which the page mentions and the rest survives."""
    rows, torn = [], 0
    for text in texts:
        try:
            row = json.loads(text)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            torn += 1
    if torn:
        problems.append(f"{'/'.join(path.parts[-3:])}: {torn} unreadable JSON object(s) left out.")
    return rows
