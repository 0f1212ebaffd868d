"""`weakdriven select explain`: how a selection (WD-DS) was drawn, and why one example was chosen or not.

N = examples.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from weakdriven.errors import UserError
from weakdriven.report.files import Columns, read_columns, read_examples
from weakdriven.report.format import MISSING, model_at, model_name, plain, share_words, shorten, weak_of
from weakdriven.report.read import read_plan
from weakdriven.report.run.figures import CHANGES
from weakdriven.report.uniformity import uniformity, uniformity_words
from weakdriven.runs.directory import ACTIVE, EXAMPLES, RUN_FILE, SCORES
from weakdriven.runs.files import read_json
from weakdriven.runs.manifest import MANIFEST
from weakdriven.wmss.selection import draws, selection_weights

LETTERS = {"consolidation": "alpha", "difficulty": "beta", "repair": "gamma"}
FALL, RISE = "fall of the entropy from weak to strong", "rise of the entropy from weak to strong"
TERMS = {
    "paper": (FALL, "entropy under the strong model", RISE),
    "official": ("entropy under the weak model", FALL, RISE),
}
FORMULAS = {
    "paper": "the paper's equation: alpha [-dH]+ + beta H_strong + gamma [dH]+",
    "official": "the authors' code: alpha H_weak + beta [-dH]+ + gamma [dH]+, each divided by its sum over the data",
}


@dataclass(frozen=True)
class Selection:
    """A finished selection and the scores it was drawn from, in the order of the data."""

    run: Path
    round_number: int
    settings: dict[str, Any]
    counters: dict[str, Any]
    models: tuple[str, str]
    """Names of the weak and the strong model."""
    active: Columns
    weak: Columns
    strong: Columns
    note: str
    """Why the explanation may be outdated; empty if it is not."""

    @property
    def draws(self) -> int:
        return draws(len(self.active.ids), self.settings["multiplier"])

    @property
    def entropies(self) -> tuple[np.ndarray, np.ndarray]:
        """Entropies of every example under the weak and under the strong model."""
        return self.weak.values["entropy"], self.strong.values["entropy"]

    def terms(self, row: int) -> dict[str, float]:
        weights = {name: self.settings[name] for name in (*LETTERS, "formula")}
        terms = selection_weights(*self.entropies, **weights)[:, row]
        return dict(zip(LETTERS, terms.tolist(), strict=True))


def load_selection(run: Path, round_number: int | None = None) -> Selection:
    """Load the selection of a round with its scores; by default, of the last round that has one."""
    round_number, outdated = find_round(run, round_number)
    stage = f"round-{round_number}/active"
    manifest = read_json(run / stage / MANIFEST)
    models = weak_of(round_number, manifest), model_at(round_number)
    active = read_columns(run, f"{stage}/{ACTIVE}", ["probability", "draws"])
    names = ["entropy", "truncated", "tokens", "nll", "target_probability"]
    weak, strong = (read_columns(run, f"entropy/{model}/{SCORES}", names) for model in models)
    for model, scores in zip(models, (weak, strong), strict=True):
        if not scores.ids.equals(active.ids):
            raise UserError(
                f"entropy/{model} scores {len(scores.ids):,} examples and {stage} draws from {len(active.ids):,}, "
                "and their ids differ because the data has changed. Run the recipe again."
            )
    note = f"The recipe has changed since {stage} was drawn; run the recipe again for a new draw." if outdated else ""
    facts = manifest["settings"], manifest["counters"]
    return Selection(run, round_number, *facts, models, active, weak, strong, note)


def find_round(run: Path, round_number: int | None = None) -> tuple[int, bool]:
    """Choose the round to explain, and say whether its selection belongs to an older recipe."""
    if not (run / RUN_FILE).is_file():
        raise UserError(f"{run} is not a run directory: it has no {RUN_FILE}; give the folder that a run wrote.")
    folders = (path.parts[-3] for path in run.glob(f"round-*/active/{MANIFEST}"))
    rounds = sorted(int(found[1]) for name in folders if (found := re.fullmatch(r"round-([1-9]\d*)", name)))
    if not rounds:
        raise UserError(
            f"{run} has no finished selection yet; make one with `weakdriven select`, or continue the run. "
            "Only method: wmss with selection.enabled: true selects examples."
        )
    plan = read_plan(run, [])
    keys = {t: read_json(run / f"round-{t}/active" / MANIFEST)["key"] for t in rounds}
    current = [t for t in rounds if not plan or plan.get(f"round-{t}/active") == keys[t]]
    if round_number is None:
        round_number = (current or rounds)[-1]
    if round_number not in rounds:
        have = ", ".join(map(str, rounds))
        raise UserError(f"{run} has no selection of round {round_number}; give --round with one of {have}.")
    return round_number, round_number not in current


def summarise(selection: Selection, top: int = 5) -> dict[str, Any]:
    """Summarize a selection in numbers: the counters of the draw, and statistics of its files."""
    weak_N, strong_N = selection.entropies
    change_N, drawn_N = strong_N - weak_N, selection.active.values["draws"] > 0
    hardest, regressed = (np.argsort(-values_N, kind="stable")[:top].tolist() for values_N in (strong_N, change_N))
    regressed = [row for row in regressed if change_N[row] > 0]
    examples = _examples(selection, sorted({*hardest, *regressed}))
    return {
        "examples": len(weak_N),
        "active": int(drawn_N.sum()),
        "weak_entropy": float(weak_N.mean()),
        "strong_entropy": float(strong_N.mean()),
        "change": float(change_N.mean()),
        "truncated_active": int((selection.strong.values["truncated"][drawn_N] > 0).sum()),
        "hardest": [examples[row] for row in hardest],
        "regressed": [examples[row] for row in regressed],
    }


def describe_example(selection: Selection, example_id: str) -> dict[str, Any]:
    ids = selection.active.ids
    row = ids.index(example_id).as_py()
    if row < 0:
        some = ", ".join(map(repr, ids.slice(0, 3).to_pylist()))
        raise UserError(
            f"No example of round {selection.round_number} has the id {example_id!r}. Its {len(ids):,} ids look like "
            f"{some}; dropped rows are counted in data/{MANIFEST}."
        )
    strong_N, probability_N = selection.entropies[1], selection.active.values["probability"]
    p = float(probability_N[row])
    both = {"weak": selection.weak, "strong": selection.strong}
    facts: dict[str, Any] = {
        **{role: {name: float(one[row]) for name, one in scores.values.items()} for role, scores in both.items()},
        "terms": selection.terms(row),
        "probability": p,
        "times_uniform": p * len(probability_N),
        "harder_than": float((strong_N < strong_N[row]).mean()),
        "likelier_than": float((probability_N < p).mean()),
        "expected_draws": selection.draws * p,
        "chance": chance_of_any(p, selection.draws),
        **_examples(selection, [row], whole=True)[row],
    }
    return facts | {"verdict": verdict(facts, selection)}


def chance_of_any(probability: float, count: int) -> float:
    """Compute the probability of at least one hit in `count` draws, accurate even if it is tiny.

    >>> round(chance_of_any(0.25, 4), 6)
    0.683594
    """
    return 1.0 if probability >= 1 else -math.expm1(count * math.log1p(-probability))


def verdict(facts: dict[str, Any], selection: Selection) -> str:
    """Say in a sentence whether it could be chosen, whether it was, its chance, and the largest term of its weight."""
    if facts["probability"] == 0:
        silent = max(facts[role]["entropy"] for role in ("weak", "strong")) <= 0
        why = "both entropies are zero" if silent else "all terms of its weight are zero with these settings"
        return f"It could never be chosen: {why}, so its weight is zero."
    chance = f"its chance in {selection.draws:,} draws was {share_words(facts['chance'])}"
    (largest, value), whole = max(facts["terms"].items(), key=lambda term: term[1]), sum(facts["terms"].values())
    if whole:
        words = dict(zip(LETTERS, TERMS[selection.settings["formula"]], strict=True))[largest]
        source = f"{share_words(value / whole)} of its weight comes from {largest}, the {words}"
    else:
        source = "every weight in the data is zero, so all examples were equally likely"
    return f"{'Chosen' if facts['draws'] else 'Not chosen'}, by chance: {chance}; {source}."


def _examples(selection: Selection, rows: list[int], whole: bool = False) -> dict[int, dict[str, Any]]:
    """Return ids, entropies, draws and texts by row number; texts are cut to one short line unless `whole`."""
    ids = selection.active.ids_of(rows)
    texts = read_examples(selection.run, ids)
    weak_N, strong_N = selection.entropies
    return {
        row: {
            "id": ids[row],
            "weak_entropy": float(weak_N[row]),
            "strong_entropy": float(strong_N[row]),
            "draws": int(selection.active.values["draws"][row]),
            **{name: _text(texts.get(row, {}).get(name, ""), whole) for name in ("prompt", "completion")},
        }
        for row in rows
    }


def _text(text: Any, whole: bool) -> str:
    """Format a text, or all messages of a conversation; unless `whole`, only the last message on one short line."""
    if text == []:
        return "(none: plain text)"
    if not whole:
        return shorten(" ".join(shorten(text, 400).split()), 80)
    return text if isinstance(text, str) else "\n".join(f"{one['role']}: {one['content']}" for one in text)


def explain_selection(run: Path, round_number: int | None, console: Console, top: int = 5) -> None:
    selection = load_selection(run, round_number)
    facts = summarise(selection, top)
    _print_note(selection, console)
    drawn = selection.active.values
    if found := uniformity(drawn["probability"], drawn["draws"], selection.draws):
        console.print(Text(f"{' '.join(uniformity_words(found))}\n"))
    console.print(_pairs(_selection_lines(selection, facts), f"Selection of round {selection.round_number}"))
    if facts["hardest"]:
        console.print(_example_table("Hardest: highest entropy under the strong model", facts["hardest"]))
    if facts["regressed"]:
        title = "Most regressed: largest rise of the entropy from weak to strong"
        console.print(_example_table(title, facts["regressed"]))


def explain_example(run: Path, round_number: int | None, example_id: str, console: Console) -> None:
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
        lines[f"{name} ({letter})"] = f"{settings[name]:g} times the {words}: {share} of all weight"
    low, high, size = (counters[name] for name in ("p_min", "p_max", "effective_sample_size"))
    expected, realised = (share_words(counters[f"{name}_unique"]) for name in ("expected", "realised"))
    changes = [f"{words} in {plain(counters[key])}" for key, words in CHANGES.items()]
    return lines | {
        "probability, times uniform": f"{low * count:.4g} to {high * count:.4g}, spread (CV) {plain(counters['p_cv'])}",
        "effective sample size": f"{size:,.1f} of {count:,} examples ({share_words(size / count)})",
        "draws": f"{selection.draws:,} with replacement, duplicates {'dropped' if settings['dedup'] else 'kept'}",
        "unique share of the draws": f"{expected} expected, {realised} actual",
        "active set": f"{facts['active']:,} of {count:,} examples, "
        f"{facts['truncated_active']:,} with a truncated completion",
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
    cut = "truncated at data.max_length" if facts["strong"]["truncated"] else "not truncated"
    return lines | {
        "probability in one draw": f"{facts['probability']:.4g}, {facts['times_uniform']:.3g} times uniform, "
        f"above {likelier} of the examples",
        "difficulty rank": f"harder for the strong model than {harder} of the examples",
        "expected draws": f"{facts['expected_draws']:.4g} in {selection.draws:,} draws",
        "chance of at least one": share_words(facts["chance"]),
        "times in the active set": f"{facts['draws']:,}" + " (duplicates dropped)" * settings["dedup"],
        "completion": f"{facts['strong']['tokens']:,.0f} supervised tokens, {cut}",
    }


def _pairs(lines: dict[str, str], title: str = "") -> Table:
    columns = Column(style="dim"), Column(overflow="fold")
    table = Table(*columns, title=Text(title), title_justify="left", show_header=False, box=None, pad_edge=False)
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
    numbers = [Column(name, overflow="fold", justify="right") for name in ("weak", "strong", "draws")]
    texts = [Column(name, overflow="fold") for name in ("prompt", "completion")]
    name = Column("id", overflow="fold", no_wrap=True)
    table = Table(name, *numbers, *texts, title=Text(title), title_justify="left")
    for one in examples:
        numbers = [f"{one['weak_entropy']:.4f}", f"{one['strong_entropy']:.4f}", f"{one['draws']:,}"]
        table.add_row(*(Text(_clean(text)) for text in (one["id"], *numbers, one["prompt"], one["completion"])))
    return table


def _clean(text: str) -> str:
    """Replace characters of the data that would control a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
