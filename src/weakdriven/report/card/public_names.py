"""The public names of models and data: ids on the Hub, and no path of this machine."""

import re
from collections.abc import Collection
from typing import Any

from weakdriven.report.format import mapping

EMBEDDED = "embedded:"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def from_hub(data: dict[str, Any]) -> set[str]:
    """Models and datasets that a run read from the Hub, as its files say: a bare name may also be a folder's."""
    models = data["info"].get("hub_models")
    rows = [mapping(one["manifest"].get("inputs")).get("rows") for one in data["stages"] if one["status"] == "done"]
    built = mapping(data["funnel"].get("settings")).get("sources")
    rows += [pair[-1] for pair in built if isinstance(pair, list) and pair] if isinstance(built, list) else []
    datasets = [key.rpartition("@")[0] for key in rows if isinstance(key, str)]  # a file's key is a hash, without @
    names = [*(models if isinstance(models, list) else []), *datasets]
    return {name for name in names if isinstance(name, str) and name}


def hub_id(source: Any, known: Collection[str] = ()) -> str | None:
    """The id of a model or dataset on the Hub, if a recipe names one of `known` or a folder in the Hub's cache.

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
