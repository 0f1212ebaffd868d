"""What the front matter of a model card says: base, licence, data, scores; and no path of this machine."""

import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData, try_to_load_from_cache

from weakdriven.report.words import mapping

TAGS = ["weakdriven", "wmss", "trl"]
ADAPTER_FILE = "adapter_config.json"
EMBEDDED = "embedded:"
OUR_LICENCE = "apache-2.0"
"""Of the model that comes with the package."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
DATA_FILE = re.compile(r"\.(jsonl?|parquet|csv|arrow)(\.(gz|zst))?$", re.IGNORECASE)


def hub_id(source: Any) -> str | None:
    """The id of a model or dataset on the Hub, if that is what a recipe names; also that of a folder in its cache.

    >>> hub_id("Qwen/Qwen3-4B-Base"), hub_id("owner/name:main"), hub_id("data/train.jsonl"), hub_id("/home/me/model")
    ('Qwen/Qwen3-4B-Base', 'owner/name', None, None)
    >>> hub_id("/home/me/.cache/huggingface/hub/models--Qwen--Qwen3-4B/snapshots/ab12")
    'Qwen/Qwen3-4B'
    """
    if not isinstance(source, str):
        return None
    if cached := re.search(r"(?:models|datasets)--([\w.-]+?)--([\w.-]+)/snapshots/", source):
        return f"{cached[1]}/{cached[2]}"
    name = source.partition(":")[0]
    if not HUB_ID.fullmatch(name) or DATA_FILE.search(name) or Path(source).expanduser().exists():
        return None
    return name


def public_name(source: Any) -> str:
    """What a model or file may be called in public: its Hub id, or the last part of its path.

    >>> public_name("/home/me/models/tiny"), public_name("~/x/train.jsonl"), public_name("embedded:base")
    ('tiny', 'train.jsonl', 'embedded:base')
    """
    text = str(source)
    if found := hub_id(text):
        return found + text.partition(":")[1] + text.partition(":")[2] if text.startswith(found) else found
    return text if text.startswith(EMBEDDED) else re.split(r"[/\\]", text.rstrip("/\\"))[-1]


def without_paths(value: Any) -> Any:
    """Settings in which every path is cut to its last part."""
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    return public_name(value) if isinstance(value, str) and re.search(r"[/\\]", value) else value


def licence(source: str) -> dict[str, str]:
    """Licence of a base model as its own card states it; empty where that is not known here."""
    if source.startswith(EMBEDDED):
        return {"license": OUR_LICENCE}
    folder, name = Path(source).expanduser(), hub_id(source)
    card = folder / "README.md" if folder.is_dir() else None
    if card is None and name:
        found = try_to_load_from_cache(name, "README.md")
        card = Path(found) if isinstance(found, str) else None
    try:
        text = card.read_text(encoding="utf-8", errors="replace") if card else ""
        matter = re.match(r"\ufeff?---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
        values = mapping(yaml.safe_load(matter[1])) if matter else {}
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
    recipe: dict[str, Any], scores: list[dict[str, Any]], *, name: str, adapter: bool, sources: list[str]
) -> str:
    """YAML that the Hub reads.

    Args:
        scores: Rows of the model itself.
        sources: Where the training rows came from.
    """
    base = hub_id(recipe.get("model"))
    facts: dict[str, Any] = licence(str(recipe.get("model") or ""))
    if base:
        facts["base_model_relation"] = "adapter" if adapter else "finetune"
    data = ModelCardData(
        base_model=base,
        datasets=sorted({found for source in sources if (found := hub_id(source))}) or None,
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
