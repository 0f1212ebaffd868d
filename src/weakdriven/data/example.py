"""Example: the type between a data source and its tokens."""

from dataclasses import dataclass, field
from typing import Any

from weakdriven.errors import UserError

DOMAINS = ("math", "code", "logic")
Message = dict[str, str]


@dataclass(frozen=True)
class Example:
    """A prompt with the completion to train on and, if known, the answer that a grader accepts.

    An example without a prompt is plain text: all of it is supervised, and no chat template is used.
    """

    id: str
    prompt: list[Message]
    completion: str
    gold: str | None = None
    domain: str = ""
    """math, code or logic: chooses the system prompt. Empty: the domain of the whole set."""
    source: str = ""
    """Source named by the row."""
    meta: dict[str, Any] = field(default_factory=dict)
    all_turns: bool = False
    """Whether the assistant's turns in the prompt are supervised too."""

    def as_row(self) -> dict[str, Any]:
        """Return plain values for JSON; `Example(**row)` is the inverse."""
        return dict(vars(self))

    def replies(self) -> list[str]:
        """Return all texts to train on, in order."""
        said = [turn["content"] for turn in self.prompt if turn["role"] == "assistant"] if self.all_turns else []
        return [*said, self.completion]


def refuse_broken_text(text: str, where: str) -> None:
    """Raise an error for half a surrogate pair, which JSON can hold and tokenizers reject."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: the text contains half a surrogate pair, which is not valid Unicode.") from None
