"""The tables and lines of `weakdriven select explain`."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weakdriven.report.format import MISSING, model_name, plain, share_words
from weakdriven.report.run.figures import CHANGES
from weakdriven.report.selection_explained.facts import (
    LETTERS,
    TERMS,
    Selection,
    describe_example,
    load_selection,
    summarise,
)
from weakdriven.runs.directory import EXAMPLES

FORMULAS = {
    "paper": "the paper's equation: alpha [-dH]+ + beta H_strong + gamma [dH]+",
    "official": "the authors' code: alpha H_weak + beta [-dH]+ + gamma [dH]+, each divided by its sum over the data",
}


def explain_selection(run: Path, round_number: int | None, console: Console, top: int = 5) -> None:
    """Print how a round's active set was drawn, its hardest examples and those that regressed most."""
    selection = load_selection(run, round_number)
    facts = summarise(selection, top)
    _print_note(selection, console)
    console.print(_pairs(_selection_lines(selection, facts), f"Selection of round {selection.round_number}"))
    for title, examples in (
        ("Hardest: highest entropy under the strong model", facts["hardest"]),
        ("Most regressed: largest rise of the entropy from weak to strong", facts["regressed"]),
    ):
        if examples:
            console.print(_example_table(title, examples))


def explain_example(run: Path, round_number: int | None, example_id: str, console: Console) -> None:
    """Print why one example is in a round's active set or not."""
    selection = load_selection(run, round_number)
    facts = describe_example(selection, example_id)
    _print_note(selection, console)
    title = f"Example {_clean(facts['id'])}, round {selection.round_number}"
    console.print(_score_table(facts, selection.models, title))
    console.print(_pairs(_example_lines(selection, facts)))
    console.print(Text(f"\n{facts['verdict']}", style="bold"))
    for name in ("prompt", "completion"):
        console.print(Text(f"\n{name}", style="dim"))
        console.print(Text(_clean(facts[name]) or f"not found in data/{EXAMPLES}"), highlight=False)


def _print_note(selection: Selection, console: Console) -> None:
    if selection.note:
        console.print(Text(f"Note: {selection.note}", style="yellow"))


def _selection_lines(selection: Selection, facts: dict[str, Any]) -> dict[str, str]:
    settings, counters, count = selection.settings, selection.counters, facts["examples"]
    weak, strong = map(model_name, selection.models)
    lines = {"formula": f"{settings['formula']}: {FORMULAS[settings['formula']]}"}
    for (name, letter), words in zip(LETTERS.items(), TERMS[settings["formula"]], strict=True):
        share = share_words(counters["term_shares"][name])
        lines[f"{name} ({letter})"] = f"{settings[name]:g} on the {words}: {share} of all weight"
    low, high, size = (counters[name] for name in ("p_min", "p_max", "effective_sample_size"))
    expected, realised = (share_words(counters[f"{name}_unique"]) for name in ("expected", "realised"))
    changes = [f"{words} in {plain(counters[key])}" for key, words in CHANGES.items()]
    return lines | {
        "probability in one draw": f"{low:.4g} to {high:.4g}, spread (CV) {plain(counters['p_cv'])}",
        "times uniform": f"{low * count:.4g} to {high * count:.4g}",
        "effective sample size": f"{size:,.1f} of {count:,} examples ({share_words(size / count)})",
        "draws": f"{selection.draws:,} with replacement, repeats {'dropped' if settings['dedup'] else 'kept'}",
        "unique share of the draws": f"{expected} expected, {realised} realised",
        "active set": f"{facts['active']:,} of {count:,} examples, {facts['truncated_active']:,} with a cut completion",
        "entropy from weak to strong": ", ".join(changes),
        "weight zero, never drawn": plain(counters["zero_weight"]),
        "rank correlation of paper and official": plain(counters["formula_rank_correlation"]),
        "mean entropy, nats per token": f"weak {facts['weak_entropy']:.4f} ({weak}), "
        f"strong {facts['strong_entropy']:.4f} ({strong}), change {facts['change']:+.4f}",
    }


def _example_lines(selection: Selection, facts: dict[str, Any]) -> dict[str, str]:
    settings, whole = selection.settings, sum(facts["terms"].values())
    divisor = " / its sum over the data" if settings["formula"] == "official" else ""
    lines = {}
    for (name, value), words in zip(facts["terms"].items(), TERMS[settings["formula"]], strict=True):
        share = share_words(value / whole) if whole else MISSING
        weighted = f"{value:.4g} = {settings[name]:g} x {words}{divisor}"
        lines[f"{name} ({LETTERS[name]})"] = f"{weighted}: {share} of its weight"
    likelier, harder = (share_words(facts[name]) for name in ("likelier_than", "harder_than"))
    cut = "cut at data.max_length" if facts["strong"]["truncated"] else "whole"
    return lines | {
        "probability in one draw": f"{facts['probability']:.4g}, {facts['times_uniform']:.3g} times uniform, "
        f"above {likelier} of the examples",
        "difficulty rank": f"harder for the strong model than {harder} of the examples",
        "expected draws": f"{facts['expected_draws']:.4g} in {selection.draws:,} draws",
        "chance of at least one": share_words(facts["chance"]),
        "times in the active set": f"{facts['draws']:,}" + " (repeats dropped)" * settings["dedup"],
        "completion": f"{facts['strong']['tokens']:,.0f} supervised tokens, {cut}",
    }


def _pairs(lines: dict[str, str], title: str = "") -> Table:
    table = Table(title=Text(title), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(name, Text(value))
    return table


def _score_table(facts: dict[str, Any], models: tuple[str, str], title: str) -> Table:
    heads = {"entropy": "entropy", "nll": "negative log-likelihood", "target_probability": "mean P(y)"}
    table = Table("model", *heads.values(), title=Text(title), title_justify="left", box=None, pad_edge=False)
    for role, model in zip(("weak", "strong"), models, strict=True):
        table.add_row(f"{role}: {model_name(model)}", *(f"{facts[role][name]:.4f}" for name in heads))
    table.add_row("change", *(f"{facts['strong'][name] - facts['weak'][name]:+.4f}" for name in heads))
    return table


def _example_table(title: str, examples: list[dict[str, Any]]) -> Table:
    table = Table(title=Text(title), title_justify="left")
    table.add_column("id", overflow="fold", no_wrap=True)
    for name in ("weak", "strong", "draws"):
        table.add_column(name, overflow="fold", justify="right")
    for name in ("prompt", "completion"):
        table.add_column(name, overflow="fold")
    for one in examples:
        numbers = [f"{one['weak_entropy']:.4f}", f"{one['strong_entropy']:.4f}", f"{one['draws']:,}"]
        table.add_row(*(Text(_clean(text)) for text in (one["id"], *numbers, one["prompt"], one["completion"])))
    return table


def _clean(text: str) -> str:
    """Text of the data without what would steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
