"""The figures of `weakdriven diagnose`: both logit tables as bars, margins and masses, and the drift over models."""

from typing import Any

from weakdriven.report.figure import Figure
from weakdriven.report.format import mapping, number
from weakdriven.report.plots import Curve, bar_figure, line_figure, present
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


def diagnosis_figures(found: dict[str, Any]) -> dict[str, list[Figure]]:
    """By place on the page."""
    return {
        "pairs": pair_figures(found["gradients"]["pairs"]) if found else [],
        "logits": logit_figures(found["logits"]) if found else [],
        "drift": drift_figures(found["drift"]) if found else [],
    }


def logit_figures(logits: dict[str, Any]) -> list[Figure]:
    """One small chart for each statistic: their scales differ by orders of magnitude."""
    roles, models = mapping(mapping(logits.get("facts")).get("roles")), mapping(logits.get("models"))
    named = {title: mapping(models.get(str(roles.get(role)))) for role, title in TITLES.items()}

    def rows(key: str, words: str) -> list[dict[str, Any]]:
        values = {title: number(model_value(model, key)) for title, model in named.items() if model}
        return [{"group": words, "name": title, "value": value} for title, value in values.items()]

    return present(
        bar_figure(f"logit-{key.replace('_', '-')}", words, rows(key, words), x=words, colours=ROLE_COLOURS)
        for key, words in (DYNAMICS | EXTENDED).items()
    )


def pair_figures(pairs: dict[str, Any]) -> list[Figure]:
    """How often the theory's conditions hold, and the probability of wrong tokens."""

    def value(pair: dict[str, Any], key: str) -> Any:
        mean = mapping(mapping(pair.get("statistics")).get(key)).get("mean")
        return number(pair.get(key, mean))

    def rows(names: dict[str, str]) -> list[dict[str, Any]]:
        found = [(when, key) for key in names for when in WHEN if when in pairs]
        return [{"group": names[key], "name": WHEN[when], "value": value(pairs[when], key)} for when, key in found]

    colours = dict(zip(WHEN.values(), ("green", "blue"), strict=True))
    margins = "A hard negative is a wrong token whose logit is closer to the true one under weak than under strong."
    masses = "Probability of all wrong tokens together, mean over tokens."
    return present(
        [
            bar_figure("margins", "Margins", rows(SHARES), x="share", colours=colours, caption=margins),
            bar_figure("masses", "Negative mass", rows(MASSES), x="probability", colours=colours, caption=masses),
        ]
    )


def drift_figures(drift: dict[str, Any]) -> list[Figure]:
    """Mean logit and its shape from M0 to the last model."""
    chain = [one for one in drift.get("models", []) if isinstance(one, dict)]
    if len(chain) < 2:
        return []

    def figure(key: str, words: str) -> Figure | None:
        points = [(float(place), number(mapping(one.get(key)).get("mean"))) for place, one in enumerate(chain)]
        title, note = f"{words.capitalize()} of M0, M1, ...", "From model to model: 0 is M0, 1 is M1, and so on."
        name = f"chain-{key.replace('_', '-')}"
        return line_figure(name, title, [Curve(words, "blue", points)], x="model", y=words, caption=note)

    return present([figure("mean", "mean logit"), figure("centered_norm", "centered norm")])
