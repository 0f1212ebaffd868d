"""What the page of a run says and shows: verdict, figures, tables, sample answers; the template only lays them out."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from weakdriven.report.figure import PALETTE, Figure, drawn_by_page, write_figures
from weakdriven.report.format import FILTERS, LEFTOVER, WAITING, here, mapping, number
from weakdriven.report.read import load_run
from weakdriven.report.run.answers import level_table, sample_items
from weakdriven.report.run.costs import cost_words, selection_cost
from weakdriven.report.run.diagnosis import diagnosis_tables, sample_words
from weakdriven.report.run.diagnosis_figures import drift_figures, logit_figures, pair_figures
from weakdriven.report.run.figures import (
    accuracy_figures,
    loss_figures,
    selection_figures,
    stage_kind,
    step_figures,
    timeline,
)
from weakdriven.report.run.training_set import training_set
from weakdriven.report.run.verdict import effort, verdict
from weakdriven.runs.directory import DIAGNOSTICS, REPORT
from weakdriven.runs.files import write_text

TEMPLATES = Path(__file__).parent.parent / "templates"
FIGURES = "figures"
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
    shown = describe(load_run(run))
    write_text(run / REPORT, render("report.html.j2", shown))
    if figures:
        write_figures(all_figures(shown), run / FIGURES)
    return run / REPORT


def render_report(run: Path) -> str:
    """The page as text; nothing is written."""
    return render("report.html.j2", describe(load_run(run)))


def render(template: str, shown: dict[str, Any]) -> str:
    """A page with its style, its scripts and its data inside."""
    parts = {"css": part("page.css"), "vega": part("vega.js"), "script": part("page.js"), "palette": PALETTE}
    page = environment().get_template(template).render(shown | parts | {"figures_json": embedded(shown["figures"])})
    # Model output may hold half a surrogate pair, which JSON can carry and UTF-8 cannot.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


@cache
def environment() -> Environment:
    """Templates, each compiled once: a page that is watched is drawn again and again."""
    made = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.filters.update(FILTERS)
    return made


@cache
def part(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def embedded(value: Any) -> Markup:
    """JSON that may stand inside a script element: no character of it can end that element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def all_figures(shown: dict[str, Any]) -> list[Figure]:
    """Those of every section, in order."""
    found: list[Figure] = []
    for section in shown["drawn"].values():
        for figures in section.values() if isinstance(section, dict) else [section]:
            found += figures
    return found


def describe(data: dict[str, Any]) -> dict[str, Any]:
    """What the template shows: a verdict, tables and figures."""
    data = data | shown_diagnosis(data["diagnosis"], data["problems"])
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
        "drawn": draw(data, benchmarks, manifests),
        "diagnosis": diagnosis_words(data["diagnosis"]),
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


def draw(data: dict[str, Any], benchmarks: list[str], manifests: dict[str, Any]) -> dict[str, Any]:
    """Section to its figures, those of a selection by round."""

    def counters(turn: int) -> dict[str, Any]:
        return mapping(mapping(manifests.get(f"round-{turn}/active")).get("counters"))

    diagnosis = data["diagnosis"]
    return {
        "accuracy": [figure for name in benchmarks for figure in accuracy_figures(name, data["accuracy"])],
        "losses": loss_figures(data),
        "steps": step_figures(data),
        "selection": {one["number"]: selection_figures(one, counters(one["number"])) for one in data["rounds"]},
        **diagnosis_figures(diagnosis),
        "stages": timeline(data["stages"]),
    }


def diagnosis_figures(diagnosis: dict[str, Any]) -> dict[str, list[Figure]]:
    return {
        "pairs": pair_figures(diagnosis["gradients"]["pairs"]) if diagnosis else [],
        "logits": logit_figures(diagnosis["logits"]) if diagnosis else [],
        "drift": drift_figures(diagnosis["drift"]) if diagnosis else [],
    }


def shown_diagnosis(diagnosis: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """The diagnosis if it can be drawn: its files have one author, so of a changed one nothing is shown."""
    try:
        diagnosis_figures(diagnosis)
        diagnosis_words(diagnosis)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        told = f"{DIAGNOSTICS} cannot be shown ({type(error).__name__}: {error}); run weakdriven diagnose again."
        return {"diagnosis": {}, "problems": [*problems, told]}
    return {}


def diagnosis_words(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """What the page says of a diagnosis besides its figures."""
    if not diagnosis:
        return {}
    facts = diagnosis["logits"]["facts"]
    missing = [f"Missing: {name}: {why}" for name, why in mapping(facts.get("missing")).items()]
    notes = [*missing, *(str(note) for note in facts.get("notes") or [])]
    return {"words": sample_words(facts), "notes": notes, "tables": diagnosis_tables(diagnosis)}
