"""The figures of `weakdriven diagnose`: both logit tables as bars, margins and masses, and the drift over models."""

from typing import Any

from weakdriven.report.figure import Figure
from weakdriven.report.format import mapping, number
from weakdriven.report.plots import Curve, bar_figure, line_figure
from weakdriven.report.run.diagnosis import DYNAMICS, EXTENDED, TITLES, model_value

ROLE_COLOURS = {"weak": "grey", "strong before": "green", "strong after": "blue", "SFT control": "orange"}
SHARES = {
    "uniform_margin": "margin condition holds",
    "amplified_share": "hard negatives amplified",
    "net_amplified_share": "amplified net of lambda",
    "hardest_amplified": "likeliest one amplified",
}
MASSES = {"negative_mass_weak": "weak", "negative_mass_strong": "strong", "negative_mass_mixed": "mixture"}
WHEN = {"before": "before the round", "after": "after the round"}


def logit_figures(logits: dict[str, Any]) -> list[Figure]:
    """One small chart for each statistic: their scales lie orders of magnitude apart."""
    roles, models = mapping(mapping(logits.get("facts")).get("roles")), mapping(logits.get("models"))
    there = {role: words for role, words in TITLES.items() if mapping(models.get(str(roles.get(role))))}
    figures = []
    for key, words in (DYNAMICS | EXTENDED).items():
        rows = [
            {"group": words, "name": title, "value": number(model_value(models[roles[role]], key))}
            for role, title in there.items()
        ]
        figures.append(bar_figure(f"logit-{key.replace('_', '-')}", words, rows, x=words, colours=ROLE_COLOURS))
    return [figure for figure in figures if figure is not None]


def pair_figures(pairs: dict[str, Any]) -> list[Figure]:
    """How often the theory's conditions hold, and how much probability lies on wrong tokens."""

    def value(pair: dict[str, Any], key: str) -> Any:
        mean = mapping(mapping(pair.get("statistics")).get(key)).get("mean")
        return number(pair.get(key, mean))

    def rows(names: dict[str, str]) -> list[dict[str, Any]]:
        found = [(when, key) for key in names for when in WHEN if when in pairs]
        return [{"group": names[key], "name": WHEN[when], "value": value(pairs[when], key)} for when, key in found]

    colours = dict(zip(WHEN.values(), ("green", "blue"), strict=True))
    margins = "A hard negative is a wrong token that the weak model keeps closer to the true one than the strong does."
    masses = "Probability of all wrong tokens together, mean over tokens."
    figures = [
        bar_figure("margins", "Margins", rows(SHARES), x="share", colours=colours, caption=margins),
        bar_figure("masses", "Negative mass", rows(MASSES), x="probability", colours=colours, caption=masses),
    ]
    return [figure for figure in figures if figure is not None]


def drift_figures(drift: dict[str, Any]) -> list[Figure]:
    """Mean logit and its shape from M0 to the last model."""
    chain = [one for one in drift.get("models", []) if isinstance(one, dict)]
    figures = []
    for key, words in (("mean", "mean logit"), ("centered_norm", "centered norm")):
        points = [(float(place), number(mapping(one.get(key)).get("mean"))) for place, one in enumerate(chain)]
        if len(chain) > 1:
            name, caption = f"chain-{key.replace('_', '-')}", "From model to model: 0 is M0, 1 is M1, and so on."
            curve = Curve(words, "blue", points)
            figures.append(
                line_figure(name, f"{words.capitalize()} of M0, M1, ...", [curve], x="model", y=words, caption=caption)
            )
    return [figure for figure in figures if figure is not None]
