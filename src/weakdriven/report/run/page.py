"""Gather the content of a run's page, and write the page once or repeatedly. The template only lays it out."""

import os
import re
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from weakdriven.report import validation
from weakdriven.report.figure import Figure, write_figures
from weakdriven.report.format import LEFTOVER, WAITING, mapping, plain, stage_kind
from weakdriven.report.html import embedded, render
from weakdriven.report.read import DAMAGED, load_run
from weakdriven.report.run.answers import count_wins, sample_items
from weakdriven.report.run.costs import cost_words, selection_cost
from weakdriven.report.run.diagnosis import diagnosis_figures, diagnosis_tables, sample_words
from weakdriven.report.run.figures import (
    CHANGES,
    accuracy_figures,
    loss_figures,
    selection_figures,
    step_figures,
    timeline,
)
from weakdriven.report.run.progress import Progress, is_running
from weakdriven.report.run.verdict import control_of, effort, final_model, outcome, verdict
from weakdriven.report.settings import changed_settings, flat, read_settings, sources_of
from weakdriven.runs.directory import RECIPE_FILE, REPORT, WORK
from weakdriven.runs.files import write_text
from weakdriven.runs.signals import stop_here

FIRST_FACTS = ("name", "model")
GLOSSARY = [
    ("M0, M1", "M0 is the base model; M1 is M0 after supervised fine-tuning (phase 1 SFT)."),
    (
        "WMSS",
        "Each round trains the latest model (strong) with the one before it (weak) on their mixed logits, "
        "and keeps the strong one.",
    ),
    ("WD-DS", "Data selection: each round draws examples by their entropies under the weak and the strong model."),
]
"""Terms explained on the page. The first concerns every run, the others only WMSS."""
TRAININGS = ("training", "baselines")
IDLE = 4
"""While following a run, wait this many times as long as the page took to write, to leave the processor to the run."""


def write_report(run: Path, *, figures: bool = False) -> Path:
    """Write `report.html` into a run directory, finished or not, and return its path.

    Args:
        figures: Also write every figure as SVG and PNG into the folder `figures`.
    """
    page, drawn = render_report(run)
    write_text(run / REPORT, page)
    if figures:
        write_figures(drawn, run / "figures")
    return run / REPORT


def render_report(
    run: Path, progress: Progress | None = None, *, reload_seconds: float = 0.0
) -> tuple[str, list[Figure]]:
    """Render the page and its figures; if a file of the run was edited by hand, render a page that says so.

    Args:
        progress: Pass the same object again, and the page also shows the run's speed.
    """
    try:
        data = load_run(run)
        shown: dict[str, Any] = page_content(data) | {"progress": (progress or Progress(run)).line(data)}
        parts = [chain(*part.values()) if isinstance(part, dict) else part for part in shown["drawn"].values()]
        figures: list[Figure] = list(chain(*parts))
        return render("report.html.j2", shown | {"reload_seconds": reload_seconds}, figures), figures
    except DAMAGED as error:
        problem = f"A file of this run has contents that weakdriven does not write ({type(error).__name__}: {error})."
        return render("damaged.html.j2", {"name": run.name, "problem": problem}, []), []


