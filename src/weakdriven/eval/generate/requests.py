"""The interface of every engine: requests with their own seeds in, completions out, each exactly once."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

from weakdriven.errors import UserError


@dataclass(frozen=True)
class Request:
    """One completion to make of one prompt."""

    prompt: list[int] | list[dict[str, str]]
    """Token ids, tokenised once, by us, so that no engine can add a second begin-of-text; or chat messages (role and
    content), which only a server takes: it has a template and a tokenizer of its own."""
    seed: int = 0
    """Seed of this completion alone."""

    @property
    def is_chat(self) -> bool:
        return bool(self.prompt) and isinstance(self.prompt[0], dict)

    @property
    def ids(self) -> list[int]:
        """The token ids; an error if there are messages instead."""
        if self.is_chat:
            raise UserError("A request holds chat messages, and a model in this process takes token ids; use a server.")
        return cast("list[int]", self.prompt)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and when a completion ends; the same for all requests of a call."""

    max_new_tokens: int
    stop_ids: tuple[int, ...]
    """Tokens that end a completion; chat requests go without, because their server knows its own."""
    temperature: float = 0.0
    """0 takes the most probable token."""
    top_p: float = 1.0
    """Draw from the smallest set of most probable tokens whose probability is at least this."""
    top_k: int | None = None
    """Applied first: keep only this many most probable tokens, and ties with the last of them."""


@dataclass(frozen=True)
class Completion:
    text: str
    tokens: int
    """Generated tokens, the stop token among them; 0 if a chat server does not say."""
    finish: str
    """`stop` if the model ended its turn, `length` if the token budget did. A chat server's own word for anything else,
    such as `content_filter`: the text is then what came, often none."""
    reasoning: str = ""
    """The model's reasoning, where a chat server returns it separately."""

    def row(self) -> dict[str, Any]:
        """What is saved of it: its fields, `reasoning` only if there is some."""
        return {name: value for name, value in asdict(self).items() if name != "reasoning" or value}


OnDone = Callable[[Mapping[int, Completion]], None]
"""Receives completions by the position of their request, as they arrive."""


class Engine(Protocol):
    """Completes requests in any order; reports each once."""

    def complete(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None: ...


def generate(engine: Engine, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
    """Complete every request; an engine that leaves one out, or answers it twice, is an error and not a score."""
    left = set(range(len(requests)))

    def check(done: Mapping[int, Completion]) -> None:
        if twice := sorted(set(done) - left):
            raise RuntimeError(f"The engine completed request {twice[0]} twice, or there is no such request.")
        left.difference_update(done)
        on_done(done)

    if requests:
        engine.complete(requests, sampling, check)
    if left:
        raise UserError(
            f"{len(left)} of {len(requests)} requests got no completion (first: {min(left)}); what came is kept, "
            "run the same command again for the rest."
        )


def request_seed(seed: int, item: str, sample: int) -> int:
    """Seed of one sample of one item, so that it does not depend on what else is sampled, or in which order."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{item}\n{sample}".encode()).digest()[:4], "big") >> 1
