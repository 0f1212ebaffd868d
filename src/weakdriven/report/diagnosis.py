"""Prints what `weakdriven diagnose` found: the two logit tables, what mixing does, drift, and what is missing."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weakdriven.report.words import MISSING, number, percent

DYNAMICS = {
    "target": "target logit",
    "background": "background mean",
    "gap": "gap between them",
    "std": "logit std",
}
EXTENDED = {
    "mean": "mean logit",
    "std": "std",
    "centered_norm": "centered norm",
    "largest": "max logit",
    "smallest": "min logit",
    "l2": "L2 norm",
    "entropy": "entropy",
    "max_probability": "max probability",
}
TITLES = {"weak": "weak", "strong_before": "strong before", "strong_after": "strong after", "control": "SFT control"}


def print_diagnosis(found: dict[str, dict[str, Any]], console: Console) -> None:
    logits, facts = found["logits"], found["logits"]["facts"]
    words = f"Round {facts['round']}: {facts['examples']:,} training examples, {facts['tokens']:,} supervised tokens."
    console.print(words, highlight=False)
    names = facts["roles"]
    compared = "control" if "control" in names else "strong_before"
    if logits["models"]:
        console.print(logit_table("Logit dynamics", logits, DYNAMICS, [compared, "strong_after"], compared))
        columns = ["weak", "strong_before", "strong_after"]
        console.print(logit_table("Extended logit statistics", logits, EXTENDED, columns, "strong_before"))
    if pairs := found["gradients"]["pairs"]:
        console.print(pair_table(pairs))
    if len(chain := found["drift"]["models"]) > 1:
        for key, words in (("mean", "Mean logit"), ("centered_norm", "Centered norm")):
            path = " -> ".join(f"{one['model']} {_digits(one[key]['mean'])}" for one in chain)
            console.print(f"{words} from model to model: {path}", highlight=False)
    if facts["missing"]:
        console.print(_list("Missing", [f"{name}: {why}" for name, why in facts["missing"].items()]))
    if facts["notes"]:
        console.print(_list("Notes", facts["notes"]))


def logit_table(title: str, logits: dict[str, Any], rows: dict[str, str], columns: list[str], start: str) -> Table:
    """Statistics of some models, with the change from `start` to the strong model after the round."""
    names = logits["facts"]["roles"]
    table = Table(title=Text(title), title_justify="left")
    table.add_column("per token")
    for role in columns:
        table.add_column(f"{TITLES[role]}\n{names.get(role, MISSING)}", justify="right")
    table.add_column(f"change\nfrom {names.get(start, MISSING)}", justify="right")
    changed = logits["changes_to_strong_after"].get(start, {})
    for key, words in rows.items():
        values = [_value(logits["models"].get(names.get(role)), key) for role in columns]
        table.add_row(words, *map(_digits, values), _change(changed.get(key)))
    return table


def pair_table(pairs: dict[str, dict[str, Any]]) -> Table:
    """What mixing does, as the round began and as it ended."""
    table = Table(title=Text("Weak and strong mixed"), title_justify="left")
    table.add_column("per token")
    for when, pair in pairs.items():
        table.add_column(f"{when} the round\n{pair['weak']} + {pair['strong']}", justify="right")

    def row(words: str, *cells: str) -> None:
        table.add_row(words, *cells)

    def mean(name: str) -> list[Any]:
        return [pair["statistics"][name]["mean"] for pair in pairs.values()]

    each = list(pairs.values())
    row("strong weight (lambda)", *(f"{pair['strong_weight']:g}" for pair in each))
    sizes = zip(mean("hard_negatives"), (pair["vocabulary"] - 1 for pair in each), strict=True)
    row("hard negatives", *(f"{_digits(size)} ({_share(size, of)})" for size, of in sizes))
    row("uniform margin condition holds", *map(percent, mean("uniform_margin")))
    row("hard negatives amplified", *(percent(pair["amplified_share"]) for pair in each))
    row("  also net of lambda", *(percent(pair["net_amplified_share"]) for pair in each))
    row("hardest negative amplified", *map(percent, mean("hardest_amplified")))
    row("negative mass of strong alone", *map(_digits, mean("negative_mass_strong")))
    row("negative mass of the mixture", *map(_digits, mean("negative_mass_mixed")))
    row("gradient norm of SFT", *map(_digits, mean("sft_gradient")))
    row("gradient norm of the mixture", *map(_digits, mean("mixed_gradient")))
    for side in ("strong", "weak"):
        row(f"gradient on {side}, times that of SFT", *(_digits(pair["gradient_over_sft"][side]) for pair in each))
    row("sensitivity ratio", *(_digits(pair["sensitivity_ratio"]) for pair in each))
    row("crossover (lambda_cross)", *(_digits(pair["crossover"]) for pair in each))
    row("curvature between the models", *map(_digits, mean("cross_curvature")))
    return table


def _value(model: dict[str, Any] | None, key: str) -> Any:
    if model is None:
        return None
    return model[key] if key in ("largest", "smallest") else model["statistics"][key]["mean"]


def _digits(value: Any) -> str:
    if number(value) is None:
        return MISSING
    return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.3g}"


def _share(part: Any, whole: int) -> str:
    return percent(part / whole) if number(part) is not None and whole else MISSING


def _change(change: dict[str, Any] | None) -> str:
    if not change or change["difference"] is None:
        return MISSING
    relative = "" if change["relative"] is None else f" ({100 * change['relative']:+.1f}%)"
    return f"{change['difference']:+.3g}{relative}"


def _list(title: str, lines: list[str]) -> Text:
    return Text("\n".join([f"{title}:", *(f"  {line}" for line in lines)]))
