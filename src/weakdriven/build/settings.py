"""Settings of `weakdriven data build`, and of the teacher that may write the completions."""

from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from weakdriven.config.benchmarks import SHIPPED, Entry, refuse_same_names
from weakdriven.config.settings import Settings
from weakdriven.data.prompts import Renderer, give_chat_template
from weakdriven.eval.graders.candidates import Checks
from weakdriven.eval.settings import TargetSettings
from weakdriven.runs.directory import TRAIN

CANDIDATES = "candidates.jsonl"
PUBLISHED: list[Any] = [name for name in SHIPPED if name != "arithmetic"]
"""All benchmarks except the embedded one."""


class TeacherSettings(TargetSettings):
    """The model that writes completions."""

    url: str | None = None
    """A server with the OpenAI chat API, where `model` is the model's name; the key is $OPENAI_API_KEY."""
    samples: int = Field(default=4, ge=1)
    """Maximum of samples per problem; sampling stops when `keep` of them are kept."""
    keep: int = Field(default=1, ge=1)
    """Number of right and different completions to keep per problem."""
    temperature: float = Field(default=0.7, ge=0)
    """0 chooses the most probable token."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Draw from the most probable tokens that together have this probability."""
    max_new_tokens: int = Field(default=4096, ge=1)
    """Longer completions are cut and dropped."""
    max_prompt_tokens: int = Field(default=4096, ge=1)
    """Problems with longer prompts are dropped. Needs the teacher's tokenizer, so a server ignores it."""

    @model_validator(mode="after")
    def _can_be_kept(self) -> "TeacherSettings":
        if self.keep > self.samples:
            raise ValueError(f"keep is {self.keep}, but samples is {self.samples}; expected 1 to {self.samples}")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"temperature is 0, so all {self.samples} samples would be the same; raise it, or set samples to 1"
            )
        return self


class BuildSettings(Settings):
    """What a training set is made from."""

    domain: Literal["math", "code", "logic"]
    """Domain of the rows; decides how their answers are verified."""
    sources: list[str] = Field(min_length=1)
    """Raw files or Hub datasets; for logic, LogiQA 2.0 and ReClor."""
    split: str = "train"
    """Split of a Hub dataset."""
    style: Literal["tagged", "tag-free", "plain"] = "tagged"
    """Form that completions must have: `tagged`, `tag-free` or `plain`, as `data.style` of a recipe."""
    benchmarks: list[Entry] = Field(default=PUBLISHED)
    """Rows that overlap with these are dropped."""
    data_dir: str | None = None
    """Folder with a file for each benchmark. Default: read them from the Hub."""
    ngram_share: float | None = Field(default=None, ge=0, le=1)
    """Fraction of an item's n-grams that counts as overlap. Default: any; for logic 0.2."""
    max_characters: int | None = Field(default=None, ge=1)
    """Rows with more characters are dropped."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Rows with more tokens of `tokenizer` are dropped; tokens are counted as for `data.max_length` of a recipe."""
    tokenizer: str | None = None
    """Model whose tokenizer counts tokens for `max_tokens`."""
    chat_template: str | None = None
    """Chat template for a tokenizer that has none: a file, or `gemma`."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first rows of each source."""
    block: int = Field(default=2048, ge=1)
    """Rows verified between two saves. A killed build repeats at most these; one slow row delays its block."""
    workers: int | None = Field(default=None, ge=1)
    """Rows verified at once. Default: one per processor."""
    timeout: float = Field(default=10.0, ge=0.1)
    """Seconds for one comparison of answers, or for one program with all its tests."""
    code_python: str | None = None
    """Python whose packages programs may import. Default: the Python of weakdriven."""
    unsafe: bool = False
    """If no isolation is available, run programs without it: they may then do all that you may do."""
    teacher: TeacherSettings | None = None
    """Writes the completions; completions of the sources are then ignored."""

    _no_repeats = field_validator("benchmarks")(refuse_same_names)

    @property
    def uses_completions(self) -> bool:
        """Whether the completions come from the sources; logic sources have none."""
        return self.teacher is None and self.domain != "logic"

    @property
    def result(self) -> str:
        """Name of the file with the rows; without completions they are only candidates."""
        return TRAIN if self.uses_completions or self.teacher else CANDIDATES

    @property
    def checks(self) -> Checks:
        return Checks(self.workers, self.timeout, self.unsafe, self.code_python)

    @cached_property
    def renderer(self) -> Renderer | None:
        """Counts tokens, if they are limited."""
        if self.tokenizer is None:
            return None
        from weakdriven.models.load import load_tokenizer, locate_model  # imports torch

        tokenizer = load_tokenizer(locate_model(self.tokenizer))
        give_chat_template(tokenizer, self.chat_template, self.tokenizer)
        renderer = Renderer(tokenizer, self.domain, self.style)
        renderer.check()
        return renderer

    @model_validator(mode="after")
    def _tokens_can_be_counted(self) -> "BuildSettings":
        if (self.max_tokens is None) != (self.tokenizer is None) or (self.chat_template and not self.tokenizer):
            raise ValueError("max_tokens and tokenizer need each other, and chat_template needs both; give both")
        if self.max_tokens is not None and self.result == CANDIDATES:
            raise ValueError("max_tokens also counts completions, and logic has none without a teacher; omit it")
        return self
