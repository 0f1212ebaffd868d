"""A run directory -> the model card of its result: README.md with front matter that the Hub accepts."""

import hashlib
import re
from pathlib import Path
from typing import Any

import yaml

from weakdriven.report.card_facts import ADAPTER_FILE, from_hub, front_matter, licence, public_name, without_paths
from weakdriven.report.format import WAITING, duration, in_prose, mapping, model_name, number, percent, plain
from weakdriven.report.read import load_run
from weakdriven.report.run.training_set import training_set
from weakdriven.report.run.verdict import effort, verdict
from weakdriven.runs.files import write_text
from weakdriven.runs.yaml import load_yaml

CARD, NO_BASE = "README.md", "a base model that was not recorded"
MARK = "<!-- weakdriven wrote this card ({}); a card that was edited is never overwritten -->"
PEFT_TITLE = "# Model Card for Model ID"
"""Of the empty form that PEFT leaves beside an adapter."""
METHODS = {
    "wmss": "weak-driven training (WMSS)",
    "sft": "supervised fine-tuning",
    "sft_restart": "supervised fine-tuning that starts again at M1",
}
CITATION = """@article{chen2026weakdriven,
  title   = {Weak-Driven Learning: How Weak Agents Make Strong Agents Stronger},
  author  = {Chen, Zehao and Li, Gongxun and Ai, Tianxiang and Li, Yifei and Huang, Zixuan and Zhou, Wang and
             Huang, Tao and Zhuang, Fuzhen and Liu, Xianglong and Li, Jianxin and Wang, Deqing and Ban, Yikun},
  journal = {arXiv preprint arXiv:2602.08222},
  year    = {2026}
}"""
LIMITS = """- The scores are those of one run with one seed; another seed gives other ones. An interval tells how far
  the score may be off because the items are few, and not what another training would have given.
- The benchmarks above are all that was measured. Nothing else was: no other task or language, no safety, no bias.
- What the base model does wrong, this one may do as well; training data were checked only as far as told above."""


def write_cards(run: Path) -> dict[Path, bool]:
    """Write the card of what a run trained; of each card, whether it was written or left because someone edited it."""
    data = load_run(run)
    written = {}
    for stage in result_stages(data):
        if (run / stage).is_dir():
            path = run / stage / CARD
            written[path] = not edited(path)
            if written[path]:
                # A new file under the old name: the old one may be that of another run too, by a hard link.
                write_text(path, signed(describe_model(data, stage, adapter=(run / stage / ADAPTER_FILE).is_file())))
    return written


def result_stages(data: dict[str, Any]) -> list[str]:
    """The finished stage that the method ends with, of an unfinished run its last round; and its merged form."""
    done = [stage["name"] for stage in data["stages"] if stage["status"] == "done"]
    method = str(read_settings(data).get("method") or "wmss")
    pattern = r"round-(\d+)/strong" if method == "wmss" else rf"baselines/{re.escape(method)}(?:-(\d+))?"
    found = {int(match[1] or 1): name for name in done if (match := re.fullmatch(pattern, name))}
    return ([found[max(found)]] if found else []) + (["merged"] if found and "merged" in done else [])


