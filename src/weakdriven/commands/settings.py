"""Settings of a command: given as `key=value`, like the overrides of a recipe, and listed by --help."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from typer.core import TyperCommand

from weakdriven.config.file import SettingsT, apply_override, groups_in, parse_settings
from weakdriven.config.settings import Settings
from weakdriven.errors import UserError

UNKNOWN_OPTIONS = {"ignore_unknown_options": True}
"""Typer context settings: pass unknown options to `read_settings`, whose error says what to write instead."""
SETTING = re.compile(r"--|[a-z_]+(\.[a-z_]+)*=")


def read_settings(model: type[SettingsT], words: list[str] | None, options: dict[str, Any]) -> SettingsT:
    """Build a command's settings from its `key=value` words and its options.

    Args:
        options: Values of the settings that are options; None if an option was not given.
    """
    tree: dict[str, Any] = {}
    for word in words or []:
        if word.startswith("--"):
            refuse_option(model, word)
        apply_override(tree, word)
    for key, value in options.items():
        if value is not None:
            if key in tree:
                raise UserError(f"{key} is given as an option and as {key}=...; remove one of them.")
            tree[key] = value
    return parse_settings(model, tree, "settings")


def refuse_option(model: type[Settings], word: str) -> None:
    option = word.partition("=")[0]
    name = option.removeprefix("--").removeprefix("no-").replace("-", "_")
    key = next((key for key, _ in fields_of(model) if key.rpartition(".")[2] == name), None)
    instead = f"write the setting {key}=VALUE" if key else "--help lists the options and the settings"
    raise UserError(f"There is no option {option}; {instead}.")


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Split words into paths and settings; unknown options count as settings, where `read_settings` reports them.

    >>> split_words(["train.txt", "s3://bucket/day=1/rows.jsonl", "teacher.keep=4"])
    (['train.txt', 's3://bucket/day=1/rows.jsonl'], ['teacher.keep=4'])
    """
    settings = [word for word in words if SETTING.match(word) and not Path(word).exists()]
    return [word for word in words if word not in settings], settings


def fields_of(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the key and field of every setting, those of nested groups last."""
    inner: list[tuple[str, type[Settings]]] = []
    for name, field in model.model_fields.items():
        if group := next(groups_in(field.annotation), None):
            inner.append((f"{prefix}{name}.", group))
        else:
            yield prefix + name, field
    for below, group in inner:
        yield from fields_of(group, below)


def settings_command(model: type[Settings]) -> type[TyperCommand]:
    """Return a command class whose --help also lists the settings that are not options."""

    class Command(TyperCommand):
        settings = model

        def format_help(self, ctx: Any, formatter: Any) -> None:
            super().format_help(ctx, formatter)
            options = {parameter.name for parameter in self.params}
            table = Table(box=None, show_header=False)
            for key, field in fields_of(model):
                if key not in options:
                    default = "" if field.is_required() or field.default is None else str(field.default)
                    table.add_row(f"[bold cyan]{key}[/]", default.lower(), " ".join((field.description or "").split()))
            Console().print(Panel(table, title="Settings, as key=value", title_align="left", border_style="dim"))

    return Command
