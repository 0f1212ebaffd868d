"""The content of a run's page: verdict, figures, tables, sample answers; the template only lays them out."""

from itertools import chain
from pathlib import Path
from typing import Any

from weakdriven.report.figure import Figure, drawn_by_page, write_figures
from weakdriven.report.format import LEFTOVER, WAITING, here, mapping, number, stage_kind
from weakdriven.report.html import embedded, render
from weakdriven.report.read import load_run
from weakdriven.report.run.answers import level_table, sample_items
from weakdriven.report.run.costs import cost_words, selection_cost
from weakdriven.report.run.diagnosis import diagnosis_tables, sample_words
from weakdriven.report.run.diagnosis_figures import diagnosis_figures
from weakdriven.report.run.figures import accuracy_figures, loss_figures, selection_figures, step_figures, timeline
from weakdriven.report.run.progress import Progress
from weakdriven.report.run.training_set import training_set
from weakdriven.report.run.verdict import effort, verdict
from weakdriven.runs.directory import DIAGNOSTICS, REPORT
from weakdriven.runs.files import write_text

TRAININGS = ("training", "baselines")
SECTIONS = {
    "accuracy": "Accuracy",
    "losses": "Losses",
    "selection": "Selection",
    "logits": "Logits",
    "tokens-section": "Token by token",
    "answers": "Answers",
    "stages": "Stages",
    "recipe": "Recipe",
}


def write_report(run: Path, *, figures: bool = False) -> Path:
    """Write `report.html` into a run directory, finished or not, and return its path.

    Args:
        figures: Also write every figure as SVG and PNG into the folder `figures`.
    """
    shown = run_content(run)
    write_text(run / REPORT, render("report.html.j2", shown))
    if figures:
        write_figures(all_figures(shown), run / "figures")
    return run / REPORT


def render_report(run: Path) -> str:
    return render("report.html.j2", run_content(run))


def run_content(run: Path, progress: Progress | None = None) -> dict[str, Any]:
    """What the template shows of a run; a `progress` that is kept also knows the run's speed."""
    data = load_run(run)
    return page_content(data) | {"progress": (progress or Progress(run)).line(data["stages"])}


def all_figures(shown: dict[str, Any]) -> list[Figure]:
    sections = shown["drawn"].values()
    return [figure for one in sections for figure in (chain(*one.values()) if isinstance(one, dict) else one)]


def page_content(data: dict[str, Any]) -> dict[str, Any]:
    """What the template shows: a verdict, tables and figures."""
    try:
        diagnosed = diagnosis_figures(data["diagnosis"])
        diagnosis = diagnosis_words(data["diagnosis"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # files that were changed by hand
        diagnosis, diagnosed = {}, diagnosis_figures({})
        problem = f"{DIAGNOSTICS} cannot be shown ({type(error).__name__}: {error}); run weakdriven diagnose again."
        data = data | {"problems": [*data["problems"], problem]}
    done = [stage for stage in data["stages"] if stage["status"] == "done"]
    done.sort(key=lambda stage: str(stage["manifest"].get("finished")))
    versions: dict[str, set[str]] = {}
    for stage in done:
        for package, version in mapping(stage["manifest"].get("versions")).items():
            versions.setdefault(package, set()).add(str(version))
    benchmarks = list(dict.fromkeys(benchmark for benchmark, _ in data["scores"]))
    manifests = {stage["name"]: stage["manifest"] for stage in done}
    waiting = [stage["name"] for stage in data["stages"] if stage["status"] in WAITING]
    cost = selection_cost(data["stages"])
    shown = data | {
        "name": str(data["info"].get("recipe") or "unnamed run"),
        "sections": list(SECTIONS.items()),
        "waiting": waiting,
        "untrained": [name for name in waiting if stage_kind(name) in TRAININGS and name not in data["metrics"]],
        "leftover": LEFTOVER,
        "verdict": verdict(data),
        "effort": effort(data),
        "benchmarks": benchmarks,
        "levels": {name: level_table(name, data["scores"]) for name in benchmarks},
        "training_set": training_set(data["funnel"]),
        "drawn": draw(data, benchmarks, manifests, diagnosed),
        "diagnosis": diagnosis,
        "tokens_json": embedded(data["tokens"]) if data["tokens"] else "",
        "cost": cost,
        "cost_words": cost_words(cost) if cost else "",
        "manifests": manifests,
        "sample_items": [item for name in benchmarks for item in sample_items(name, data)],
        "planned": [stage["name"] for stage in data["stages"] if stage["status"] != LEFTOVER],
        "total_wall": sum(number(stage["manifest"].get("wall_seconds")) or 0.0 for stage in done if here(stage)),
        "versions": {package: ", ".join(sorted(found)) for package, found in sorted(versions.items())},
    }
    return shown | {"figures": drawn_by_page(all_figures(shown))}


def draw(
    data: dict[str, Any], benchmarks: list[str], manifests: dict[str, Any], diagnosed: dict[str, list[Figure]]
) -> dict[str, Any]:
    """Section to its figures, those of a selection by round."""
    rounds = {one["number"]: one for one in data["rounds"]}
    counters = {t: mapping(manifests.get(f"round-{t}/active", {}).get("counters")) for t in rounds}
    return {
        "accuracy": [figure for name in benchmarks for figure in accuracy_figures(name, data["accuracy"])],
        "losses": loss_figures(data),
        "steps": step_figures(data),
        "selection": {t: selection_figures(one, counters[t]) for t, one in rounds.items()},
        **diagnosed,
        "stages": timeline(data["stages"]),
    }


def diagnosis_words(diagnosis: dict[str, Any]) -> dict[str, Any]:
    if not diagnosis:
        return {}
    facts = diagnosis["logits"]["facts"]
    missing = [f"Missing: {name}: {why}" for name, why in mapping(facts.get("missing")).items()]
    notes = [*missing, *(str(note) for note in facts.get("notes") or [])]
    return {"words": sample_words(facts), "notes": notes, "tables": diagnosis_tables(diagnosis)}
