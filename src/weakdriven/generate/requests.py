"""What every engine takes and gives: requests with their own seeds in, completions out, each exactly once."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from weakdriven.errors import UserError


@dataclass(frozen=True)
class Request:
    """One completion to make of one prompt."""

    prompt: list[int]
    """Token ids; the text is tokenised once, by us, so that no engine can add a second begin-of-text."""
    seed: int = 0
    """Decides the random numbers of this completion and of no other."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and when a completion ends; the same for all requests of a call."""

    max_new_tokens: int
    stop_ids: tuple[int, ...]
    temperature: float = 0.0
    """0 takes the most probable token."""
    top_p: float = 1.0
    """Draw from the fewest most probable tokens that together have this probability."""


@dataclass(frozen=True)
class Completion:
    text: str
    tokens: int
    """Generated tokens, the stop token among them."""
    finish: Literal["stop", "length"]
    """`stop` if the model ended its turn, `length` if the token budget did."""


OnDone = Callable[[Mapping[int, Completion]], None]
"""Gets completions by the position of their request, as soon as they are there."""


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
    """Seed of one sample of one item, so that it does not depend on what else is sampled, or in which order.

    >>> request_seed(42, "gsm8k-test-0", 0) != request_seed(42, "gsm8k-test-0", 1)
    True
    """
    return int.from_bytes(hashlib.sha256(f"{seed}\n{item}\n{sample}".encode()).digest()[:4], "big") >> 1
