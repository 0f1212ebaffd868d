"""Reference of all settings: values, defaults, descriptions, and their names in the paper and in other trainers."""

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weakdriven.config.recipe import Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.errors import UserError

PHASES = ("sft", "joint")
"""The training phases of WMSS, whose settings have the same names."""
OTHER_NAMES = {
    "lambda": ("joint.strong_weight", "the paper's lambda"),
    "lam": ("joint.strong_weight", "the paper's lambda"),
    "alpha": ("selection.consolidation", "the paper's alpha"),
    "beta": ("selection.difficulty", "the paper's beta"),
    "gamma": ("selection.repair", "the paper's gamma"),
    "K": ("joint.rounds", "the paper's K"),
    "lr": ("learning_rate", ""),
    "num_epochs": ("epochs", ""),
    "num_train_epochs": ("epochs", ""),
    "max_steps": ("epochs", ""),
    "gradient_accumulation_steps": (
        "batch_size",
        "micro_batch_size x devices x gradient_accumulation_steps, so accumulation follows from it",
    ),
    "per_device_train_batch_size": ("micro_batch_size", ""),
    "per_device_batch_size": ("micro_batch_size", ""),
    "train_batch_size": ("batch_size", "over all devices"),
    "global_batch_size": ("batch_size", ""),
    "optim": ("optimizer", ""),
    "lr_scheduler_type": ("schedule", ""),
    "warmup_steps": ("warmup_ratio", "a fraction of the steps"),
    "max_seq_length": ("data.max_length", ""),
    "max_seq_len": ("data.max_length", ""),
    "model_max_length": ("data.max_length", ""),
    "cutoff_len": ("data.max_length", ""),
    "dataset": ("data.path", ""),
    "dataset_name": ("data.path", ""),
    "train_file": ("data.path", ""),
    "model_name": ("model", ""),
    "model_name_or_path": ("model", ""),
    "base_model": ("model", ""),
    "tasks": ("eval.benchmarks", ""),
    "bf16": ("precision", "bf16-mixed by default"),
    "fp16": ("precision", "fp16-mixed scales the loss"),
    "dtype": ("precision", ""),
    "torch_dtype": ("precision", ""),
    "eval_strategy": ("sft.eval_steps", "or joint.eval_steps"),
    "load_best_model_at_end": ("sft.keep", "best"),
    "early_stopping_patience": ("sft.patience", ""),
    "attn_implementation": ("attention", ""),
    "lora_r": ("lora.rank", ""),
    "r": ("lora.rank", ""),
    "lora_alpha": ("lora.alpha", ""),
    "lora_dropout": ("lora.dropout", ""),
    "load_in_4bit": ("lora.quantize", "4bit"),
    "neftune_noise_alpha": ("neftune.alpha", "for method neftune"),
    "output_dir": ("--output", "an option of the command"),
    "fsdp": ("--launch", "an option of the command, such as --launch fsdp2-8gpu"),
}
"""Maps names from the paper and other trainers to our setting and a note; a setting without a group is a phase's."""


@dataclass(frozen=True)
class Setting:
    """One setting, or a group of them."""

    key: str
    values: str
    default: str
    text: str
    group: bool = False


def all_settings() -> list[Setting]:
    """Return all groups and settings of a recipe, in the order of the settings classes."""
    schema = Recipe.model_json_schema()
    return list(_walk(schema, schema["$defs"], ""))


def _walk(schema: dict[str, Any], groups: dict[str, Any], prefix: str) -> Iterator[Setting]:
    required = schema.get("required", [])
    inner: list[tuple[str, dict[str, Any], str]] = []
    for name, field in schema["properties"].items():
        group = _group_of(field, groups)
        if group is None:
            default = "required" if name in required else _shown(field.get("default"))
            yield Setting(prefix + name, _values(field, groups), default, field.get("description", ""))
        else:
            inner.append((prefix + name, group, field.get("description") or group.get("description", "")))
    for key, group, text in inner:
        yield Setting(key, "", "", text, group=True)
        yield from _walk(group, groups, f"{key}.")


