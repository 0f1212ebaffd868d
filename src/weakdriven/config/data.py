"""Settings of the training and validation data."""

from typing import Literal

from pydantic import Field, model_validator

from weakdriven.config.settings import Settings


class DataSettings(Settings):
    """The training data, and how a row becomes tokens."""

    path: str
    """JSONL, JSON, CSV, TSV (each also .gz or .zst) or Parquet file, a folder of them, `embedded:arithmetic`, or a Hub
    dataset: `owner/name` or `owner/name:configuration`, either also with `@revision`."""
    split: str = "train"
    """Split of a Hub dataset."""
    domain: Literal["math", "code", "logic"] = "math"
    """With `style`, chooses the system prompt of rows that name no domain."""
    style: Literal["tagged", "tag-free", "plain"] = "plain"
    """`plain` trains on the rows as they are. The paper's two styles add a system prompt to rows that have none, and
    raise an error unless at least half of the completions follow it: `tagged` asks for <think> and <answer>, `tag-free`
    (Gemma) for the answer alone."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """Your own system prompt for rows that have none, in training and evaluation; only with `style: plain`."""
    max_length: int = Field(default=4096, ge=8)
    """Maximum tokens of prompt and completion; longer completions are truncated on the right and counted."""
    long_prompts: Literal["error", "drop"] = "error"
    """Rows whose prompt leaves no room for a supervised token."""
    empty_completions: Literal["error", "drop"] = "error"
    """Rows whose completion is missing or blank; `drop` leaves them out and counts them."""
    held_out: Literal["error", "drop", "allow"] = "error"
    """Rows that ask a question of a benchmark in `eval.benchmarks`, in the same words.

    `drop` leaves them out and counts them; `allow` trains on them."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first rows."""
    validation: str | None = None
    """Rows that no model is trained on, from a source like `path`: the loss of every model on them is reported."""
    validation_split: str = "validation"
    """Split of a Hub dataset in `validation`."""
    validation_share: float | None = None
    """Instead of `validation`: about this share of the training rows is taken out before training, the same rows for
    every method and seed."""

    @property
    def validates(self) -> bool:
        return self.validation is not None or self.validation_share is not None

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
