"""The front matter of a model card: base, licence, data, scores."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData, try_to_load_from_cache

from weakdriven.report.card.public_names import EMBEDDED, hub_id
from weakdriven.report.format import mapping
from weakdriven.runs.yaml import load_yaml


def licence(source: str, known: Collection[str] = ()) -> dict[str, str]:
    """Licence of a base model as its own card states it; empty where that is not known here."""
    if source.startswith(EMBEDDED):  # the model that comes with the package
        return {"license": "apache-2.0"}
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
    """YAML that the Hub reads, from the scores of the model itself and the sources of its training rows."""
    base = hub_id(recipe.get("model"), known)
    facts: dict[str, Any] = licence(str(recipe.get("model") or ""), known)
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
        del data.model_name  # it belongs to the scores
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
