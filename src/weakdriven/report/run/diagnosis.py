"""Show the results of `weakdriven diagnose`: tables for the terminal and the page, figures for the page."""

from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from weakdriven.report.figure import Figure
from weakdriven.report.format import MISSING, colour, percent
from weakdriven.report.plots import bar_figure, present

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
    "top_right": "top token is correct",
    "calibration_error": "calibration error",
}
TITLES = {"weak": "weak", "strong_before": "strong before", "strong_after": "strong after", "control": "SFT control"}
SHARES = {
    "uniform_margin": "uniform margin condition holds",
    "amplified_share": "hard negatives amplified",
    "net_amplified_share": "amplified, net of lambda",
    "hardest_amplified": "likeliest one amplified",
}
MASSES = {"negative_mass_weak": "weak", "negative_mass_strong": "strong", "negative_mass_mixed": "mixture"}
WHEN = {"before": "before the round", "after": "after the round"}

Cells = tuple[str, list[str], list[list[str]]]
"""Title, column titles, rows."""


def print_diagnosis(found: dict[str, dict[str, Any]], console: Console) -> None:
    facts = found["logits"]["facts"]
    console.print(sample_words(facts), highlight=False, markup=False, soft_wrap=True)
    for name, titles, rows in diagnosis_tables(found):
        numbers = [Column(title, justify="right") for title in titles[1:]]
        table = Table(titles[0], *numbers, title=Text(name), title_justify="left")
        for cells in rows:
            table.add_row(*cells)
        console.print(table)
    missing = [f"{name}: {why}" for name, why in facts["missing"].items()]
    for title, lines in (("Missing", missing), ("Notes", facts["notes"])):
        if lines:
            console.print(Text("\n".join([f"{title}:", *(f"  {line}" for line in lines)])))


def sample_words(facts: dict[str, Any]) -> str:
    which = f"examples of {facts['rows']}" if facts.get("rows") else "training examples"
    return f"Round {facts['round']}: {facts['examples']:,} {which}, {facts['tokens']:,} supervised tokens."


def diagnosis_tables(found: dict[str, dict[str, Any]]) -> list[Cells]:
    logits, names = found["logits"], found["logits"]["facts"]["roles"]
    compared = "control" if "control" in names else "strong_before"
    tables = []
    if logits["models"]:
        tables.append(logit_table("Logit dynamics", logits, DYNAMICS, [compared, "strong_after"], compared))
        columns = ["weak", "strong_before", "strong_after"]
        tables.append(logit_table("Extended logit statistics", logits, EXTENDED, columns, "strong_before"))
    if pairs := found["gradients"]["pairs"]:
        sides = [f"{when} the round\n{pair['weak']} + {pair['strong']}" for when, pair in pairs.items()]
        columns = [pair_cells(pair) for pair in pairs.values()]
        rows = [[words, *(cells[words] for cells in columns)] for words in columns[0]]
        tables.append(("Mixture of weak and strong", ["per token", *sides], rows))
    if len(chain := found["drift"]["models"]) > 1:
        rows = [[one["model"], *(_digits(one[key]["mean"]) for key in ("mean", "centered_norm"))] for one in chain]
        tables.append(("Drift from model to model", ["model", "mean logit", "centered norm"], rows))
    return tables


def logit_table(title: str, logits: dict[str, Any], rows: dict[str, str], columns: list[str], start: str) -> Cells:
    """Tabulate statistics of some models, with the change from `start` to the strong model after the round."""
    names = logits["facts"]["roles"]
    titles = ["per token", *(f"{TITLES[role]}\n{names.get(role, MISSING)}" for role in columns)]
    changed = logits["changes_to_strong_after"].get(start, {})
    cells = []
    for key, words in rows.items():
        models = [logits["models"].get(names.get(role)) for role in columns]
        values = [model_value(model, key) if model else None for model in models]
        cells.append([words, *map(_digits, values), _change(changed.get(key))])
    return title, [*titles, f"change\nfrom {names.get(start, MISSING)}"], cells


def pair_cells(pair: dict[str, Any]) -> dict[str, str]:
    mean = {name: one["mean"] for name, one in pair["statistics"].items()}
    size = mean["hard_negatives"]
    share = MISSING if size is None else percent(size / (pair["vocabulary"] - 1))
    return {
        "strong weight (lambda)": f"{pair['strong_weight']:g}",
        "hard negatives": f"{_digits(size)} ({share})",
        "uniform margin condition holds": percent(mean["uniform_margin"]),
        "hard negatives amplified": percent(pair["amplified_share"]),
        "  amplified, net of lambda": percent(pair["net_amplified_share"]),
        "likeliest hard negative amplified": percent(mean["hardest_amplified"]),
        "negative mass of the strong model": _digits(mean["negative_mass_strong"]),
        "negative mass of the mixture": _digits(mean["negative_mass_mixed"]),
        "gradient norm of SFT": _digits(mean["sft_gradient"]),
        "gradient norm of the mixture": _digits(mean["mixed_gradient"]),
        "gradient on strong, relative to SFT": _digits(pair["gradient_over_sft"]["strong"]),
        "gradient on weak, relative to SFT": _digits(pair["gradient_over_sft"]["weak"]),
        "sensitivity ratio": _digits(pair["sensitivity_ratio"]),
        "crossover (lambda_cross)": _digits(pair["crossover"]),
        "curvature between the models": _digits(mean["cross_curvature"]),
    }


def model_value(one: dict[str, Any], key: str) -> Any:
    """Look up a statistic of a model or a pair by its name in the tables."""
    return one[key] if key in one else one["statistics"][key]["mean"]


def _digits(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.3g}"


def _change(change: dict[str, Any] | None) -> str:
    if not change or change["difference"] is None:
        return MISSING
    relative = "" if change["relative"] is None else f" ({100 * change['relative']:+.1f}%)"
    return f"{change['difference']:+.3g}{relative}"


def diagnosis_figures(found: dict[str, Any]) -> list[Figure]:
    """Draw how often the theory's conditions hold, the probability of wrong tokens, and the logits behind both."""
    pairs, logits = found["gradients"]["pairs"], found["logits"]

    def of_pairs(names: dict[str, str]) -> list[dict[str, Any]]:
        shown = [(pairs[when], WHEN[when], key) for key in names for when in WHEN if when in pairs]
        return [{"group": names[key], "name": when, "value": model_value(pair, key)} for pair, when, key in shown]

    roles, models = logits["facts"]["roles"], logits["models"]
    named = {role: models[roles[role]] for role in TITLES if roles.get(role) in models}
    dynamics = [
        {"group": words, "name": TITLES[role], "value": model_value(one, key)}
        for key, words in DYNAMICS.items()
        if key != "std"
        for role, one in named.items()
    ]
    times = dict(zip(WHEN.values(), ("skip", "pick"), strict=True))
    margins = "A hard negative is a wrong token whose logit is closer to the true one under weak than under strong."
    masses = "Probability of all wrong tokens together, mean over tokens."
    logit = {"x": "logit", "colours": {TITLES[role]: colour(roles[role]) for role in named}}
    means = "Means over tokens. Background: all tokens but the true one."
    return present(
        [
            bar_figure("margins", "Margins", of_pairs(SHARES), x="share", colours=times, caption=margins),
            bar_figure("masses", "Negative mass", of_pairs(MASSES), x="probability", colours=times, caption=masses),
            bar_figure("logits", "Logits", dynamics, **logit, caption=means),
        ]
    )
