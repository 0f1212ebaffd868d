"""The interface of every engine: it takes requests with seeds, and completes each exactly once."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

from weakdriven.errors import UserError


@dataclass(frozen=True)
class Request:
    """One completion to generate for one prompt."""

    prompt: list[int] | list[dict[str, str]]
    """Token ids, tokenized once by us, so that no engine adds a second begin-of-text token; or chat messages (role and
    content), only for servers, which have their own template and tokenizer."""
    seed: int = 0
    """Seed of this completion only."""

    @property
    def is_chat(self) -> bool:
        return bool(self.prompt) and isinstance(self.prompt[0], dict)

    @property
    def ids(self) -> list[int]:
        """Return the token ids; raise an error if the prompt is chat messages."""
        if self.is_chat:
            raise UserError("The request has chat messages, but a model in this process needs token ids; use a server.")
        return cast("list[int]", self.prompt)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and when a completion ends, for all requests of a call."""

    max_new_tokens: int
    stop_ids: tuple[int, ...]
    """Tokens that end a completion; not sent with chat requests, because their server knows its own."""
    temperature: float = 0.0
    """0 chooses the most probable token."""
    top_p: float = 1.0
    """Draw from the smallest set of most probable tokens with at least this probability."""
    top_k: int | None = None
    """Applied first: keep only this many most probable tokens, and ties with the last of them."""


@dataclass(frozen=True)
class Completion:
    text: str
    tokens: int
    """Generated tokens including the stop token; 0 if a chat server does not report them."""
    finish: str
    """`stop` if the model ended its turn, `length` at the limit of tokens, else a chat server's own reason, such as
    `content_filter`; the text is then what was received, often nothing."""
    reasoning: str = ""
    """Reasoning, if a chat server returns it separately."""

    def row(self) -> dict[str, Any]:
        """Return the fields to save; `reasoning` only if there is some."""
        return {name: value for name, value in asdict(self).items() if name != "reasoning" or value}


OnDone = Callable[[Mapping[int, Completion]], None]
"""Receives completions by the position of their request, as they arrive."""


class Engine(Protocol):
    """Completes requests in any order; reports each once."""

    def complete(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None: ...


def generate(engine: Engine, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
    """Complete every request; raise an error if the engine omits a request or completes it twice."""
    left = set(range(len(requests)))

    def check(done: Mapping[int, Completion]) -> None:
        if twice := sorted(set(done) - left):
            raise RuntimeError(f"The engine completed request {twice[0]} twice, or that request does not exist.")
        left.difference_update(done)
        on_done(done)

    if requests:
        engine.complete(requests, sampling, check)
    if left:
        raise UserError(
            f"{len(left)} of {len(requests)} requests got no completion (first: {min(left)}); the others are kept; "
            "run the same command again for the rest."
        )


def request_seed(seed: int, item: str, sample: int) -> int:
    """Derive the seed of one sample of one item, independent of what else is sampled and in which order."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{item}\n{sample}".encode()).digest()[:4], "big") >> 1
