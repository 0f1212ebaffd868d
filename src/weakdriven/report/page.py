"""What the page says and shows: verdict, tables, sample answers; the template only lays them out."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from weakdriven.report.charts import entropy_scatter, interval_chart, loss_charts, odds_chart
from weakdriven.report.costs import cost_words, selection_cost
from weakdriven.report.read import load_run
from weakdriven.report.training_set import training_set
from weakdriven.report.words import FILTERS, LEFTOVER, WAITING, in_prose, mapping, number, plain, score
from weakdriven.rundir import REPORT, write_text

TEMPLATES = Path(__file__).parent.parent / "templates"
CONTROL = "baseline-sft"


def write_report(run: Path) -> Path:
    """Write `report.html` into a run directory, finished or not, and return its path."""
    write_text(run / REPORT, render_report(run))
    return run / REPORT


def render_report(run: Path) -> str:
    """The page of a run directory, finished or not; writes nothing."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(FILTERS)
    page = environment.get_template("report.html.j2").render(describe(load_run(run)))
    # Model output may hold half a surrogate pair, which JSON can carry and UTF-8 cannot.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def describe(data: dict[str, Any]) -> dict[str, Any]:
    """What the template shows: a verdict, tables and drawn charts."""
    done = [stage for stage in data["stages"] if stage["status"] == "done"]
    done.sort(key=lambda stage: str(stage["manifest"].get("finished")))
    versions: dict[str, set[str]] = {}
    for stage in done:
        for package, version in mapping(stage["manifest"].get("versions")).items():
            versions.setdefault(package, set()).add(str(version))
    benchmarks = list(dict.fromkeys(benchmark for benchmark, _ in data["scores"]))
    wall = {stage["name"]: number(stage["manifest"].get("wall_seconds")) or 0.0 for stage in done}
    cost = selection_cost(data["stages"])
    return data | {
        "name": str(data["info"].get("recipe") or "unnamed run"),
        "waiting": [stage["name"] for stage in data["stages"] if stage["status"] in WAITING],
        "leftover": LEFTOVER,
        "verdict": verdict(data),
        "effort": effort(data),
        "benchmarks": benchmarks,
        "intervals": {name: interval_chart(name, data["accuracy"]) for name in benchmarks},
        "levels": {name: level_table(name, data["scores"]) for name in benchmarks},
        "training_set": training_set(data["funnel"]),
        "losses": list(loss_charts(data)),
        "scatters": {one["number"]: entropy_scatter(one) for one in data["rounds"]},
        "odds": {one["number"]: odds_chart(one) for one in data["rounds"]},
        "cost": cost,
        "cost_words": cost_words(cost) if cost else "",
        "manifests": {stage["name"]: stage["manifest"] for stage in done},
        "sample_items": [item for name in benchmarks for item in sample_items(name, data)],
        "wall": wall,
        "total_wall": sum(wall.values()),
        "versions": {package: ", ".join(sorted(found)) for package, found in sorted(versions.items())},
    }


def verdict(data: dict[str, Any]) -> str:
    """Final WMSS model against the SFT control, in words that claim no more than the intervals do."""
    rows = {(row["benchmark"], row["model"]): row for row in data["accuracy"] if row["accuracy"] is not None}
    final, control = final_model(data), in_prose(CONTROL)
    if not rows:
        return "Nothing has been evaluated yet, so there is nothing to compare."
    if final is None:
        there = "; ".join(
            f"{in_prose(row['model'])} scores {score(row)} on {row['benchmark']}" for row in rows.values()
        )
        opening = "No WMSS model has been evaluated yet; so far" if data["rounds"] else "This run trains no WMSS model;"
        return f"{opening} {there}."
    sentences = []
    for benchmark in [benchmark for benchmark, model in rows if model == final]:
        ours, theirs = rows[benchmark, final], rows.get((benchmark, CONTROL))
        opening = f"On {benchmark}, {in_prose(final)} scores {score(ours)}"
        if theirs is None:
            sentences.append(f"{opening}; there is no score of {control} to compare it with.")
            continue
        tests = [[data["scores"][benchmark, m].get(k) for k in ("version", "items")] for m in (final, CONTROL)]
        if tests[0] != tests[1]:
            sentences.append(f"{opening}; {control} was scored on another version or other items: not comparable.")
            continue
        points = 100 * (ours["accuracy"] - theirs["accuracy"])
        more = f"{abs(points):.1f} points {'more' if points > 0 else 'less'} than"
        difference = more if abs(points) >= 0.05 else "the same as"
        if None in (ours["low"], ours["high"], theirs["low"], theirs["high"]):
            intervals = "an interval is missing"
        else:
            apart = ours["low"] > theirs["high"] or theirs["low"] > ours["high"]
            intervals = "the intervals do not overlap" if apart else "the intervals overlap"
        sentences.append(f"{opening}, {difference} {control}, {score(theirs)}; {intervals}.")
    return " ".join(sentences)


