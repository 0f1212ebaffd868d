"""The results of `weakdriven diagnose` as tables, for the terminal and the page."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from weakdriven.report.format import MISSING, number, percent

DYNAMICS = {"target": "target logit", "background": "background mean", "gap": "gap between them", "std": "logit std"}
EXTENDED = {
    "mean": "mean logit",
    "std": "std",
    "centered_norm": "centered norm",
    "largest": "max logit",
    "smallest": "min logit",
    "l2": "L2 norm",
    "entropy": "entropy",
    "max_probability": "max probability",
    "top_right": "top token is the true one",
    "calibration_error": "calibration error",
}
TITLES = {"weak": "weak", "strong_before": "strong before", "strong_after": "strong after", "control": "SFT control"}


@dataclass(frozen=True)
class Cells:
    title: str
    titles: list[str]
    rows: list[list[str]]


def print_diagnosis(found: dict[str, dict[str, Any]], console: Console) -> None:
    facts = found["logits"]["facts"]
    console.print(sample_words(facts), highlight=False, markup=False, soft_wrap=True)
    for one in diagnosis_tables(found):
        numbers = [Column(title, justify="right") for title in one.titles[1:]]
        table = Table(one.titles[0], *numbers, title=Text(one.title), title_justify="left")
        for cells in one.rows:
            table.add_row(*cells)
        console.print(table)
    if len(chain := found["drift"]["models"]) > 1:
        for key, words in (("mean", "Mean logit"), ("centered_norm", "Centered norm")):
            path = " -> ".join(f"{one['model']} {_digits(one[key]['mean'])}" for one in chain)
            console.print(f"{words} from model to model: {path}", highlight=False)
    missing = [f"{name}: {why}" for name, why in facts["missing"].items()]
    for title, lines in (("Missing", missing), ("Notes", facts["notes"])):
        if lines:
            console.print(Text("\n".join([f"{title}:", *(f"  {line}" for line in lines)])))


def sample_words(facts: dict[str, Any]) -> str:
    which = f"examples of {facts['rows']}" if facts.get("rows") else "training examples"
    return f"Round {facts['round']}: {facts['examples']:,} {which}, {facts['tokens']:,} supervised tokens."


def diagnosis_tables(found: dict[str, dict[str, Any]]) -> list[Cells]:
    """The paper's two logit tables, and the effect of mixing."""
    logits, names = found["logits"], found["logits"]["facts"]["roles"]
    compared = "control" if "control" in names else "strong_before"
    tables = []
    if logits["models"]:
        tables.append(logit_table("Logit dynamics", logits, DYNAMICS, [compared, "strong_after"], compared))
        columns = ["weak", "strong_before", "strong_after"]
        tables.append(logit_table("Extended logit statistics", logits, EXTENDED, columns, "strong_before"))
    if pairs := found["gradients"]["pairs"]:
        tables.append(pair_table(pairs))
    return tables


def logit_table(title: str, logits: dict[str, Any], rows: dict[str, str], columns: list[str], start: str) -> Cells:
    """Statistics of some models, with the change from `start` to the strong model after the round."""
    names = logits["facts"]["roles"]
    titles = ["per token", *(f"{TITLES[role]}\n{names.get(role, MISSING)}" for role in columns)]
    changed = logits["changes_to_strong_after"].get(start, {})
    cells = []
    for key, words in rows.items():
        values = [model_value(logits["models"].get(names.get(role)), key) for role in columns]
        cells.append([words, *map(_digits, values), _change(changed.get(key))])
    return Cells(title, [*titles, f"change\nfrom {names.get(start, MISSING)}"], cells)


def pair_table(pairs: dict[str, dict[str, Any]]) -> Cells:
    titles = ["per token", *(f"{when} the round\n{pair['weak']} + {pair['strong']}" for when, pair in pairs.items())]
    columns = [pair_cells(pair) for pair in pairs.values()]
    rows = [[words, *(cells[words] for cells in columns)] for words in columns[0]]
    return Cells("Weak and strong mixed", titles, rows)


def pair_cells(pair: dict[str, Any]) -> dict[str, str]:
    mean = {name: one["mean"] for name, one in pair["statistics"].items()}
    size, others = mean["hard_negatives"], pair["vocabulary"] - 1
    share = percent(size / others) if number(size) is not None and others else MISSING
    return {
        "strong weight (lambda)": f"{pair['strong_weight']:g}",
        "hard negatives": f"{_digits(size)} ({share})",
        "uniform margin condition holds": percent(mean["uniform_margin"]),
        "hard negatives amplified": percent(pair["amplified_share"]),
        "  also net of lambda": percent(pair["net_amplified_share"]),
        "hardest negative amplified": percent(mean["hardest_amplified"]),
        "negative mass of strong alone": _digits(mean["negative_mass_strong"]),
        "negative mass of the mixture": _digits(mean["negative_mass_mixed"]),
        "gradient norm of SFT": _digits(mean["sft_gradient"]),
        "gradient norm of the mixture": _digits(mean["mixed_gradient"]),
        "gradient on strong, times that of SFT": _digits(pair["gradient_over_sft"]["strong"]),
        "gradient on weak, times that of SFT": _digits(pair["gradient_over_sft"]["weak"]),
        "sensitivity ratio": _digits(pair["sensitivity_ratio"]),
        "crossover (lambda_cross)": _digits(pair["crossover"]),
        "curvature between the models": _digits(mean["cross_curvature"]),
    }


def model_value(model: dict[str, Any] | None, key: str) -> Any:
    """A statistic of a model, by its name in the tables."""
    if model is None:
        return None
    return model[key] if key in model else model["statistics"][key]["mean"]


def _digits(value: Any) -> str:
    if number(value) is None:
        return MISSING
    return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.3g}"


def _change(change: dict[str, Any] | None) -> str:
    if not change or change["difference"] is None:
        return MISSING
    relative = "" if change["relative"] is None else f" ({100 * change['relative']:+.1f}%)"
    return f"{change['difference']:+.3g}{relative}"
