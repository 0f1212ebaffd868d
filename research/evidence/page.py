"""Computes the tables and figures of docs/evidence from its result files alone."""

import re
from pathlib import Path
from typing import Any

from research.evidence.comparisons import Numbers, read_comparisons
from research.evidence.diagnosed import BRANCHES, STATISTICS, branch_rows, model_rows, read_diagnosed
from research.evidence.figures import figures, write_drawn
from research.evidence.results import (
    POINTED,
    REFERENCE,
    STARTS,
    STUDENTS,
    VALIDATION,
    Trained,
    on_test_items,
    read_results,
    trained_methods,
    verdicts,
)
from weakdriven.eval.statistics import interval_of, score_of
from weakdriven.report.format import MISSING, duration, markdown_table, with_brackets
from weakdriven.runs.files import write_text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/evidence"
PAGES = [ROOT / "README.md", *(FOLDER / f"{name}.md" for name in ("README", "details", "tables"))]
HEADLINE = ("wmss", "wmss_sft", "wmss_compute", "wmss_saturated")
"""Comparisons in the page's table."""
ALONE = "alone"
"""Study that only measures costs; its scores are of one small benchmark."""
STUDIES = ("core", "variants", "published", "saturated", "exploratory")
BLOCK = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n(?P<text>.*?)<!-- end of table -->", re.DOTALL)
NOTHING = "No results yet."


def write(folder: Path) -> list[Path]:
    """Rewrite the tables and quoted numbers of all pages, and the figures; return the files."""
    numbers, tables = read_all(folder)
    for page in PAGES:
        write_text(page, written(page.read_text(encoding="utf-8"), numbers, tables))
    return [*PAGES, *write_drawn(figures(numbers), folder / "figures")]


def read_all(folder: Path) -> tuple[Numbers, dict[str, str]]:
    results, seen, listed = read_results(folder / "results"), read_diagnosed(folder / "diagnosed"), read_comparisons()
    numbers = Numbers(results, seen, listed)
    titles = ["points", *STUDENTS, "mean", "p (students)"]
    of_list = {
        "headline": table(titles[:-1], [numbers.row(name)[:-1] for name in HEADLINE]),
        "comparisons": table(titles, [numbers.row(name) for name in listed]),
    }
    return numbers, all_tables(results, seen) | of_list


def written(page: str, numbers: Numbers, tables: dict[str, str]) -> str:
    return numbers.quoted(with_tables(page, tables))


def with_tables(page: str, tables: dict[str, str]) -> str:
    """Return the page with the tables between its markers computed again."""

    def block(match: re.Match[str]) -> str:
        if match["name"] not in tables:
            raise SystemExit(f"A page asks for a table {match['name']}; there are {', '.join(tables)}.")
        return f"<!-- table: {match['name']} -->\n{tables[match['name']]}\n<!-- end of table -->"

    return BLOCK.sub(block, page)


def all_tables(results: list[dict[str, Any]], seen: list[dict[str, Any]]) -> dict[str, str]:
    found = on_test_items(results)
    tables = {"verdicts": verdict_table(found), "validation": validation_table(results), "files": file_table(results)}
    for study in dict.fromkeys([*STUDIES, *POINTED, *(one.study.partition("-")[0] for one in found)]):
        tables[study] = score_tables([one for one in found if one.study.partition("-")[0] == study])
    tables.pop(ALONE, None)
    return tables | {"costs": cost_table(found), "diagnosed": diagnosed_tables(seen)}


def verdict_table(found: list[Trained]) -> str:
    rows = []
    for one in verdicts(found):
        each = [f"{student} {with_brackets(x.difference, x.interval, '+')}" for student, x in one.against.items()]
        mean = with_brackets(one.difference, one.interval, "+") if each else MISSING
        chance = MISSING if one.chance is None else f"{one.chance:.3f}"
        rows.append([one.text, "; ".join(each) or MISSING, mean, chance, one.word])
    return table(["hypothesis", "difference by student", "mean", "p (Holm)", "verdict"], rows)


def score_tables(found: list[Trained]) -> str:
    """Make a table for each student and study."""
    parts = []
    for student, study in dict.fromkeys((one.student, one.study) for one in found):
        own = [one for one in found if (one.student, one.study) == (student, study)]
        benchmarks = list(own[0].scores)
        titles = ["method", "seeds", "mean", "without aqua", *benchmarks]
        titles += [f"over {REFERENCE}", "p (items)", "p (seeds)", "cut"]
        rows = [score_cells(one, benchmarks) for one in in_order(own)]
        parts += [f"**{student}**" if study in STUDIES else f"**{student}, {study}**", "", table(titles, rows), ""]
    return "\n".join(parts).strip() or NOTHING


