"""Settings of the training and validation data."""

import os
from typing import Any, Literal

from pydantic import Field, model_validator

from weakdriven.config.settings import Settings


class SourceSettings(Settings):
    """One of several sources of training rows."""

    path: str
    """Like `data.path`."""
    split: str = "train"
    """Split of a Hub dataset."""
    fields: dict[str, str] = Field(default={})
    """Like `data.fields`."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of rows, taken from the start (default: all)."""
    weight: float | None = Field(default=None, gt=0)
    """Share of the mixture, relative to the weights of the other sources (default: all rows)."""

    @model_validator(mode="after")
    def _limit_or_weight(self) -> "SourceSettings":
        if self.limit is not None and self.weight is not None:
            raise ValueError(f"{self.path} has a limit and a weight; remove one of them")
        return self


class DataSettings(Settings):
    """The training data, and how its rows become tokens."""

    path: str | None = None
    """A JSONL, JSON, CSV or TSV file (also as .gz or .zst), a Parquet file, a folder of such files,
    `embedded:arithmetic`, or a Hub dataset: `owner/name` or `owner/name:configuration`, optionally with `@revision`."""
    split: str = "train"
    """Split of a Hub dataset."""
    fields: dict[str, str] = Field(default={})
    """Maps the field names of a known layout to those of your rows: `{prompt: input, completion: target}` reads the
    prompt from `input`."""
    sources: list[SourceSettings] = Field(default=[])
    """Several sources instead of `path`, each with its own `path`, `split`, `fields`, and `limit` or `weight`.

    `data` can also be this list itself. Without weights all rows are used. With weights each source contributes its
    share of the largest mixture that repeats no row."""
    domain: Literal["math", "code", "logic"] = "math"
    """Domain of rows that name none; with `style` it determines their system prompt."""
    style: Literal["tagged", "tag-free", "plain"] = "plain"
    """`plain` trains on the rows as they are. The paper's two styles add a system prompt to rows without one: `tagged`
    asks for <think> and <answer>, `tag-free` (Gemma) for the answer alone. They raise an error unless at least half of
    the completions follow the prompt."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """Your own system prompt for rows without one, in training and evaluation; only with `style: plain`."""
    max_length: int = Field(default=4096, ge=8)
    """Maximum tokens of prompt and completion together; longer completions are truncated on the right and counted."""
    long_prompts: Literal["error", "drop"] = "error"
    """What to do with rows whose prompt leaves no room for a completion token; `drop` leaves them out and counts
    them."""
    empty_completions: Literal["error", "drop"] = "error"
    """What to do with rows whose completion is missing or blank; `drop` leaves them out and counts them."""
    held_out: Literal["error", "drop", "allow"] = "error"
    """What to do with rows that contain a question of `eval.benchmarks` in the same words.

    `drop` leaves them out and counts them; `allow` trains on them."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of rows, taken from the start (default: all). Overriding a recipe's `data.path` removes its
    limit."""
    validation: str | None = None
    """Source of validation rows, like `path`; no model trains on them, and the loss of every model is reported."""
    validation_split: str = "validation"
    """Split of a Hub dataset in `validation`."""
    validation_share: float | None = None
    """Instead of `validation`: hold out about this share of the training rows, the same for every method and seed."""

    @property
    def validates(self) -> bool:
        return self.validation is not None or self.validation_share is not None

    @property
    def each(self) -> list[SourceSettings]:
        """All sources as a list, also if there is only `path`."""
        if self.path is None:
            return self.sources
        return [SourceSettings(path=self.path, split=self.split, fields=self.fields, limit=self.limit)]

    @model_validator(mode="before")
    @classmethod
    def _a_list_is_its_sources(cls, value: Any) -> Any:
        return {"sources": value} if isinstance(value, list) else value

    @model_validator(mode="after")
    def _path_or_sources(self) -> "DataSettings":
        if self.path is None and not self.sources:
            raise ValueError("path is required but missing; name a file, a folder or a Hub dataset, or give sources")
        if self.path is not None and self.sources:
            raise ValueError("path and sources are both set; remove one of them")
        for name in ("split", "fields", "limit"):
            if self.sources and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is set together with sources; set it in each of the sources instead")
        weighted = [one.path for one in self.sources if one.weight is not None]
        if weighted and len(weighted) < len(self.sources):
            missing = next(one.path for one in self.sources if one.weight is None)
            raise ValueError(
                f"{len(weighted)} of {len(self.sources)} sources have a weight, and {missing} has none; give all of "
                "them a weight, or none"
            )
        seen = set[tuple[str, str]]()
        for one in self.sources:
            place = (one.path if "://" in one.path else os.path.normpath(one.path), one.split)
            if place in seen:
                raise ValueError(
                    f"sources name {one.path} twice, but a row cannot be used twice; name it once, with a larger "
                    "weight if you want more of it"
                )
            seen.add(place)
        return self

    @model_validator(mode="after")
    def _one_system_prompt(self) -> "DataSettings":
        if self.system_prompt is not None and self.style != "plain":
            raise ValueError(f"system_prompt is set, and style {self.style} brings its own; remove one of them")
        return self

    @model_validator(mode="after")
    def _one_source_of_validation_rows(self) -> "DataSettings":
        share = self.validation_share
        if share is not None and not 0 < share < 1:
            raise ValueError(f"expected a validation_share between 0 and 1, such as 0.05, found {share:g}")
        if share is not None and self.validation is not None:
            raise ValueError(
                "validation names rows to validate on, and validation_share takes some of the training rows; remove one"
            )
        return self