def page_content(data: dict[str, Any]) -> dict[str, Any]:
    manifests, problems = data["done"], data["problems"]
    diagnosis: dict[str, Any] = {}
    diagnosed: list[Figure] = []
    try:
        if found := data["diagnosis"]:
            facts = found["logits"]["facts"]
            notes = [f"Missing: {name}: {why}" for name, why in facts["missing"].items()] + facts["notes"]
            diagnosis = {"words": sample_words(facts), "notes": notes, "tables": diagnosis_tables(found)}
            diagnosed = diagnosis_figures(found)
    except DAMAGED as error:
        diagnosis, name = {}, type(error).__name__
        problems = [*problems, f"diagnostics cannot be shown ({name}: {error}); run weakdriven diagnose again."]
    versions: dict[str, set[str]] = {}
    for manifest in manifests.values():
        for package, version in manifest.get("versions", {}).items():
            versions.setdefault(package, set()).add(version)
    benchmarks = list(dict.fromkeys(benchmark for benchmark, _ in data["scores"]))
    ours, theirs = final_model(data) or "", control_of(data)
    waiting = [stage["name"] for stage in data["stages"] if stage["status"] in WAITING]
    losses, recipe = loss_figures(data), read_settings(data)
    selection = {one["number"]: selection_figures(one, manifests) for one in data["rounds"]}
    validated, commands = validation.table(data["validation"]), commands_for(data["folder"], waiting)
    answers = [item for name in benchmarks for item in sample_items(name, data, ours, theirs)]
    selected, cost = any(selection.values()), selection_cost(data["stages"])
    sections = [
        ("accuracy", "Accuracy", data["accuracy"]),
        ("validation", "Validation", validated),
        ("losses", "Losses", losses),
        ("selection", "Selection", selected),
        ("logits", "Logits", diagnosis),
        ("tokens-section", "Token by token", data["tokens"]),
        ("answers", "Answers", answers),
        ("stages", "Stages", True),
        ("recipe", "Recipe", True),
    ]
    return data | {
        "name": data["info"].get("recipe") or "unnamed run",
        "problems": problems,
        "waiting": waiting,
        "untrained": [name for name in waiting if stage_kind(name) in TRAININGS and name not in data["metrics"]],
        "leftover": LEFTOVER,
        "verdict": verdict(data),
        "outcome": outcome(data),
        "effort": effort(data),
        "benchmarks": benchmarks,
        "levels": {name: level_table(name, data["scores"]) for name in benchmarks},
        "training_set": training_set(data["funnel"]),
        "mixture": mixture_of(manifests.get("data", {})),
        "validated": validated,
        "facts": facts_of(recipe, data, benchmarks),
        "model": recipe.get("model") or "",
        "sources": ", ".join(sources_of(recipe)),
        "commands": commands,
        "sections": [(anchor, words) for anchor, words, there in sections if there],
        "selected": selected,
        "selection_absent": selection_absent(data, commands["run"]),
        "drawn": {
            "accuracy": [figure for name in benchmarks for figure in accuracy_figures(name, data["accuracy"])],
            "losses": losses,
            "steps": step_figures(data),
            "selection": selection,
            "diagnosis": diagnosed,
            "stages": timeline(manifests),
        },
        "diagnosis": diagnosis,
        "tokens_json": embedded(data["tokens"]) if data["tokens"] else "",
        "cost": cost,
        "cost_words": cost_words(cost) if cost else "",
        "manifests": manifests,
        "wins": {name: wins for name in benchmarks if (wins := count_wins(data, [name], ours, theirs))},
        "ours": ours,
        "theirs": theirs,
        "sample_items": answers,
        "draws": {one["number"]: draw_counters(one["number"], manifests) for one in data["rounds"]},
        "planned": [stage["name"] for stage in data["stages"] if stage["status"] != LEFTOVER],
        "total_wall": sum(one.get("wall_seconds") or 0.0 for one in manifests.values() if not one.get("taken_from")),
        "versions": {package: ", ".join(sorted(found)) for package, found in sorted(versions.items())},
    }


def facts_of(recipe: dict[str, Any], data: dict[str, Any], benchmarks: list[str]) -> list[tuple[str, str]]:
    """List what was run, and explain the terms that the page uses."""
    changed = flat({name: value for name, value in changed_settings(recipe).items() if name not in FIRST_FACTS})
    settings = ", ".join(f"{name}={value}" for name, value in changed.items() if name != "data.path")
    facts = [("Benchmarks", ", ".join(benchmarks)), ("Changed settings", settings)]
    return [*(fact for fact in facts if fact[1]), *(GLOSSARY if data["rounds"] else GLOSSARY[:1])]


def commands_for(folder: str, waiting: list[str]) -> dict[str, str]:
    """Return the commands that would fill the empty sections of the page."""
    run = f"weakdriven run {quote(f'{folder}/{RECIPE_FILE}')} --output {quote(folder)}"
    return {
        "run": run,
        "eval": run if any(name.startswith("eval/") for name in waiting) else f"{run} 'eval.benchmarks=[gsm8k]'",
        "validation": f"{run} data.validation=ROWS.jsonl",
        "diagnose": f"weakdriven diagnose {quote(folder)} && weakdriven report {quote(folder)}",
    }


