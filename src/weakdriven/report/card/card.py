"""Write the model card of a run's result: a README.md whose front matter the Hub accepts."""

import hashlib
import re
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from weakdriven.errors import UserError
from weakdriven.report import validation
from weakdriven.report.card.front_matter import from_hub, front_matter, licence, public_name, without_paths
from weakdriven.report.format import WAITING, in_prose
from weakdriven.report.html import environment
from weakdriven.report.read import DAMAGED, load_run
from weakdriven.report.run.page import training_set
from weakdriven.report.run.verdict import effort, verdict
from weakdriven.report.settings import changed_settings, read_settings, sources_of
from weakdriven.runs.files import write_text

CARD, ADAPTER_FILE, NO_BASE = "README.md", "adapter_config.json", "a base model that was not recorded"
MARK = "<!-- weakdriven wrote this card ({}); a card that was edited is never overwritten -->"
PEFT_TITLE = "# Model Card for Model ID"
"""Title of the empty form that PEFT writes next to an adapter."""


def write_cards(run: Path) -> dict[Path, bool]:
    """Write the cards of a run's result; False marks a card that someone edited, which is kept."""
    try:
        data = load_run(run)
        paths = {run / stage / CARD: stage for stage in result_stages(data)}
        written = {path: not edited(path) for path in paths}
        for path in (path for path in paths if written[path]):
            card = model_card(data, paths[path], adapter=path.with_name(ADAPTER_FILE).is_file())
            write_text(path, signed(card))  # makes a new file: the old one may be hard-linked to another run
        return written
    except DAMAGED as error:
        raise UserError(f"A file of {run} has contents that weakdriven does not write ({error}); no card.") from error


def result_stages(data: dict[str, Any]) -> list[str]:
    """Name the finished stage with the method's result (of an unfinished run, its last round), and its merged form."""
    done = [stage["name"] for stage in data["stages"] if stage["status"] == "done"]
    method = read_settings(data).get("method", "wmss")
    pattern = r"round-(\d+)/strong" if method == "wmss" else rf"baselines/{re.escape(method)}(?:-(\d+))?"
    found = {int(match[1] or 1): name for name in done if (match := re.fullmatch(pattern, name))}
    return ([found[max(found)]] if found else []) + (["merged"] if found and "merged" in done else [])


def edited(path: Path) -> bool:
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    body, _, mark = text.rstrip("\n").rpartition("\n")
    return mark != MARK.format(_digest(body)) and f"\n{PEFT_TITLE}\n" not in text


def signed(text: str) -> str:
    """Append a line by which later edits of the card can be detected."""
    text = text.encode("utf-8", "backslashreplace").decode().rstrip("\n")
    return f"{text}\n{MARK.format(_digest(text))}\n"


def model_card(data: dict[str, Any], stage: str, *, adapter: bool) -> str:
    recipe, known, rows = read_settings(data), from_hub(data), data["accuracy"]
    trained, method = result_stages(data)[0], recipe.get("method", "wmss")
    model = trained.removesuffix("/strong").replace("baselines/", "baseline-")
    rows_from, built = sources_of(recipe), training_set(data["funnel"])
    name, base = public_name(data["info"].get("recipe") or "unnamed run"), recipe.get("model", NO_BASE)
    done = {one["name"]: one["manifest"] for one in data["stages"] if one["status"] == "done"}
    own, sources = [row for row in rows if row["model"] == model], [*rows_from, *built.get("sources", [])]
    used = without_paths(changed_settings(recipe, key_ones=True), known)
    facts = {
        "front_matter": front_matter(recipe, own, name=name, adapter=adapter, sources=sources, known=known),
        "name": name,
        "recipe": {key: recipe.get(key, {}) for key in ("sft", "selection", "joint")},
        "recipe_text": yaml.safe_dump(used, sort_keys=False, allow_unicode=True, width=100),
        "method": method,
        "method_words": in_prose(f"baseline-{method}"),
        "base": public_name(base, known),
        "adapter": adapter,
        "merged": stage == "merged",
        "round": trained.split("/")[0].removeprefix("round-"),
        "verdict": " ".join(verdict(data)),
        "effort": effort(data),
        "model": model,
        "rows": rows,
        "chances": sorted({k for row in rows for k in row["pass_at_k"]}, key=lambda k: (len(k), k)),
        "validated": validation.table(data["validation"]),
        "waiting": [one["name"] for one in data["stages"] if one["status"] in WAITING],
        "source": ", ".join(public_name(source, known) for source in rows_from) or "an unknown source",
        "counters": done.get("data", {}).get("counters", {}),
        "draws": {found[1]: one for name, one in done.items() if (found := re.fullmatch(r"round-(\d+)/active", name))},
        "funnel": built.get("tables", []),
        "result": done[stage],
        "done": done,
        "total": sum(one.get("wall_seconds") or 0.0 for one in done.values() if not one.get("taken_from")),
        "licence": licence(base, known),
    }
    return environment(finalize=as_markdown).get_template("card.md.j2").render(facts, fenced=fenced)


def as_markdown(value: Any) -> Markup:
    """Escape a value for a Markdown template unless it is marked as safe."""
    return value if isinstance(value, Markup) else Markup(escaped(value))


def escaped(text: Any) -> str:
    r"""Escape text so that Markdown and HTML show it literally.

    >>> escaped("<script> a|b\n# *c*")
    '&lt;script&gt; a\\|b \\# \\*c\\*'
    """
    text = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~!$])", r"\\\1", text)


def fenced(text: str, language: str) -> Markup:
    """Make a code block that its own text cannot end."""
    ticks = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return Markup(f"{ticks}{language}\n{text.rstrip()}\n{ticks}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
