"""Format numbers and names for charts, tables and sentences."""

import csv
import io
import math
import re
from collections.abc import Iterable
from typing import Any

Table = tuple[list[str], list[list[str]]]
"""Column titles and rows of cells."""
MISSING = "\N{EN DASH}"
MODEL_NAMES = {
    "base": "M0, base model",
    "sft": "M1, after phase-1 SFT",
    "baseline-sft": "SFT, same epochs",
    "baseline-sft_restart": "SFT, restarted at M1",
    "baseline-sft_active": "SFT, same examples as WMSS",
    "baseline-sft_compute": "SFT, same compute as WMSS",
    "baseline-uniform_active": "WMSS, uniform draw",
    "baseline-scaled_ce": "SFT, scaled logits",
    "baseline-neftune": "NEFTune",
    "baseline-undial": "UNDIAL",
    "baseline-spin": "SPIN",
    "baseline-dpo": "DPO, verified pairs",
    "baseline-ssb": "SSB",
    "baseline-rft": "RFT, own verified completions",
    "baseline-wdjt_only": "WMSS, WD-JT only",
    "baseline-wdds_only": "WMSS, WD-DS only",
    "baseline-wmss_frozen": "WMSS, frozen weak model",
    "baseline-wmss_annealed": "WMSS, strong weight to 1",
}
CONTROLS = ("baseline-sft_restart", "baseline-sft")
"""The reference is the first of these that was evaluated. Like WMSS, restarted SFT has a fresh optimizer."""
COLOURS = {"base": "grey", "sft": "purple", "baseline-sft": "orange", "baseline-sft_restart": "gold"}
ROUNDS, OTHERS = ("blue", "indigo", "sky"), ("brown", "pink", "olive", "plum", "slate")
"""Colours of WMSS by round, and of other models. They repeat: more would be hard to distinguish."""
LEFTOVER, STALE = "from an older recipe", "out of date"
WAITING = ("unfinished", "not run yet", STALE)
"""Statuses of stages that the recipe asks for and that have no result yet."""


def model_name(model: str) -> str:
    """
    >>> model_name("base"), model_name("round-2"), model_name("baseline-spin-2")
    ('M0, base model', 'WMSS, round 2', 'SPIN, iteration 2')
    >>> model_name("sft-at-25"), model_name("round-1-at-25")
    ('M1, after 25% of phase-1 SFT', 'WMSS, round 1, after 25% of its steps')
    """
    last, percent = split_snapshot(model)
    if percent is not None:
        return (
            f"M1, after {percent}% of phase-1 SFT"
            if last == "sft"
            else f"{model_name(last)}, after {percent}% of its steps"
        )
    name = re.sub(r"^round-(\d+)$", r"WMSS, round \1", MODEL_NAMES.get(model, model))
    return re.sub(r"^baseline-spin-(\d+)$", r"SPIN, iteration \1", name)


def split_snapshot(model: str) -> tuple[str, int | None]:
    """Split a snapshot's name into the model of its training and the percentage of steps done; None if not a snapshot.

    >>> split_snapshot("round-1-at-25"), split_snapshot("round-1")
    (('round-1', 25), ('round-1', None))
    """
    found = re.fullmatch(r"(.+)-at-(\d+)", model)
    return (found[1], int(found[2])) if found else (model, None)


def model_order(model: str) -> tuple[Any, ...]:
    """Sort models as in `MODEL_NAMES`, then rounds; put snapshots of a model before it.

    >>> sorted(["round-10", "round-9", "round-9-at-50", "sft", "sft-at-75", "sft-at-5", "base"], key=model_order)
    ['base', 'sft-at-5', 'sft-at-75', 'sft', 'round-9-at-50', 'round-9', 'round-10']
    """
    last, percent = split_snapshot(model)
    place = [*MODEL_NAMES].index(last) if last in MODEL_NAMES else len(MODEL_NAMES)
    return place, len(last), last, 100 if percent is None else percent  # the length puts round-10 after round-9


def model_at(place: int) -> str:
    """Name M0, M1, M2, ... as in the run directory.

    >>> model_at(0), model_at(1), model_at(2)
    ('base', 'sft', 'round-1')
    """
    return ("base", "sft")[place] if place < 2 else f"round-{place - 1}"


