"""Front matter of a model card: base model, licence, datasets and scores. Names contain no local paths."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData, try_to_load_from_cache

from weakdriven.report.format import mapping
from weakdriven.runs.yaml import load_yaml

EMBEDDED = "embedded:"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def from_hub(data: dict[str, Any]) -> set[str]:
    """List the models and datasets that a run read from the Hub; a bare name in a recipe may also be a folder."""
    inputs = [(name, key) for one in data["done"].values() for name, key in one.get("inputs", {}).items()]
    keys = [key for name, key in inputs if name == "rows" or name.startswith("rows of ")]
    keys += [key for _, key in data["funnel"].get("settings", {}).get("sources", [])]
    datasets = {key.rpartition("@")[0] for key in keys}  # the key of a file is a hash, without @
    return datasets.union(data["info"].get("hub_models", [])) - {""}


def hub_id(source: str | None, known: Collection[str] = ()) -> str | None:
    """Return the Hub id of a model or dataset if the recipe names one of `known` or a folder in the Hub's cache.

    >>> hub_id("owner/name:main@v1", ["owner/name:main@v1"]), hub_id("models/tiny"), hub_id("/home/me/model")
    ('owner/name', None, None)
    >>> hub_id("/home/me/.cache/huggingface/hub/models--Qwen--Qwen3-4B/snapshots/ab12")
    'Qwen/Qwen3-4B'
    """
    if not source:
        return None
    if cached := re.search(r"(?:models|datasets)--([\w.-]+?)--([\w.-]+)/snapshots/", source):
        return f"{cached[1]}/{cached[2]}"
    name = re.split("[:@]", source)[0]
    return name if source in known and HUB_ID.fullmatch(name) else None


def public_name(source: str, known: Collection[str] = ()) -> str:
    """Name a model or file without its local path: its Hub id, or the last part of its path.

    >>> public_name("/home/me/models/tiny"), public_name("~/x/train.jsonl"), public_name("embedded:base")
    ('tiny', 'train.jsonl', 'embedded:base')
    """
    if found := hub_id(source, known):
        return source if source.startswith(found) else found
    return source if source.startswith(EMBEDDED) else re.split(r"[/\\]", source.rstrip("/\\"))[-1]


def without_paths(value: Any, known: Collection[str] = ()) -> Any:
    """Cut every path in settings to its last part."""
    if isinstance(value, dict):
        return {key: without_paths(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item, known) for item in value]
    return public_name(value, known) if isinstance(value, str) and re.search(r"[/\\]", value) else value


def licence(source: str, known: Collection[str] = ()) -> dict[str, str]:
    """Read the licence of a base model from its own card; empty if it is not available here."""
    if source.startswith(EMBEDDED):  # the model in the package
        return {"license": "apache-2.0"}
    folder, name = Path(source).expanduser(), hub_id(source, known)
    try:
        own = folder.is_dir() and source not in known
        card = str(folder / "README.md") if own else try_to_load_from_cache(name, "README.md") if name else None
        text = Path(card).read_text(encoding="utf-8", errors="replace") if isinstance(card, str) else ""
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
    if isinstance(link, str) and link.startswith("https://"):
        stated["license_link"] = link
    elif isinstance(link, str) and name:  # a link relative to the base model's repository
        stated["license_link"] = f"https://huggingface.co/{name}/blob/main/{link}"
    return stated


def front_matter(
    recipe: dict[str, Any],
    scores: list[dict[str, Any]],
    *,
    name: str,
    adapter: bool,
    sources: list[str | None],
    known: Collection[str],
) -> str:
    """Write the YAML that the Hub reads, from the scores of the model and the sources of its training data."""
    model = recipe.get("model", "")
    base, facts = hub_id(model, known), dict[str, Any](licence(model, known))
    if base:
        facts["base_model_relation"] = "adapter" if adapter else "finetune"
    data = ModelCardData(
        base_model=base,
        datasets=sorted({found for source in sources if (found := hub_id(source, known))}) or None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["weakdriven", "wmss", "trl"],
        model_name=name,
        eval_results=[result for row in scores for result in _results(row)] or None,
        **facts,
    )
    if data.eval_results is None:
        del data.model_name  # the Hub needs it only with scores
    return data.to_yaml()


def _results(row: dict[str, Any]) -> list[EvalResult]:
    items = {key: row[key] for key in ("items", "answers") if row.get(key) is not None}
    interval = None if None in (row["low"], row["high"]) else {"interval_95": [row["low"], row["high"]]}
    metrics = {"accuracy": row["accuracy"]} | {f"pass@{k}": share for k, share in row["pass_at_k"].items()}
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=row["benchmark"],
            dataset_name=row["benchmark"],
            dataset_args=items,
            metric_type=name,
            metric_name=name,
            metric_value=value,
            metric_args=interval if name == "accuracy" else None,
        )
        for name, value in metrics.items()
    ]
