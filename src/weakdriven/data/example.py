"""Example: the type between a data source and its tokens."""

from dataclasses import dataclass, field, fields
from typing import Any

from weakdriven.errors import UserError

DOMAINS = ("math", "code", "logic")
Message = dict[str, str]


@dataclass(frozen=True)
class Example:
    """A prompt with the completion to learn and, if known, the answer that a grader accepts.

    >>> example = Example("7", [{"role": "user", "content": "1+1?"}], "2", gold="2", domain="math")
    >>> Example.from_row(example.as_row()) == example
    True
    """

    id: str
    prompt: list[Message]
    completion: str
    gold: str | None = None
    domain: str = ""
    """math, code or logic: chooses the system prompt; empty: the domain of the whole set."""
    source: str = ""
    """The source that the row names."""
    meta: dict[str, Any] = field(default_factory=dict)
    all_turns: bool = False
    """Whether the assistant's turns in the prompt are supervised too."""

    def as_row(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Example":
        """Inverse of `as_row`."""
        known = [one.name for one in fields(cls)]
        needed, unknown = known[:3], [name for name in row if name not in known]
        if unknown or not all(name in row for name in needed):
            raise UserError(
                f"An example has the fields {', '.join(needed)} and perhaps {', '.join(known[3:])}; found "
                f"{', '.join(row) or 'none'}. Rows of other layouts are read by load_examples."
            )
        return cls(**row)

    def replies(self) -> list[str]:
        """All texts to learn, in order."""
        said = [turn["content"] for turn in self.prompt if turn["role"] == "assistant"] if self.all_turns else []
        return [*said, self.completion]


def refuse_broken_text(text: str, where: str) -> None:
    """Raise an error for half a surrogate pair, which JSON can hold and tokenizers reject."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: the text holds half a surrogate pair, which is not valid Unicode.") from None