def effort(data: dict[str, Any]) -> str:
    """Training behind the two models of the verdict; an active set is smaller, so equal epochs are not equal work."""
    final = final_model(data)
    manifests = {stage["name"]: stage["manifest"] for stage in data["stages"] if stage["status"] == "done"}
    if final is None:
        return ""
    last = int(final.removeprefix("round-"))
    ours, theirs = ["sft", *(f"round-{t}/strong" for t in range(1, last + 1))], ["baselines/sft"]
    told = []
    for model, stages in ((final, ours), (CONTROL, theirs)):
        counters = [mapping(mapping(manifests.get(stage)).get("counters")) for stage in stages]
        sums = [[number(one.get(key)) for one in counters] for key in ("rows", "steps")]
        if None in sums[0] + sums[1]:
            return ""
        told.append(f"{in_prose(model)} on {plain(sum(sums[0]))} rows, {plain(sum(sums[1]))} steps")
    return f"Trained in all: {told[0]}; {told[1]}."


def final_model(data: dict[str, Any]) -> str | None:
    """The last round that has a score."""
    evaluated = {row["model"] for row in data["accuracy"] if row["accuracy"] is not None}
    rounds = [f"round-{one['number']}" for one in reversed(data["rounds"])]
    return next((model for model in rounds if model in evaluated), None)


def level_table(benchmark: str, scores: dict[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Level to model to share of right answers."""
    table: dict[str, dict[str, float]] = {}
    for (name, model), one in scores.items():
        for level, cell in mapping(one.get("levels") if name == benchmark else None).items():
            correct, items = (number(mapping(cell).get(key)) for key in ("correct", "items"))
            answers = number(mapping(cell).get("answers")) or items  # of several to each item
            table.setdefault(level, {}).update({model: correct / answers} if answers and correct is not None else {})
    return dict(sorted(table.items(), key=lambda entry: (len(entry[0]), entry[0])))


def sample_items(benchmark: str, data: dict[str, Any]) -> list[dict[str, Any]]:
    """Items that every model answered; as many wins of WMSS as losses, so that the choice does not flatter."""
    by_model = {model: rows for (name, model), rows in data["samples"].items() if name == benchmark and rows}
    if not by_model:
        return []
    shared = [item for item in next(iter(by_model.values())) if all(item in rows for rows in by_model.values())]
    chosen, ours, theirs = shared[:4], by_model.get(final_model(data) or ""), by_model.get(CONTROL)
    if ours and theirs:
        kinds: dict[tuple[bool, bool], list[str]] = {(a, b): [] for a in (True, False) for b in (True, False)}
        for item in shared:
            kinds[bool(ours[item].get("correct")), bool(theirs[item].get("correct"))].append(item)
        each = min(2, len(kinds[True, False]), len(kinds[False, True]))
        chosen = kinds[True, False][:each] + kinds[False, True][:each] + kinds[True, True][:1] + kinds[False, False][:1]
    return [{"benchmark": benchmark, "answers": {m: rows[item] for m, rows in by_model.items()}} for item in chosen]
