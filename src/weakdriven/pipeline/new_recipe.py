"""Propose a recipe for a model, training data and a test set: `weakdriven init`, and `weakdriven run --model ...`."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import yaml

from weakdriven.config.benchmarks import TestSet
from weakdriven.config.file import apply_override, data_settings, load_recipe, parse_recipe, refuse_secrets
from weakdriven.config.recipe import Recipe
from weakdriven.config.reference import Setting, all_settings
from weakdriven.data.rows.files import EMBEDDED as EMBEDDED_ROWS
from weakdriven.errors import UserError
from weakdriven.eval.test_sets import load_benchmark
from weakdriven.models.load import EMBEDDED, locate_model, positions
from weakdriven.runs.yaml import load_yaml
from weakdriven.stages.data import training_rows_of

LABEL = "the new recipe"
"""Name of the recipe in error messages."""
NO_TEST = "none"
"""Given instead of a test set: some training rows are held out for validation."""
VALIDATION_SHARE = 0.05
LOOKED_AT = 1000
"""Number of rows whose length is measured."""
BYTES_PER_TOKEN = 2
"""A low estimate for most tokenizers and texts, so that few rows are truncated."""
LENGTHS = (256, 4096)
STEPS_PER_EPOCH = 50
"""The batch size is chosen so that an epoch has at least this many steps, if there are enough rows."""
BATCHES = (8, 512)
TOKENS_OF_BENCHMARKS = 4096
"""Token budget of most benchmarks; models with fewer than twice as many positions get a smaller one."""
WIDTH = 100


@dataclass(frozen=True)
class NewRecipe:
    """The settings of a new recipe, and a description of its data."""

    tree: dict[str, Any]
    found: str

    def recipe(self) -> Recipe:
        refuse_secrets(self.tree, LABEL)
        return parse_recipe(self.tree, LABEL)


def propose(model: str, data: str, test: str, overrides: list[str] | None = None) -> NewRecipe:
    """Choose settings for the data: the batch size from the number of rows, the maximum length from the longest row.

    Args:
        test: Benchmarks or files, separated by commas; `none` holds out some training rows for validation.
        overrides: Settings as `key.sub=value`; those of `data` determine how the rows are read.
    """
    hub = not Path(model).expanduser().exists() and re.fullmatch(r"\w[\w.-]*/[\w.-]+", model) is not None
    room = None if hub else positions(locate_model(model))
    asked = data_settings({"path": data}, overrides, LABEL)
    # empty completions are reported by the run
    source = training_rows_of(asked.model_copy(update={"empty_completions": "drop"}))
    rows, length = source.count(), 0
    for example in islice(source, LOOKED_AT):
        texts = [turn["content"] for turn in example.prompt] + [example.completion]
        length = max(length, sum(len(text.encode()) for text in texts))
    tokens = between(2 * (length // BYTES_PER_TOKEN), LENGTHS)
    batch = between(rows // STEPS_PER_EPOCH, BATCHES)
    phase = {"epochs": 1, "learning_rate": 2e-3 if model == EMBEDDED else 1e-5, "batch_size": batch}
    given: dict[str, Any] = {"path": data, "max_length": min(tokens, room or tokens)}
    given |= {"domain": "code"} if set(source.layouts) == {"code"} else {}
    evaluation: dict[str, Any] = {}
    if test == NO_TEST:
        given |= {} if asked.validates else {"validation_share": VALIDATION_SHARE}
    else:
        evaluation["benchmarks"] = [name.strip() for name in test.split(",") if name.strip()]
        if room is not None and room < 2 * TOKENS_OF_BENCHMARKS:
            evaluation["max_new_tokens"] = room // 2
    tree = {"name": name_of(data), "model": model, "data": given}
    tree["sft"] = phase | {"micro_batch_size": min(batch, 8)}
    tree["joint"] = {"rounds": 1, "strong_weight": 0.5, **phase, "micro_batch_size": min(batch, 4)}
    tree |= {"baselines": ["sft", "sft_restart"], **({"eval": evaluation} if evaluation else {})}
    tree |= {"precision": "fp32"} if model == EMBEDDED else {}
    read = f"{source.path}: {source.described(rows)}."
    tree |= {"seed": 42}
    for override in overrides or []:
        apply_override(tree, override)
    recipe = NewRecipe(tree, read).recipe()
    for entry in recipe.eval.benchmarks:
        if isinstance(entry, TestSet):
            loaded = load_benchmark(entry, None, recipe.data.domain)
            read += f" {entry.path}: {len(loaded.items):,} questions, grader {loaded.benchmark.grader}."
    return NewRecipe(tree, read)


def between(most: int, bounds: tuple[int, int]) -> int:
    """Return the largest power of two up to `most`, within bounds.

    >>> between(700, (256, 4096)), between(0, (8, 512)), between(9999, (256, 4096))
    (512, 8, 4096)
    """
    low, high = bounds
    return min(max(1 << max(most, 1).bit_length() - 1, low), high)


def name_of(data: str) -> str:
    """Return the name of a run on this data.

    >>> name_of("sets/support chats.jsonl.gz"), name_of("openai/gsm8k:main"), name_of("embedded:arithmetic")
    ('support-chats', 'gsm8k', 'arithmetic')
    """
    last = data.partition(":")[2] if data == EMBEDDED_ROWS else re.sub(r"[:@].*", "", data.partition("://")[2] or data)
    stem = re.sub(r"(\.(jsonl?|csv|tsv|parquet|gz|zst))+$", "", PurePath(last).name)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "recipe"


def write_recipe(new: NewRecipe, path: Path) -> Recipe:
    """Write the recipe file with comments that explain its settings; raise an error if the file exists."""
    start = f"Start it with: weakdriven run {shlex.quote(str(path))}"
    head = [line for one in (new.found, start, "Every setting: weakdriven recipes explain") for line in comment(one)]
    text = "\n".join([*head, "", *_lines(new.tree, {one.key: one for one in all_settings()})]) + "\n"
    recipe = parse_recipe(load_yaml(text), str(path))  # before the file is created, so that an error leaves none
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} already exists and is not overwritten; give another file with --output.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); give another file with --output.") from error
    if load_recipe(str(path)) != recipe:
        raise RuntimeError(f"{path} does not read back as the settings that were written.")
    return recipe


def comment(text: str, indent: str = "") -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent=start, subsequent_indent=start)


def _lines(tree: dict[str, Any], settings: dict[str, Setting], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        key, indent = f"{prefix}{name}", "  " * prefix.count(".")
        yield from comment(settings[key].text.partition("\n\n")[0], indent)
        if isinstance(value, dict) and settings[key].group:
            yield f"{indent}{name}:"
            yield from _lines(value, settings, f"{key}.")
        else:
            flow = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
            yield f"{indent}{name}: {flow.strip().removesuffix('...').strip()}"
