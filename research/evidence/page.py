"""The tables and figures of docs/evidence, computed from its result files alone."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from research.evidence.comparisons import Numbers, read_comparisons
from research.evidence.diagnosed import BRANCHES, STATISTICS, branch_rows, model_rows, read_diagnosed
from research.evidence.figures import figures, write_drawn
from research.evidence.results import (
    DRAWS,
    REFERENCE,
    SAMPLED,
    SIZES,
    STARTS,
    STUDENTS,
    VALIDATION,
    Trained,
    by_point,
    in_order,
    on_test_items,
    read_results,
    trained_methods,
    verdicts,
)
from weakdriven.eval.statistics import compare_seeds, interval_of, score_of
from weakdriven.report.format import MISSING, brackets, duration, markdown_table
from weakdriven.runs.files import write_text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/evidence"
PAGES = [ROOT / "README.md", *(FOLDER / f"{name}.md" for name in ("README", "details", "tables"))]
HEADLINE = ("wmss", "wmss_sft", "wmss_compute", "wmss_saturated")
"""Comparisons of the page's table."""
ALONE = "alone"
"""Only measures costs; its scores are of one small benchmark."""
STUDIES = {
    "core": "WMSS, its parts and its controls",
    "variants": "Repaired forms and further controls",
    "published": "Methods of others",
    "saturated": "After saturated SFT",
    "exploratory": "WMSS with one setting changed",
}
BLOCK = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n(?P<text>.*?)<!-- end of table -->", re.DOTALL)
NOTHING = "No results yet."


def write(folder: Path) -> list[Path]:
    """Rewrite the tables and quoted numbers of all pages, and the figures; returns the files."""
    numbers, tables = read_all(folder)
    for page in PAGES:
        write_text(page, written(page.read_text(encoding="utf-8"), numbers, tables))
    return [*PAGES, *write_drawn(figures(numbers), folder / "figures")]


def read_all(folder: Path) -> tuple[Numbers, dict[str, str]]:
    results, seen, listed = read_results(folder / "results"), read_diagnosed(folder / "diagnosed"), read_comparisons()
    numbers = Numbers(results, seen, listed)
    titles = ["points", *STUDENTS, "mean"]
    of_list = {
        "headline": table(titles, numbers.rows([*HEADLINE])),
        "comparisons": table(titles, numbers.rows([*listed])),
    }
    return numbers, all_tables(results, seen) | of_list


def written(page: str, numbers: Numbers, tables: dict[str, str]) -> str:
    return numbers.quoted(with_tables(page, tables))


def with_tables(page: str, tables: dict[str, str]) -> str:
    """The page with the tables between its marks computed again."""

    def block(match: re.Match[str]) -> str:
        if match["name"] not in tables:
            raise SystemExit(f"A page asks for a table {match['name']}; there are {', '.join(tables)}.")
        return f"<!-- table: {match['name']} -->\n{tables[match['name']]}\n<!-- end of table -->"

    return BLOCK.sub(block, page)


def all_tables(results: list[dict[str, Any]], seen: list[dict[str, Any]]) -> dict[str, str]:
    found = trained_methods(on_test_items(results))
    tables = {"verdicts": verdict_table(found), "validation": validation_table(results), "files": file_table(results)}
    for study in [*STUDIES, *sorted({one.study for one in found} - {*STUDIES, ALONE})]:
        tables[study] = score_tables([one for one in found if one.study == study])
    tables |= {SAMPLED: sampled_table(results), SIZES: sizes_table(results)}
    return tables | {"costs": cost_table(found), "diagnosed": diagnosed_tables(seen)}


def verdict_table(found: list[Trained]) -> str:
    rows = []
    for one in verdicts(found):
        each = "; ".join(
            f"{student} {points(against.difference)} {brackets(against.interval)}"
            for student, against in one.by_student.items()
        )
        mean = MISSING
        if one.difference is not None and one.interval is not None:
            mean = f"{points(one.difference)} {brackets(one.interval)}"
        chance = MISSING if one.chance is None else f"{one.chance:.3f}"
        rows.append([one.text, each or MISSING, mean, chance, one.word])
    return table(["hypothesis", "difference by student", "mean", "p (Holm)", "verdict"], rows)


def score_tables(found: list[Trained]) -> str:
    """One table for each student."""
    parts = []
    for student in dict.fromkeys(one.student for one in found):
        own = [one for one in found if one.student == student]
        benchmarks = list(own[0].scores)
        titles = ["method", "seeds", "mean", "without aqua", *benchmarks]
        titles += [f"over {REFERENCE}", "p (items)", "p (seeds)", "cut"]
        parts += [f"**{student}**", "", table(titles, [score_cells(one, benchmarks) for one in in_order(own)]), ""]
    return "\n".join(parts).strip() or NOTHING


