"""Compute one table from the runs of a comparison, or from any runs: scores, differences from the reference, costs."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from weakdriven.errors import UserError
from weakdriven.eval.statistics import Scores, compare_shares
from weakdriven.report import format, results, validation
from weakdriven.report.format import MISSING
from weakdriven.report.read import current_manifests
from weakdriven.report.results import BySeed, Row
from weakdriven.report.validation import Validated
from weakdriven.runs.directory import BENCHMARK_SCORES
from weakdriven.runs.files import read_json, write_json, write_text
from weakdriven.runs.manifest import MANIFEST

COMPARE_FILE, COMPARISON = "compare.json", "comparison"
REFERENCE = "sft_restart"
"""Each method is tested against this: two epochs of SFT with a fresh optimizer in the second, as WMSS has."""
FIRST = "sft"
"""Stage that trains M1, from which most methods start."""
AGAINST = ["difference", "difference_low", "difference_high", "p_items", "p_seeds"]
COSTS = ["seconds", "seconds_after_m1", "trained_tokens", "generated_tokens", "peak_bytes"]
CAPTION = (
    "Score: mean accuracy in percent over the benchmarks that all runs share; one run per row. Brackets: 95% interval "
    "over items. Difference: from the reference, in points, on the same items. p (items): paired test over items, not "
    "corrected for the number of rows. Time: from the base model on, without evaluation."
)


def write_comparison(root: Path) -> None:
    """Write comparison.json, .csv and .md into a folder that `weakdriven compare` filled."""
    found = compare_runs(root)
    write_json(root / f"{COMPARISON}.json", found)
    write_text(root / f"{COMPARISON}.csv", as_csv(found["rows"]))
    write_text(root / f"{COMPARISON}.md", as_markdown(found))


def compare_runs(root: Path) -> Row:
    facts = read_json(root / COMPARE_FILE)
    runs = {seed: root / folder for seed, folder in facts["seeds"].items()}
    trained_first = any(FIRST in one["stages"] for one in facts["methods"].values())
    starts = {"base": {"model": "base", "stages": []}, "m1": {"model": "sft", "stages": [FIRST] * trained_first}}
    methods = starts | facts["methods"]
    complete = {seed: results.complete_models(run) for seed, run in runs.items()}
    lossy = {seed: validation.validated_models(run, current_manifests(run)) for seed, run in runs.items()}
    found: dict[str, BySeed] = {
        method: {seed: models[one["model"]] for seed, models in complete.items() if one["model"] in models}
        for method, one in methods.items()
    }
    losses: dict[str, validation.BySeed] = {
        method: {seed: models[one["model"]] for seed, models in lossy.items() if one["model"] in models}
        for method, one in methods.items()
    }
    rows = []
    for method, one in methods.items():
        own, own_losses = found[method], losses[method]
        seeds = [seed for seed in runs if seed in own or seed in own_losses]
        row: Row = {"method": method, "name": format.in_prose(one["model"]), "model": one["model"], "seeds": seeds}
        if own:
            whole = results.scores([*own.values()])
            row |= results.describe(whole)
            row["benchmarks"] = {name: float(values_SP.mean()) for name, values_SP in whole.items()}
        if method != REFERENCE and (against := results.compare(own, found.get(REFERENCE, {}))):
            row["against"] = against
        if method != "base" and (below := results.compare(own, found["base"])):
            row["against_base"] = below
        row |= validation.compared(own_losses, losses.get(REFERENCE, {}) if method != REFERENCE else {})
        if seeds or one["stages"]:
            rows.append(row | costs(one["stages"], [runs[seed] for seed in seeds]))
    name = next((row["name"] for row in rows if row["method"] == REFERENCE), REFERENCE)
    return facts | {"against": REFERENCE, "against_name": name, "rows": rows}


def costs(stages: list[str], runs: list[Path]) -> Row:
    """Average the costs of a method's stages over seeds, without evaluation and tokenizing; peak memory is the maximum.

    A stage that was taken over counts as if it had been computed for this method alone.
    """
    if not runs or not stages:
        return dict.fromkeys(COSTS)
    manifests = [[(name, read_json(run / name / MANIFEST)) for name in stages] for run in runs]

    def mean(value: Callable[[str, Row], float]) -> float:
        return float(np.mean([sum(value(*stage) for stage in each) for each in manifests]))

    return {
        "seconds": mean(lambda _, one: one["wall_seconds"]),
        "seconds_after_m1": mean(lambda name, one: one["wall_seconds"] if name != FIRST else 0.0),
        "trained_tokens": mean(lambda _, one: one["counters"].get("trained_tokens") or 0),
        "generated_tokens": mean(lambda name, one: one["counters"]["tokens"] if name.startswith("rollouts/") else 0),
        "peak_bytes": max(one["peak_memory_bytes"] for each in manifests for _, one in each),
    }


def runs_compared(runs: Sequence[Path], against: str | None) -> Row:
    """Tabulate every evaluated model of every run on the benchmarks that all of them share.

    Args:
        against: Label of the reference; by default the first SFT control found, else the first row.
    """
    names, models, found, missing = run_names(runs), dict[str, tuple[Path, str]](), dict[str, Scores](), list[str]()
    losses = dict[str, Validated]()
    for run, name in names.items():
        each, validated = results.evaluated_models(run), validation.validated_models(run, current_manifests(run))
        missing += [] if each or validated else [f"{name}: no model has been evaluated"]
        for model in sorted({*each, *validated}):
            label, complete = f"{name}: {format.in_prose(model)}", each.get(model)
            if model in each and complete is None:
                missing.append(f"{label}: not all of its benchmarks are finished")
                continue
            models[label] = run, model
            if complete:
                found[label] = results.scores([complete])
            if model in validated:
                losses[label] = validated[model]
    facts: Row = {"recipe": ", ".join(names.values()), "missing": missing, "common": []}
    if not models:
        return facts | {"against": "", "against_name": "", "rows": []}
    controls = (label for control in format.CONTROLS for label in models if models[label][1] == control)
    reference = against or next(controls, next(iter(models)))
    if reference not in models:
        raise UserError(f"--against: unknown label {reference!r}; expected one of {', '.join(models)}.")
    common = common_benchmarks(models, found) if found else []
    shared: dict[str, Scores] = {label: {name: one[name] for name in common} for label, one in found.items()}
    rows = []
    for label, (run, model) in models.items():
        row: Row = {"method": label, "name": label, "model": model, "seeds": ["1"]}
        row |= results.describe(shared[label]) if label in shared else {}
        if label != reference and {label, reference} <= {*shared}:
            row["against"] = vars(compare_shares(shared[reference], shared[label]))
        base = f"{names[run]}: {format.in_prose('base')}"
        if label != base and {label, base} <= {*shared}:
            row["against_base"] = vars(compare_shares(shared[base], shared[label]))
        own = {"1": losses[label]} if label in losses else {}
        row |= validation.compared(own, {"1": losses[reference]} if reference in {*losses} - {label} else {})
        rows.append(row | dict.fromkeys(COSTS) | results.costs(model, current_manifests(run)))
    return facts | {"against": reference, "against_name": reference, "common": common, "rows": rows}


def run_names(runs: Sequence[Path]) -> dict[Path, str]:
    """Name each run by its folder, with as many parent folders as make the name unique."""
    parts = {run: run.resolve().parts for run in runs}
    ends = {run: ["/".join(path[-length:]) for length in range(1, len(path))] for run, path in parts.items()}
    count = Counter(end for each in ends.values() for end in each)
    return {run: next((end for end in each if count[end] == 1), str(run)) for run, each in ends.items()}


def common_benchmarks(models: dict[str, tuple[Path, str]], found: dict[str, Scores]) -> list[str]:
    """Return the benchmarks on which all models were evaluated with the same items, version and number of samples."""
    terms: dict[str, list[object]] = {}
    for label, scores in found.items():
        run, model = models[label]
        for name in scores:
            one = read_json(run / "eval" / model / name / BENCHMARK_SCORES)
            terms.setdefault(name, []).append([one.get(key) for key in ("version", "items", "golds", "samples")])
    common = [name for name, each in terms.items() if each == each[:1] * len(found)]
    if not common:
        raise UserError(
            "The runs share no benchmark with the same items and version; evaluate them with the same settings, or "
            "give fewer runs."
        )
    return common


def as_csv(rows: list[Row]) -> str:
    """Write one line per method; differences are shares, not points."""
    benchmarks = benchmarks_of(rows)
    lossy = any("validation" in row for row in rows)
    titles = ["method", "seeds", "score", "low", "high", *benchmarks, *AGAINST, *COSTS]
    lines = [[*titles, *(validation.CSV if lossy else [])]]
    for row in rows:
        against, accuracy = row.get("against", {}), row.get("benchmarks", {})
        measured = [row.get("score"), *row.get("interval", [None, None]), *(accuracy.get(name) for name in benchmarks)]
        tested = [against.get("difference"), *against.get("interval", [None, None])]
        tested += [against.get("p_items"), against.get("p_seeds")]
        lines.append([row["method"], " ".join(row["seeds"]), *measured, *tested, *(row[name] for name in COSTS)])
        lines[-1] += validation.csv_cells(row) if lossy else []
    return format.csv_text(lines)


def as_markdown(found: Row) -> str:
    parts = [f"# {found['recipe']}: methods compared", "", caption(found)]
    for title, (titles, rows) in tables(found).items():
        parts += ["", f"{title}:", "", *format.markdown_table([one.replace("\n", " ") for one in titles], rows)]
    failed = ["", "Without a result:", "", *(f"- {one}" for one in failures(found))] if found["failed"] else []
    return "\n".join([*parts, *failed, ""])


def tables(found: Row) -> dict[str, format.Table]:
    """Return the tables by title, best row first: scores, validation losses, and costs with the same reference."""
    rows = sorted(found["rows"], key=lambda row: (-row.get("score", -1), row.get("validation", {}).get("loss", 0.0)))
    spent = next((row["seconds"] for row in rows if row["method"] == found["against"]), None)
    scored, costly = [row for row in rows if "score" in row], [row for row in rows if row["seconds"] is not None]
    counted = {"trained_tokens": "tokens\ntrained (M)", "generated_tokens": "tokens\ngenerated (M)"}
    counted = {key: words for key, words in counted.items() if any(row[key] for row in costly)}
    titles = ["time", "times\nreference", *counted.values(), "peak\nmemory"]
    by_cost = []
    for row in costly:
        relative = MISSING if not spent else f"{row['seconds'] / spent:.2f}"
        tokens = [MISSING if not row[key] else f"{row[key] / 1e6:.3g}" for key in counted]
        by_cost.append([format.duration(row["seconds"]), relative, *tokens, format.gibibytes(row["peak_bytes"])])
    losses = [row for row in rows if "validation" in row]
    made = {
        "Scores": (["score", "difference", "p\n(items)", "p\n(seeds)"], scored, [_score_cells(row) for row in scored]),
        "Validation losses": (validation.BOARD, losses, [validation.board_cells(row) for row in losses]),
        "Costs": (titles, costly, by_cost),
    }
    return {
        title: (["model", *columns], [[row["name"], *cells] for row, cells in zip(of, each, strict=True)])
        for title, (columns, of, each) in made.items()
        if of
    }


def _score_cells(row: Row) -> list[str]:
    score, against = format.with_brackets(row["score"], row["interval"]), row.get("against")
    if not against:
        return [score, *[MISSING] * 3]
    difference = format.with_brackets(against["difference"], against["interval"], "+")
    return [score, difference, *(format.chance_words(against[name]) for name in ("p_items", "p_seeds"))]


def failures(found: Row) -> list[str]:
    return [f"{name}, seed {seed}: {why}" for name, each in found["failed"].items() for seed, why in each.items()]


def caption(found: Row) -> str:
    benchmarks, most = benchmarks_of(found["rows"]), len(found["seeds"])
    seeds, losses = f"{most} seed{'s' * (most != 1)}", validation.board_caption(found["rows"])
    fewer = [f"{row['name']}: {len(row['seeds'])}" for row in found["rows"] if len(row["seeds"]) < most]
    note = f" Fewer seeds: {', '.join(fewer)}." if fewer else ""
    costs = " Time and memory: every stage behind the model, without evaluation."
    if losses and not benchmarks:
        return f"Means over {seeds}. Differences are from {found['against_name']}.{losses}{costs}{note}"
    return (
        f"Score: mean accuracy in percent over {', '.join(benchmarks)} and {seeds}. "
        f"Brackets: 95% interval over seeds and items. Difference: from {found['against_name']}, in points, "
        "on the same seeds and items. p (items): paired test over items. p (seeds): t-test over seeds. "
        f"Neither is corrected for the number of methods.{losses}{costs}{note}"
    )


def benchmarks_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.get("benchmarks", {})))
