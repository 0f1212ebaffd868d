"""Keeps what `weakdriven diagnose` measured in a student's run (docs/evidence/diagnosed), and makes tables of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.evidence.collect import without_paths
from weakdriven.report.format import MISSING
from weakdriven.runs.directory import DIAGNOSTICS
from weakdriven.runs.files import read_json
from weakdriven.runs.manifest import MANIFEST

MODELS = {
    "base": "base",
    "sft": "m1",
    "baseline-sft_restart": "sft_restart",
    "baseline-sft": "sft",
    "round-1": "wmss",
    "round-1-weak": "its weak branch",
}
"""Names of a run's models in the tables of the study, in the order of the tables."""
STATISTICS = {
    "nll": "loss",
    "entropy": "entropy",
    "target": "target logit",
    "background": "background mean",
    "std": "logit std",
    "max_probability": "confidence",
    "top_right": "top right",
    "calibration_error": "calibration error",
}
"""Probability and accuracy of the top token, and their calibration error over bins; older files lack the last two."""
BRANCHES = {
    "weak_entropy": "entropy, weak",
    "strong_entropy": "entropy, strong",
    "mixed_entropy": "entropy, mixture",
    "negative_mass_strong": "wrong mass, strong",
    "negative_mass_mixed": "wrong mass, mixture",
}
"""Statistics of a logged step of joint training; the mass is that of all tokens except the true one."""
SHOWN = 10
"""Number of steps of joint training in a table."""


def diagnosed(run: Path, student: str) -> dict[str, Any]:
    """Return statistics of the logits of a run's models, and of its joint training by step, without paths."""
    logits, drift, manifest = (read_json(run / DIAGNOSTICS / name) for name in ("logits.json", "drift.json", MANIFEST))
    about = {name: logits["facts"][name] for name in ("round", "examples", "tokens", "seed")}
    about["held_out"] = bool(logits["facts"].get("rows"))
    models = {
        name: one["statistics"] | {"calibration_error": {"mean": one.get("calibration_error")}}
        for name, one in logits["models"].items()
    }
    facts = {"student": student, **about, "hardware": manifest["hardware"], "versions": manifest["versions"]}
    return without_paths(facts | {"models": models, "steps": drift["steps"]})


def read_diagnosed(folder: Path) -> list[dict[str, Any]]:
    return [read_json(path) | {"file": path.stem} for path in sorted(folder.glob("*.json"))]


def model_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return a row of means over supervised tokens for each model."""
    return [
        [called, *(cell(one.get(key, {}).get("mean")) for key in STATISTICS)]
        for name, called in MODELS.items()
        if (one := found["models"].get(name))
    ]


def cell(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def branch_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return rows about both models and their mixture at some steps of the last round."""
    steps = list(found["steps"].values())[-1]
    places = sorted({round(place * (len(steps) - 1) / (SHOWN - 1)) for place in range(SHOWN)})
    return [[str(steps[at]["step"]), *(f"{steps[at][name]:.3f}" for name in BRANCHES)] for at in places]


def gaps(seen: Mapping[str, dict[str, Any]]) -> dict[str, float]:
    """Return the target logit minus the background's mean on Gemma's held-out rows.

    Cross-entropy determines the mixture. If the mixture is what SFT would make of one model, then z_strong = z_sft +
    (1 - lambda) / lambda * (z_sft - z_weak): an extrapolation away from the weak model, here with lambda 0.5.
    """
    models = seen["gemma-3-270m-s42-sizes-held_out"]["models"] if seen else {}
    gap = {name: one["target"]["mean"] - one["background"]["mean"] for name, one in models.items()}
    if not gap:
        return {}
    restart, weak, strong = (gap[name] for name in ("baseline-sft_restart", "round-1-weak", "round-1"))
    mixture, predicted = (weak + strong) / 2, 2 * restart - weak
    names = ("weak branch", "mixture", "SFT restarted", "strong branch", "strong branch, predicted")
    return dict(zip(names, (weak, mixture, restart, strong, predicted), strict=True))


def mechanism(seen: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Return the page's numbers about how joint training works, from the logged steps of all runs and students."""
    found = {name.replace(" ", "_").replace(",", ""): f"{gap:.1f}" for name, gap in gaps(seen).items()}
    runs = [steps for one in seen.values() for steps in [*one["steps"].values()][-1:] if not one.get("held_out")]
    pull = [0.5 * step["negative_mass_mixed"] / step["negative_mass_strong"] for steps in runs for step in steps]
    found |= {"least_pull": f"{min(pull):.2f}", "most_pull": f"{max(pull):.2f}"}
    for name, place in (("first", 0), ("last", -1)):
        shares = [100 * steps[place]["margin_share"] for steps in runs]
        found |= {f"{name}_margin_low": f"{min(shares):.0f}", f"{name}_margin_high": f"{max(shares):.0f}%"}
    return found