def selection_absent(data: dict[str, Any], command: str) -> tuple[str, str]:
    """Say why nothing was drawn, and which command continues."""
    if not data["rounds"]:
        return "no weak-driven round", ""
    draws = any(re.fullmatch(r"round-\d+/active", one["name"]) for one in data["stages"] if one["status"] != LEFTOVER)
    return ("no draw yet", command) if draws else ("selection is off: rounds train on every example", "")


def draw_counters(round_number: int, manifests: dict[str, Any]) -> dict[str, Any]:
    """Return the counters of a draw, with probabilities as multiples of the uniform one."""
    counters = dict(manifests.get(f"round-{round_number}/active", {}).get("counters", {}))
    for name in ("p_min", "p_max"):
        if name in counters and counters.get("examples"):
            counters[name] = f"{plain(counters[name] * counters['examples'])} x uniform"
    return {name: value for name, value in counters.items() if name not in ("term_shares", *CHANGES)}


def level_table(benchmark: str, scores: dict[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Tabulate the share of right answers by level and model."""
    table: dict[str, dict[str, float]] = {}
    for (name, model), one in scores.items():
        for level, cell in one.get("levels", {}).items() if name == benchmark else ():
            # runs of 0.1.0 have no `answers`: they took one answer per item
            table.setdefault(level, {})[model] = cell["correct"] / (cell.get("answers") or cell["items"])
    return dict(sorted(table.items(), key=lambda entry: (len(entry[0]), entry[0])))


def training_set(funnel: dict[str, Any]) -> dict[str, Any]:
    """Return the part of funnel.json that the page shows; empty if there is none.

    >>> training_set({"in": 4, "kept": 3, "dropped": {"no gold": {"rows": 1, "first": [{"id": "7", "detail": ""}]}}})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'domain': '', 'sources': [], 'teacher': '', 'rows': 3,
     'tables': [('Rows', 4, 3, [{'reason': 'no gold', 'rows': 1, 'share': 0.25, 'first': ['7']}])]}
    """
    if not funnel:
        return {}
    steps = {"Rows": funnel, "Completions of the teacher": funnel.get("completions")}
    return {
        "domain": funnel.get("domain") or "",
        "sources": funnel.get("sources", []),
        "teacher": (funnel.get("teacher") or {}).get("model") or "",
        "rows": funnel.get("rows", funnel["kept"]),
        "tables": [(name, step["in"], step["kept"], _reasons(step)) for name, step in steps.items() if step],
    }


def mixture_of(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each source's rows and their share of the mixture; empty if there is only one source."""
    sources = mapping(mapping(manifest.get("counters")).get("sources"))
    total = sum(one["used"] for one in sources.values())
    return {name: one | {"share": one["used"] / total} for name, one in sources.items()} if total else {}


def _reasons(step: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "reason": reason,
            "rows": dropped["rows"],
            "share": dropped["rows"] / step["in"],
            "first": [": ".join(filter(None, row.values())) for row in dropped["first"]],
        }
        for reason, dropped in step["dropped"].items()
    ]


def follow_report(run: Path, *, every: float = 5.0) -> None:
    """Write `report.html` whenever files of the run change, until the run ends or Ctrl-C is pressed."""
    progress, seen = Progress(run), None
    try:
        while is_running(run):
            begun = time.monotonic()
            with suppress(OSError):  # a stage was renamed while we read it; the next page shows it
                if (files := file_stamps(run)) != seen:
                    write_page(run, progress, reload_seconds=every)
                    seen = files
            stop_here()
            time.sleep(max(every, IDLE * (time.monotonic() - begun)))
    except KeyboardInterrupt:
        pass
    finally:
        write_page(run, progress)


def write_page(run: Path, progress: Progress, *, reload_seconds: float = 0.0) -> None:
    """Write the page in the work folder and rename it: the run itself may write its page at the same moment."""
    page, _ = render_report(run, progress, reload_seconds=reload_seconds)
    folder = run / WORK if (run / WORK).is_dir() else run
    write_text(folder / REPORT, page)
    os.replace(folder / REPORT, run / REPORT)


def file_stamps(run: Path) -> set[tuple[Path, int, int]]:
    """Return name, time and size of every file of a run except its page."""
    stats = {path: path.stat() for path in run.rglob("*") if path.name != REPORT and path.is_file()}
    return {(path, one.st_mtime_ns, one.st_size) for path, one in stats.items()}