def edited(path: Path) -> bool:
    """Whether a person has changed a card, or written one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    body, _, mark = text.rstrip("\n").rpartition("\n")
    return mark != MARK.format(_digest(body)) and f"\n{PEFT_TITLE}\n" not in text


def signed(text: str) -> str:
    """The card and a last line by which a later change is noticed."""
    text = text.encode("utf-8", "backslashreplace").decode().rstrip("\n")
    return f"{text}\n{MARK.format(_digest(text))}\n"


def describe_model(data: dict[str, Any], stage: str, *, adapter: bool) -> str:
    """The whole card of the model in one stage."""
    recipe, known = read_settings(data), from_hub(data)
    trained = result_stages(data)[0]
    model = trained.removesuffix("/strong").replace("baselines/", "baseline-")
    rows = [row for row in data["accuracy"] if row["accuracy"] is not None]
    own = [row for row in rows if row["model"] == model]
    settings = mapping(recipe.get("data"))
    built = training_set(data["funnel"])
    sources = [str(settings.get("path") or ""), *built.get("sources", [])]
    name = public_name(data["info"].get("recipe") or "unnamed run")
    manifest = next(one["manifest"] for one in data["stages"] if one["name"] == stage)
    parts = [
        f"---\n{front_matter(recipe, own, name=name, adapter=adapter, sources=sources, known=known)}\n---",
        f"# {escaped(name)}",
        what_was_run(recipe, trained, known, adapter=adapter, merged=stage == "merged"),
        escaped(" ".join(verdict(data))),
        escaped(effort(data)),
        "## Scores",
        score_table(rows, model),
        waiting(data),
        "## Training data",
        data_words(data, settings, known),
        *(funnel_table(*table) for table in built.get("tables", [])),
        "## Recipe",
        "Paths are cut to their last part; `weakdriven run` takes this file once they are whole again.",
        fenced(yaml.safe_dump(without_paths(recipe, known), sort_keys=False, allow_unicode=True, width=100), "yaml"),
        "## Versions, hardware and cost",
        versions(manifest),
        cost_table(data),
        "## Licence",
        licence_words(recipe, known),
        "## Limits",
        LIMITS,
        "## Citation",
        fenced(CITATION, "bibtex"),
        "Trained with the Python package `weakdriven`.",
    ]
    return "\n\n".join(filter(None, parts))


def what_was_run(recipe: dict[str, Any], stage: str, known: set[str], *, adapter: bool, merged: bool) -> str:
    """Two sentences: method and rounds, and what this folder holds."""
    base, method = escaped(public_name(recipe.get("model") or NO_BASE, known)), str(recipe.get("method") or "wmss")
    joint, sft = mapping(recipe.get("joint")), mapping(recipe.get("sft"))
    form = "the LoRA adapter" if adapter else "the adapted model with its adapter merged in" if merged else "the model"
    if method != "wmss":
        words = METHODS.get(method, in_prose(f"baseline-{method}"))
        return f"{base} was trained by {escaped(words)}. This folder holds {form} that came of it."
    turn, rounds = stage.split("/")[0].removeprefix("round-"), number(joint.get("rounds")) or 1
    first = "M1 was given" if sft.get("model") else f"{base} (M0) was fine-tuned into M1"
    how = f"on their mixed logits, with weight {plain(number(joint.get('strong_weight')))} on the strong model's"
    if joint.get("enabled") is False:
        how = "without a weak model (plain fine-tuning)"
    chosen = "on all examples"
    if mapping(recipe.get("selection")).get("enabled", True):
        chosen = "on examples drawn by the entropies of the two latest models"
    return (
        f"Weak-driven training (WMSS): {first}, and then in {plain(rounds)} round(s) the latest model was trained "
        f"{chosen} {how}. This folder holds {form} after round {turn} of {plain(rounds)}; it runs alone, without the "
        "weak model." + (" The scores are those of the adapter, before it was merged." if merged else "")
    )


def score_table(rows: list[dict[str, Any]], model: str) -> str:
    """M0, M1, controls and the model of the card, which stands in bold."""
    if not rows:
        return "Nothing has been evaluated yet."
    lines = []
    for row in rows:
        name = escaped(model_name(row["model"]))
        interval = "" if None in (row["low"], row["high"]) else f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"
        right = f"{plain(row['correct'])} / {plain(row['answers'])}"
        name = f"**{name}**" if row["model"] == model else name
        lines.append([escaped(row["benchmark"]), name, right, percent(row["accuracy"]), interval])
    chances = sorted({k for row in rows for k in row["pass_at_k"]}, key=lambda k: (len(k), k))
    for line, row in zip(lines, rows, strict=True):
        line += [percent(row["pass_at_k"].get(k)) for k in chances]
    titles = ["benchmark", "model", "right answers", "accuracy", "95% interval", *(f"pass@{k}" for k in chances)]
    return table([escaped(title) for title in titles], lines)


def waiting(data: dict[str, Any]) -> str:
    names = [stage["name"] for stage in data["stages"] if stage["status"] in WAITING]
    return f"The run is not finished; without a result yet: {escaped(', '.join(names))}." if names else ""


def data_words(data: dict[str, Any], settings: dict[str, Any], known: set[str]) -> str:
    done = {stage["name"]: stage["manifest"] for stage in data["stages"] if stage["status"] == "done"}
    counters = mapping(mapping(done.get("data")).get("counters"))
    told = f"Rows from {escaped(public_name(settings.get('path') or 'an unknown source', known))}"
    if number(counters.get("examples")) is None:
        return f"{told}."
    read, rest = counters.get("rows_read", counters["examples"]), []
    for key, words in (
        ("dropped_long_prompts", "left out because the prompt was too long"),
        ("dropped_empty_completions", "left out because the completion was empty"),
        ("dropped_held_out", "left out because a benchmark asks the same"),
        ("truncated", "cut to the longest length"),
    ):
        if number(counters.get(key)):
            rest.append(f"{plain(counters[key])} {words}")
    told += f": {plain(read)} read, {plain(counters['examples'])} trained on"
    told += f" ({'; '.join(rest)})" if rest else ""
    tokens = number(counters.get("supervised_tokens"))
    told += f", with {plain(tokens)} tokens to learn" if tokens is not None else ""
    drawn = [
        f"round {match[1]} drew {plain(mapping(manifest.get('counters')).get('active'))}"
        for name, manifest in done.items()
        if (match := re.fullmatch(r"round-(\d+)/active", name))
    ]
    return f"{told}. {('Of these, ' + '; '.join(drawn) + '.') if drawn else ''}".strip()


def funnel_table(name: str, seen: Any, kept: Any, lines: list[dict[str, Any]]) -> str:
    rows = [["came in", plain(seen)]]
    rows += [[escaped(f"dropped: {line['reason']}"), plain(line["rows"])] for line in lines]
    return table([escaped(name), "count"], [*rows, ["kept", plain(kept)]])


def versions(manifest: dict[str, Any]) -> str:
    found = {name: text for name, text in mapping(manifest.get("versions")).items() if text != "not installed"}
    told = ", ".join(f"{name} {text}" for name, text in found.items()) or "The versions were not recorded"
    machine = manifest.get("hardware")
    return escaped(f"{told}. " + (f"Trained on {machine}." if machine else "The hardware was not recorded."))


def cost_table(data: dict[str, Any]) -> str:
    """What each finished stage took here; one that another run computed took nothing."""
    rows, total = [], 0.0
    for stage in data["stages"]:
        if stage["status"] == "done":
            seconds, memory = (number(stage["manifest"].get(key)) for key in ("wall_seconds", "peak_memory_bytes"))
            steps = number(mapping(stage["manifest"].get("counters")).get("steps"))
            taken = bool(stage["manifest"].get("taken_from"))
            total += 0.0 if taken else seconds or 0.0
            took = "taken over from another run, not counted" if taken else duration(seconds)
            peak = "" if memory is None else f"{memory / 2**30:.2f} GiB"
            rows.append([escaped(stage["name"]), took, "" if steps is None else plain(steps), peak])
    if not rows:
        return ""
    return table(["stage", "time", "steps", "peak memory"], [*rows, ["**all**", duration(total), "", ""]])


def licence_words(recipe: dict[str, Any], known: set[str]) -> str:
    source = str(recipe.get("model") or NO_BASE)
    base, stated = escaped(public_name(source, known)), licence(source, known)
    if not stated:
        return (
            f"The licence of the base model, {base}, was not found where this card was written. Look it up and add it "
            "to the front matter before you share this model, which its terms may cover."
        )
    name = escaped(stated.get("license_name") or stated["license"])
    return f"The base model, {base}, is under {name}, whose terms may cover what is made from it."


def table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escaped(text: Any) -> str:
    r"""Text of a run that neither Markdown nor HTML reads as anything but text.

    >>> escaped("<script> a|b\n# *c*")
    '&lt;script&gt; a\\|b \\# \\*c\\*'
    """
    text = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~!$])", r"\\\1", text)


def fenced(text: str, language: str) -> str:
    """A block of code that its own text cannot end."""
    ticks = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def read_settings(data: dict[str, Any]) -> dict[str, Any]:
    """The recipe of a run as plain values; empty where it cannot be read."""
    try:
        return mapping(load_yaml(data["recipe_text"]))
    except yaml.YAMLError:
        return {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