def _group_of(field: dict[str, Any], groups: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a field that is a group of settings, also an optional one such as `lora`, else None."""
    for choice in [field, *field.get("anyOf", [])]:
        if "properties" in (found := groups.get(choice.get("$ref", "").rpartition("/")[2], {})):
            return found
    return None


def _shown(value: Any) -> str:
    """Return a value as it is written in YAML."""
    return "unset" if value is None else value if isinstance(value, str) else json.dumps(value)


def _values(field: dict[str, Any], groups: dict[str, Any]) -> str:
    """Describe the values that a field accepts."""
    if "$ref" in field:
        return f"{{{', '.join(groups[field['$ref'].rpartition('/')[2]]['properties'])}}}"
    if "enum" in field:
        return ", ".join(_shown(one) for one in field["enum"])
    if "const" in field:
        return _shown(field["const"])
    if "anyOf" in field:
        return " or ".join(_values(one, groups) for one in field["anyOf"] if one.get("type") != "null")
    if field.get("type") == "array":
        return f"list: {_values(field['items'], groups)}" if field.get("items") else "list"
    kind: str = field.get("type", "value")
    kind = {"string": "text", "boolean": "true, false"}.get(kind, kind)
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [
        f"{sign} {int(bound) if bound == int(bound) else bound}"  # older pydantic writes 0.0 for 0
        for name, sign in signs.items()
        if (bound := field.get(name)) is not None
    ]
    return " ".join([kind, " and ".join(bounds)]).strip()


def explain_setting(key: str) -> str:
    """Explain one setting, or list the settings of a group, one per line."""
    settings = all_settings()
    found = next((one for one in settings if one.key == key), None)
    if found is None:
        if elsewhere := other_name(key):
            return f"{key} is not a setting. {elsewhere}"
        ends = [one.key for one in settings if one.key.rpartition(".")[2] == key and not one.group]
        near = ends or difflib.get_close_matches(key, [one.key for one in settings], 3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "`weakdriven recipes explain` lists all settings."
        raise UserError(f"{key} is not a setting. {hint}")
    if not found.group:
        return f"{found.key}: {found.values}\ndefault: {found.default}\n\n{found.text}"
    inside = [one for one in settings if one.key.startswith(f"{key}.")]
    lines = [f"  {one.key}: {one.values or 'a group'}{f' ({one.default})' if one.default else ''}" for one in inside]
    return "\n".join([f"{found.key}: {found.text}", "", *lines])


def other_name(key: str) -> str | None:
    """Return a sentence with our name for a setting that the paper or another trainer calls `key`.

    >>> other_name("lambda"), other_name("joint.lr")
    ("The paper's lambda is joint.strong_weight.", 'Its name here is joint.learning_rate.')
    """
    group, _, name = key.rpartition(".")
    ours, note = OTHER_NAMES.get(name, (None, ""))
    if ours is None:
        return None
    if note.startswith("the paper's"):
        return f"{note[0].upper()}{note[1:]} is {ours}."
    if ours in TrainSettings.model_fields:
        phases = [group] if _is_phase(group) else PHASES
        ours = " and ".join(f"{phase}.{ours}" for phase in phases)
    return f"Its name here is {ours}{f' ({note})' if note else ''}."


def _is_phase(group: str) -> bool:
    return isinstance(getattr(Recipe.model_fields.get(group), "default", None), TrainSettings)


def settings_page() -> str:
    """Return docs/reference/settings.md, which has a table for every group."""
    lines = [
        "# Settings of a recipe",
        "",
        "With this page you can look up every setting: what it does, its values and its default. Write a setting into",
        "a recipe file under its group, or give it on the command line as `group.name=value`.",
        "`weakdriven recipes explain NAME` prints one. This page is the output of `weakdriven recipes explain`.",
        "",
        "## The recipe itself",
    ]
    table = ["", "| setting | values | default | |", "|---|---|---|---|"]
    lines += table
    for one in all_settings():
        text = " ".join(one.text.split()).replace("|", "\\|")
        if one.group:
            lines += ["", f"## {one.key}", "", text, *table]
        else:
            lines.append(f"| `{one.key}` | {one.values} | {_as_code(one.default)} | {text} |")
    return "\n".join([*lines, "", "## Names from elsewhere", "", "| name | here |", "|---|---|", *_other_rows(), ""])


def _as_code(default: str) -> str:
    return default if default in ("required", "unset") else f"`{default}`"


def _other_rows() -> list[str]:
    return [f"| `{name}` | {ours}{f' ({note})' if note else ''} |" for name, (ours, note) in OTHER_NAMES.items()]
