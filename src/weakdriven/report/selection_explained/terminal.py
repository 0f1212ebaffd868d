"""The tables and lines of `weakdriven select explain`."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weakdriven.report.format import MISSING, mapping, model_name, number, plain, share_words
from weakdriven.report.run.figures import CHANGES
from weakdriven.report.selection_explained.facts import TERMS, describe_example, summarise
from weakdriven.report.selection_explained.load import LETTERS, load_selection
from weakdriven.runs.directory import EXAMPLES

FORMULAS = {
    "paper": "the paper's equation: alpha [-dH]+ + beta H_strong + gamma [dH]+",
    "official": "the authors' code: alpha H_weak + beta [-dH]+ + gamma [dH]+, each divided by its sum over the data",
}


def explain_selection(run: Path, round_number: int | None, console: Console, top: int = 5) -> None:
    """Print how a round's active set was drawn, its hardest examples and those that regressed most."""
    facts = summarise(load_selection(run, round_number), top)
    if facts["note"]:
        console.print(Text(f"Note: {facts['note']}", style="yellow"))
    console.print(_pairs(_selection_lines(facts), f"Selection of round {facts['round']}"))
    for title, examples in (
        ("Hardest: highest entropy under the strong model", facts["hardest"]),
        ("Most regressed: largest rise of the entropy from weak to strong", facts["regressed"]),
    ):
        if examples:
            console.print(_example_table(title, examples))


def explain_example(run: Path, round_number: int | None, example_id: str, console: Console) -> None:
    """Print why one example is in a round's active set or not."""
    facts = describe_example(load_selection(run, round_number), example_id)
    if facts["note"]:
        console.print(Text(f"Note: {facts['note']}", style="yellow"))
    console.print(_score_table(facts, f"Example {_clean(facts['id'])}, round {facts['round']}"))
    console.print(_pairs(_example_lines(facts)))
    console.print(Text(f"\n{facts['verdict']}", style="bold"))
    for name in ("prompt", "completion"):
        console.print(Text(f"\n{name}", style="dim"))
        console.print(Text(_clean(facts[name]) or f"not found in data/{EXAMPLES}"), highlight=False)


def _selection_lines(facts: dict[str, Any]) -> dict[str, str]:
    settings, counters, count = facts["settings"], facts["counters"], facts["examples"]
    shares, (weak, strong) = mapping(counters.get("term_shares")), map(model_name, facts["models"])
    low, high, size = (number(counters.get(name)) for name in ("p_min", "p_max", "effective_sample_size"))
    lines = {"formula": f"{settings['formula']}: {FORMULAS[settings['formula']]}"}
    for (name, letter), words in zip(LETTERS.items(), TERMS[settings["formula"]], strict=True):
        share = share_words(shares.get(name))
        lines[f"{name} ({letter})"] = f"{settings[name]:g} on the {words}: {share} of all weight"
    if low is not None and high is not None:
        lines["probability in one draw"] = f"{low:.4g} to {high:.4g}, spread (CV) {plain(counters.get('p_cv'))}"
        lines["times uniform"] = f"{low * count:.4g} to {high * count:.4g}"
    if size is not None:
        lines["effective sample size"] = f"{size:,.1f} of {count:,} examples ({share_words(size / count)})"
    expected, realised = (share_words(counters.get(f"{name}_unique")) for name in ("expected", "realised"))
    repeats = "dropped" if settings.get("dedup", True) else "kept"
    changes = [f"{words} in {plain(counters.get(key))}" for key, words in CHANGES.items()]
    return lines | {
        "draws": f"{facts['draws']:,} with replacement, repeats {repeats}",
        "unique share of the draws": f"{expected} expected, {realised} realised",
        "active set": f"{facts['active']:,} of {count:,} examples, {facts['truncated_active']:,} with a cut completion",
        "entropy from weak to strong": ", ".join(changes),
        "weight zero, never drawn": plain(counters.get("zero_weight")),
        "rank correlation of paper and official": plain(counters.get("formula_rank_correlation")),
        "mean entropy, nats per token": f"weak {facts['weak_entropy']:.4f} ({weak}), "
        f"strong {facts['strong_entropy']:.4f} ({strong}), change {facts['change']:+.4f}",
    }


def _example_lines(facts: dict[str, Any]) -> dict[str, str]:
    formula, whole = facts["settings"]["formula"], sum(facts["terms"].values())
    divisor = " / its sum over the data" if formula == "official" else ""
    lines = {}
    for (name, value), words in zip(facts["terms"].items(), TERMS[formula], strict=True):
        share, weight = share_words(value / whole) if whole else MISSING, facts["settings"][name]
        lines[f"{name} ({LETTERS[name]})"] = f"{value:.4g} = {weight:g} x {words}{divisor}: {share} of its weight"
    likelier, harder = (share_words(facts[name]) for name in ("likelier_than", "harder_than"))
    cut = "cut at data.max_length" if facts["truncated"] else "whole"
    return lines | {
        "probability in one draw": f"{facts['probability']:.4g}, {facts['times_uniform']:.3g} times uniform, "
        f"above {likelier} of the examples",
        "difficulty rank": f"harder for the strong model than {harder} of the examples",
        "expected draws": f"{facts['expected_draws']:.4g} in {facts['all_draws']:,} draws",
        "chance of at least one": share_words(facts["chance"]),
        "times in the active set": f"{facts['draws']:,}"
        + (" (repeats dropped)" if facts["settings"].get("dedup", True) else ""),
        "completion": f"{facts['strong']['tokens']:,.0f} supervised tokens, {cut}",
    }


def _pairs(lines: dict[str, str], title: str = "") -> Table:
    table = Table(title=Text(title), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(name, Text(value))
    return table


def _score_table(facts: dict[str, Any], title: str) -> Table:
    heads = {"entropy": "entropy", "nll": "negative log-likelihood", "target_probability": "mean P(y)"}
    table = Table("model", *heads.values(), title=Text(title), title_justify="left", box=None, pad_edge=False)
    for role, model in zip(("weak", "strong"), facts["models"], strict=True):
        table.add_row(f"{role}: {model_name(model)}", *(f"{facts[role][name]:.4f}" for name in heads))
    table.add_row("change", *(f"{facts['strong'][name] - facts['weak'][name]:+.4f}" for name in heads))
    return table


def _example_table(title: str, examples: list[dict[str, Any]]) -> Table:
    table = Table(title=Text(title), title_justify="left")
    for name in ("id", "weak", "strong", "draws", "prompt", "completion"):
        side = "right" if name in ("weak", "strong", "draws") else "left"
        table.add_column(name, overflow="fold", justify=side, no_wrap=name == "id")
    for one in examples:
        numbers = [f"{one['weak_entropy']:.4f}", f"{one['strong_entropy']:.4f}", f"{one['draws']:,}"]
        table.add_row(*(Text(_clean(text)) for text in (one["id"], *numbers, one["prompt"], one["completion"])))
    return table


def _clean(text: str) -> str:
    """Text of the data without what would steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
