"""What the front matter of a model card says: base, licence, data, scores; and no path of this machine."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData, try_to_load_from_cache

from weakdriven.report.format import mapping
from weakdriven.runs.yaml import load_yaml

TAGS = ["weakdriven", "wmss", "trl"]
ADAPTER_FILE = "adapter_config.json"
EMBEDDED = "embedded:"
OUR_LICENCE = "apache-2.0"
"""Of the model that comes with the package."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def from_hub(data: dict[str, Any]) -> set[str]:
    """Models and datasets that a run read from the Hub, as its files tell: a name alone may be a folder's."""
    models = data["info"].get("hub_models")
    rows = [mapping(one["manifest"].get("inputs")).get("rows") for one in data["stages"] if one["status"] == "done"]
    built = mapping(data["funnel"].get("settings")).get("sources")
    rows += [pair[-1] for pair in built if isinstance(pair, list) and pair] if isinstance(built, list) else []
    datasets = [key.rpartition("@")[0] for key in rows if isinstance(key, str)]  # a file's key is a hash, without @
    names = [*(models if isinstance(models, list) else []), *datasets]
    return {name for name in names if isinstance(name, str) and name}


def hub_id(source: Any, known: Collection[str] = ()) -> str | None:
    """The id of a model or dataset on the Hub, if that is what a recipe names; also that of a folder in its cache.

    Args:
        known: Names that were read from the Hub.

    >>> hub_id("owner/name:main", ["owner/name:main"]), hub_id("models/tiny"), hub_id("/home/me/model")
    ('owner/name', None, None)
    >>> hub_id("/home/me/.cache/huggingface/hub/models--Qwen--Qwen3-4B/snapshots/ab12")
    'Qwen/Qwen3-4B'
    """
    if not isinstance(source, str):
        return None
    if cached := re.search(r"(?:models|datasets)--([\w.-]+?)--([\w.-]+)/snapshots/", source):
        return f"{cached[1]}/{cached[2]}"
    name = source.partition(":")[0]
    return name if source in known and HUB_ID.fullmatch(name) else None


def public_name(source: Any, known: Collection[str] = ()) -> str:
    """What a model or file may be called in public: its Hub id, or the last part of its path.

    >>> public_name("/home/me/models/tiny"), public_name("~/x/train.jsonl"), public_name("embedded:base")
    ('tiny', 'train.jsonl', 'embedded:base')
    """
    text = str(source)
    if found := hub_id(text, known):
        return found + text.partition(":")[1] + text.partition(":")[2] if text.startswith(found) else found
    return text if text.startswith(EMBEDDED) else re.split(r"[/\\]", text.rstrip("/\\"))[-1]


def without_paths(value: Any, known: Collection[str] = ()) -> Any:
    """Settings in which every path is cut to its last part."""
    if isinstance(value, dict):
        return {key: without_paths(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item, known) for item in value]
    return public_name(value, known) if isinstance(value, str) and re.search(r"[/\\]", value) else value


def licence(source: str, known: Collection[str] = ()) -> dict[str, str]:
    """Licence of a base model as its own card states it; empty where that is not known here."""
    if source.startswith(EMBEDDED):
        return {"license": OUR_LICENCE}
    folder, name = Path(source).expanduser(), hub_id(source, known)
    card = folder / "README.md" if folder.is_dir() and source not in known else None
    try:
        if card is None and name:
            found = try_to_load_from_cache(name, "README.md")
            card = Path(found) if isinstance(found, str) else None
        text = card.read_text(encoding="utf-8", errors="replace") if card else ""
        matter = re.match(r"\ufeff?---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
        values = mapping(load_yaml(matter[1])) if matter else {}
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    kind, link = values.get("license"), values.get("license_link")
    if not isinstance(kind, str) or not re.fullmatch(r"[\w.+-]+", kind):
        return {}
    stated = {"license": kind}
    if isinstance(values.get("license_name"), str):
        stated["license_name"] = values["license_name"]
    if isinstance(link, str) and (link.startswith("https://") or name):  # a file of its repository is not in ours
        stated["license_link"] = (
            link if link.startswith("https://") else f"https://huggingface.co/{name}/blob/main/{link}"
        )
    return stated


def front_matter(
    recipe: dict[str, Any],
    scores: list[dict[str, Any]],
    *,
    name: str,
    adapter: bool,
    sources: list[str],
    known: Collection[str],
) -> str:
    """YAML that the Hub reads.

    Args:
        scores: Rows of the model itself.
        sources: Where the training rows came from.
        known: Names that were read from the Hub.
    """
    base = hub_id(recipe.get("model"), known)
    facts: dict[str, Any] = licence(str(recipe.get("model") or ""), known)
    if base:
        facts["base_model_relation"] = "adapter" if adapter else "finetune"
    data = ModelCardData(
        base_model=base,
        datasets=sorted({found for source in sources if (found := hub_id(source, known))}) or None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=TAGS,
        model_name=name,
        eval_results=[result for row in scores for result in _results(row)] or None,
        **facts,
    )
    if data.eval_results is None:
        del data.model_name  # it belongs to the scores
    return data.to_yaml()


def _results(row: dict[str, Any]) -> list[EvalResult]:
    facts = {key: row[key] for key in ("items", "answers") if row.get(key) is not None}
    shared = {"task_type": "text-generation", "dataset_type": row["benchmark"], "dataset_name": row["benchmark"]}
    interval = {} if None in (row["low"], row["high"]) else {"interval_95": [row["low"], row["high"]]}
    results = [
        EvalResult(
            **shared,
            dataset_args=facts,
            metric_type="accuracy",
            metric_name="accuracy",
            metric_value=row["accuracy"],
            metric_args=interval or None,
        )
    ]
    for k, share in row["pass_at_k"].items():
        results.append(
            EvalResult(
                **shared, dataset_args=facts, metric_type=f"pass@{k}", metric_name=f"pass@{k}", metric_value=share
            )
        )
    return results