def weak_of(round_number: int, *manifests: Any) -> str:
    """Name a round's weak model, from one of the round's manifests if it says so, else M_{t-1}."""
    named = (mapping(mapping(one).get("settings")).get("weak_model") for one in manifests)
    return next((name for name in named if name and is_place(name)), model_at(round_number - 1))


def is_place(name: str) -> bool:
    """Return whether `name` is a plain path inside a run; a damaged file may name a path that leaves it.

    >>> is_place("round-1/strong"), is_place("../x"), is_place("/x"), is_place("a/../b"), is_place("a" * 999)
    (True, False, False, False, False)
    """
    return len(name) < 200 and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", name) is not None


def stage_of(model: str) -> str:
    return f"{model}/strong" if model.startswith("round-") else model.replace("baseline-", "baselines/", 1)


def stage_kind(name: str) -> str:
    if name.startswith(("eval/", "validation/")):
        return "evaluation"
    if name.startswith("entropy/") or name.endswith("/active"):
        return "WD-DS"
    if name.startswith("baselines/"):
        return "baselines"
    return "training" if name == "sft" or name.endswith("/strong") else "other"


def in_prose(model: str) -> str:
    """Name a model inside a sentence, with brackets instead of the comma: SFT (same epochs)."""
    name, comma, rest = model_name(model).partition(", ")
    return f"{name} ({rest})" if comma else name


def colour(model: str) -> str:
    """Return a model's colour, the same on all pages; a snapshot has the colour of its model.

    >>> colour("sft-at-25"), colour("round-1"), colour("baseline-neftune"), colour("baseline-spin-2")
    ('purple', 'blue', 'slate', 'pink')
    """
    last = re.sub(r"^baseline-spin-\d+$", "baseline-spin", split_snapshot(model)[0])
    if found := re.fullmatch(r"round-(\d+)", last):
        return ROUNDS[(int(found[1]) - 1) % len(ROUNDS)]
    others = [name for name in MODEL_NAMES if name not in COLOURS]
    return COLOURS.get(last) or OTHERS[others.index(last) % len(OTHERS) if last in others else 0]


def number(value: Any) -> Any:
    """Return the value if it is a finite number, else None, so that figures show NaN as a gap."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def percent(value: Any) -> str:
    return MISSING if number(value) is None else f"{100 * value:.1f}%"


def share_words(share: float) -> str:
    """Format a share in percent, rounding to 0.0% and 100.0% only what is exactly 0 or 1.

    >>> share_words(0.25), share_words(0.0001), share_words(0.99999)
    ('25.0%', 'less than 0.1%', 'more than 99.9%')
    """
    return "less than 0.1%" if 0 < share < 0.0005 else "more than 99.9%" if 0.9995 <= share < 1 else percent(share)


def score(row: dict[str, Any]) -> str:
    """Format an accuracy with its interval, if it has one."""
    if row["low"] is None:
        return percent(row["accuracy"])
    return f"{percent(row['accuracy'])} (95% interval {100 * row['low']:.1f} to {100 * row['high']:.1f})"


def chance_words(chance: float | None) -> str:
    """
    >>> chance_words(0.0001), chance_words(0.25)
    ('<0.001', '0.250')
    """
    return MISSING if chance is None else "<0.001" if chance < 0.001 else f"{chance:.3f}"


def brackets(interval: Iterable[float]) -> str:
    low, high = interval
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def with_brackets(share: float, interval: Iterable[float], sign: str = "") -> str:
    """Format a share and its interval in percent; `sign` is "+" for a difference."""
    return f"{100 * share:{sign}.1f} {brackets(interval)}"


def duration(seconds: Any) -> str:
    """Format seconds for people.

    >>> duration(31.24), duration(312), duration(7380)
    ('31.2 s', '5 min 12 s', '2 h 03 min')
    """
    if number(seconds) is None:
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{seconds:.1f} s"
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    if isinstance(value, bool | str | list):
        return str(value)
    return MISSING if number(value) is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def gibibytes(size: Any) -> str:
    return MISSING if number(size) is None else f"{size / 2**30:.2f} GiB"


def shorten(value: Any, length: int = 1200) -> str:
    """Cut a text, or the last message of a conversation, to a length."""
    if isinstance(value, list):
        value = mapping(value[-1]).get("content") if value else ""
    text = "" if value is None else str(value)
    return text if len(text) <= length else text[:length].rstrip() + " …"


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def markdown_table(titles: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [titles, ["---"] * len(titles), *rows]]