def in_order(found: list[Trained]) -> list[Trained]:
    """Sort: models before training, the reference, the rest by score."""
    first = [*STARTS, REFERENCE]
    rank = {one.method: (first.index(one.method) if one.method in first else len(first)) for one in found}
    return sorted(found, key=lambda one: (rank[one.method], -score_of(one.scores)))


def score_cells(one: Trained, benchmarks: list[str]) -> list[str]:
    cells = [one.method, str(len(one.seeds)), with_brackets(score_of(one.scores), interval_of(one.scores))]
    means = [score_of(without_letters(one.scores)), *(one.scores[name].mean() for name in benchmarks)]
    cells += [f"{100 * value:.1f}" for value in means]
    against, cut = one.against, f"{100 * one.cut:.0f}%"
    if against is None:
        return [*cells, *[MISSING] * 3, cut]
    chance = MISSING if against.p_seeds is None else f"{against.p_seeds:.3f}"
    return [*cells, with_brackets(against.difference, against.interval, "+"), f"{against.p_items:.3f}", chance, cut]


def without_letters(scores: dict[str, Any]) -> dict[str, Any]:
    """Select benchmarks whose answers are numbers, because students of this size guess AQuA's letters."""
    return {name: values_SP for name, values_SP in scores.items() if name != "aqua"}


def validation_table(results: list[dict[str, Any]]) -> str:
    rows = []
    for one in results:
        if one["study"] not in VALIDATION or not one["methods"]:
            continue
        recipe, scores = one["recipe"], {x.method: f"{100 * score_of(x.scores):.1f}" for x in trained_methods([one])}
        rate = recipe["joint" if one["study"] == "wmss_rate" else "sft"]["learning_rate"]
        cells = [one["student"], one["study"], f"{rate:g}", str(recipe["sft"]["epochs"])]
        usual = [scores.pop(name) for name in (*STARTS, REFERENCE)]
        scores.pop("sft", None)
        rows.append([*cells, *usual, next(iter(scores.values()), MISSING)])
    rows.sort(key=lambda row: (row[0], row[1], float(row[2]), int(row[3])))
    return table(["student", "choice of", "learning rate", "epochs of m1", *STARTS, REFERENCE, "wmss"], rows)


def cost_table(found: list[Trained]) -> str:
    """Tabulate costs; times relative to two epochs of SFT are of a shared GPU, unless a run had it alone."""
    rows = []
    for one in found:
        if one.seconds is not None and "-" not in one.study:
            ratio, epochs = (MISSING if value is None else f"{value:.2f}" for value in (one.over_sft, one.epochs))
            rows.append([one.student, one.study, one.method, str(len(one.seeds)), duration(one.seconds), ratio, epochs])
    return table(["student", "study", "method", "seeds", "time", "time over sft", "epochs of SFT"], rows)


def diagnosed_tables(seen: list[dict[str, Any]]) -> str:
    """Make each student's tables: its models, and on training rows, both models during joint training."""
    parts = []
    for one in seen:
        rows = "held-out" if one.get("held_out") else "training"
        about = f"{one['examples']} {rows} rows, {one['tokens']:,} supervised tokens; {one['hardware']}"
        study = f", `{one['study']}`" if one.get("study") else ""
        parts += [f"**{one['student']}, seed {one['seed']}{study}** ({about})", ""]
        parts += [table(["model", *STATISTICS.values()], model_rows(one)), ""]
        if not one.get("held_out"):  # steps are on training rows
            parts += [table(["joint step", *BRANCHES.values()], branch_rows(one)), ""]
    return "\n".join(parts).strip() or NOTHING


def file_table(results: list[dict[str, Any]]) -> str:
    rows = []
    for one in results:
        versions = ", ".join(f"{name} {one['versions'][name]}" for name in ("torch", "transformers", "trl"))
        failed = "; ".join(
            f"{method} ({seed}): {shortened(why)}"
            for method, each in one["failed"].items()
            for seed, why in each.items()
        )
        seeds = sorted({seed for each in one["methods"].values() for seed in each["seeds"]}, key=int)
        link = f"[{one['file']}](results/{one['file']})"
        rows.append([link, " ".join(seeds), one["hardware"], str(one["jobs"]), versions, failed or MISSING])
    return table(["file", "seeds", "hardware", "jobs", "versions", "without a result"], rows)


def shortened(why: str) -> str:
    """Cut a reason at its first bracket; the file has all of it."""
    return why.partition(" (")[0]


def table(titles: list[str], rows: list[list[str]]) -> str:
    return "\n".join(markdown_table(titles, rows)) if rows else NOTHING
