"""Number and lengths of the training rows: known from a finished data stage, sampled, or assumed."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from weakdriven.config.recipe import Recipe
from weakdriven.data.prompts import Renderer, give_chat_template
from weakdriven.data.rows.files import EMBEDDED, cheap_count
from weakdriven.data.rows.mixture import open_sources
from weakdriven.data.tokenize import load_tokens, row_lengths, tokenize
from weakdriven.runs.directory import EXAMPLES, TOKENS
from weakdriven.runs.files import read_json
from weakdriven.runs.manifest import MANIFEST

SAMPLED = 512
"""Number of rows that are sampled if the data is on this machine but not tokenized."""
ASSUMED = 100_000
"""Assumed number of rows if the data is not on this machine; --rows overrides it."""
MEAN_SHARE = 0.5
"""Assumed mean length of a row, as a share of data.max_length."""
VALIDATION_SHARE = 0.05
"""Assumed number of validation rows if they are not on this machine, as a share of the training rows."""
CHARACTERS = 3.5
"""Assumed characters per token if the tokenizer is not on this machine."""


@dataclass(frozen=True)
class Rows:
    """Number of training rows, and their lengths in tokens."""

    count: int
    mean: float
    longest: int
    likely_longest: int
    """Length of the tenth longest row: a drawn set very likely contains one of the ten longest."""
    text_bytes: float = 0.0
    """Mean bytes of a row's text, which is stored next to its tokens."""
    assumptions: tuple[str, ...] = ()


def known_rows(recipe: Recipe, root: Path) -> Rows | None:
    """Return the rows that a run in `root` has tokenized from the same data, or None."""
    folder = root / "data"
    if not (folder / MANIFEST).is_file():
        return None
    manifest, wanted = read_json(folder / MANIFEST), recipe.data.model_dump(mode="json")
    found = manifest["settings"] | manifest["execution"]
    names = ["max_length", "domain", "style", "system_prompt", "validation_share"]
    names += ["path", "split", "limit"] if recipe.data.path else []
    same = all(found.get(name) == wanted[name] for name in names) and found.get("fields", {}) == wanted["fields"]
    return rows_of(folder) if same and found.get("sources", []) == wanted_sources(recipe) else None


def wanted_sources(recipe: Recipe) -> list[dict[str, Any]]:
    """Return several sources as the data stage records them, or [] for a single source."""
    sources = recipe.data.each
    return [one.model_dump(mode="json", exclude_defaults=True) for one in sources] if len(sources) > 1 else []


def rows_of(folder: Path) -> Rows:
    """Return the rows of a finished data stage."""
    length_N = np.sort(row_lengths(load_tokens(folder / TOKENS)))
    return Rows(
        count=len(length_N),
        mean=float(length_N.mean()),
        longest=int(length_N[-1]),
        likely_longest=int(length_N[max(len(length_N) - 10, 0)]),
        text_bytes=(folder / EXAMPLES).stat().st_size / len(length_N),
    )


def sampled_rows(recipe: Recipe, folder: Path, rows: int | None) -> Rows:
    """Estimate the rows from the first ones if the data is on this machine, else from assumptions.

    The longest row is assumed to have data.max_length tokens.
    """
    settings, limit, left = recipe.data, recipe.data.max_length, 1 - (recipe.data.validation_share or 0)
    longest = f"The longest row has data.max_length tokens ({limit:,})."
    away = [one for one in settings.each if one.path != EMBEDDED and not Path(one.path).expanduser().exists()]
    if away:
        count = rows or settings.limit or ASSUMED
        said = () if rows else (f"{away[0].path} is not on this machine: {count:,} rows (set --rows to change).",)
        mean = MEAN_SHARE * limit
        assumed = (f"A row has {mean:,.0f} tokens on average, {MEAN_SHARE:.0%} of data.max_length.", longest)
        return Rows(
            round(left * count), mean, limit, limit, text_bytes=CHARACTERS * mean, assumptions=(*said, *assumed)
        )
    source = open_sources([one.model_dump() for one in settings.each], domain=settings.domain, empty_completions="drop")
    sample = list(islice(source, SAMPLED))
    text = float(np.mean([len(json.dumps(example.as_row(), ensure_ascii=False)) for example in sample]))
    count = rows or source.count()
    if (folder / "tokenizer.json").is_file():
        from weakdriven.models.load import load_tokenizer

        tokenizer = load_tokenizer(folder, trust_remote_code=recipe.trust_remote_code)
        give_chat_template(tokenizer, recipe.chat_template, recipe.model)
        renderer = Renderer(tokenizer, settings.domain, settings.style, settings.system_prompt)
        found = [len(tokenize(example, renderer, limit)["input_ids"]) for example in sample]
        how = f"Row lengths are those of the first {len(sample):,} rows, {np.mean(found):,.0f} tokens on average."
    else:
        texts = (sum(len(turn["content"]) for turn in one.prompt) + len(one.completion) for one in sample)
        found = [min(characters / CHARACTERS, limit) for characters in texts]
        how = f"A token has {CHARACTERS} characters, because the tokenizer is not on this machine: "
        how += f"{np.mean(found):,.0f} tokens per row in the first {len(sample):,} rows."
    return Rows(round(left * count), float(np.mean(found)), limit, limit, text_bytes=text, assumptions=(how, longest))


def validation_count(recipe: Recipe, training: int) -> int:
    """Return the number of validation rows, given the number of training rows; assumed if they are elsewhere."""
    share, path = recipe.data.validation_share, recipe.data.validation
    if share is not None:
        return max(round(training * share / (1 - share)), 1)
    known = cheap_count(path) if path and Path(path).expanduser().exists() else None
    return known or max(round(VALIDATION_SHARE * training), 1)