def score_cells(one: Trained, benchmarks: list[str]) -> list[str]:
    cells = [
        one.method,
        str(len(one.seeds)),
        f"{100 * score_of(one.scores):.1f} {brackets(interval_of(one.scores))}",
    ]
    means = [score_of(without_letters(one.scores)), *(one.scores[name].mean() for name in benchmarks)]
    cells += [f"{100 * value:.1f}" for value in means]
    against, cut = one.against, f"{100 * one.cut:.0f}%"
    if against is None:
        return [*cells, *[MISSING] * 3, cut]
    chance = MISSING if against.p_seeds is None else f"{against.p_seeds:.3f}"
    difference = f"{points(against.difference)} {brackets(against.interval)}"
    return [*cells, difference, f"{against.p_items:.3f}", chance, cut]


def without_letters(scores: dict[str, Any]) -> dict[str, Any]:
    """The benchmarks whose answers are numbers: students this small guess AQuA's letters."""
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
    """Time against two epochs of SFT is that of a GPU that others shared, unless a run had it alone."""
    rows = []
    for one in found:
        if one.seconds is not None:
            ratio, epochs = (MISSING if value is None else f"{value:.2f}" for value in (one.over_sft, one.epochs))
            rows.append([one.student, one.study, one.method, str(len(one.seeds)), duration(one.seconds), ratio, epochs])
    return table(["student", "study", "method", "seeds", "time", "time over sft", "epochs of SFT"], rows)


def sampled_table(results: list[dict[str, Any]]) -> str:
    """pass@1, and the share of items with a right answer among all; at the end WMSS against a cooler reference."""
    rows, tries = [], 0
    mixed: dict[str, dict[float, Trained]] = {}
    for recipe, _, method, one in by_point(results, SAMPLED):
        tries, temperature = recipe["eval"]["samples"], recipe["eval"]["temperature"]
        over = sampled_over(one.reference, one.scores) if one.reference else [MISSING, MISSING]
        rows.append([one.student, f"{temperature:g}", method, str(len(one.seeds)), *sampled_scores(one), *over])
        if method == "wmss":
            mixed.setdefault(one.student, {})[temperature] = one
    for student, each in mixed.items():
        for (low, cool), (high, hot) in pairwise(sorted(each.items())):
            if cool.reference and cool.seeds == hot.seeds:
                cells = [student, f"{high:g}, {REFERENCE} {low:g}", "wmss", str(len(hot.seeds)), *sampled_scores(hot)]
                rows.append([*cells, *sampled_over(cool.reference, hot.scores)])
    names = ("pass@1", f"pass@{tries}")
    titles = ["student", "temperature", "method", "seeds", *names, *(f"{name} over {REFERENCE}" for name in names)]
    return table(titles, rows)


def sampled_scores(one: Trained) -> list[str]:
    return [f"{100 * score_of(kind):.1f}" for kind in (one.scores, solved(one.scores))]


def sampled_over(reference: dict[str, Any], scores: dict[str, Any]) -> list[str]:
    each, any_right = (reference, scores), (solved(reference), solved(scores))
    both = [compare_seeds(*pair, draws=DRAWS) for pair in (each, any_right)]
    return [f"{points(found.difference)} {brackets(found.interval)}" for found in both]


def sizes_table(results: list[dict[str, Any]]) -> str:
    rows = []
    for _, point, method, one in by_point(results, SIZES):
        over = f"{points(one.against.difference)} {brackets(one.against.interval)}" if one.against else MISSING
        used, scores = point.removeprefix("rows_"), (one.scores, without_letters(one.scores))
        cells = [one.student, used, method, str(len(one.seeds)), *(f"{100 * score_of(kind):.1f}" for kind in scores)]
        rows.append([*cells, over])
    rows.sort(key=lambda row: (row[0], int(row[1])))
    return table(["student", "rows", "method", "seeds", "mean", "without aqua", f"over {REFERENCE}"], rows)


def solved(scores: dict[str, Any]) -> dict[str, Any]:
    """Which items have a right answer among all, as scores."""
    return {name: (values_SP > 0).astype(float) for name, values_SP in scores.items()}


def diagnosed_tables(seen: list[dict[str, Any]]) -> str:
    """Tables for each student: its models, and, of training rows, the branches while they were trained jointly."""
    parts = []
    for one in seen:
        rows = "held-out" if one.get("held_out") else "training"
        about = f"{one['examples']} {rows} rows, {one['tokens']:,} supervised tokens; {one['hardware']}"
        study = f", `{one['study']}`" if one.get("study") else ""
        parts += [f"**{one['student']}, seed {one['seed']}{study}** ({about})", ""]
        parts += [table(["model", *STATISTICS.values()], model_rows(one)), ""]
        if not one.get("held_out"):  # steps are of training rows
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
    """A reason up to its first bracket; the file has all of it."""
    return why.partition(" (")[0]


def table(titles: list[str], rows: list[list[str]]) -> str:
    return "\n".join(markdown_table(titles, rows)) if rows else NOTHING


def points(share: float) -> str:
    return f"{100 * share:+.1f}"
