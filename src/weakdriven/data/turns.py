"""A conversation as text in pieces: what is learned, and what is only read.

A reply is learned where it follows, to the letter, the text that the chat template renders before it: that is what the
model will be shown when it has to write it. Replies before the last can be learned in the same sequence as long as the
template does not rewrite them once they are past. Some do: Qwen3's drops the thinking of earlier replies. What it
rewrites is only read then, and counted.
"""

from typing import NamedTuple

from weakdriven.data.example import Example
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError


class Turns(NamedTuple):
    pieces: list[tuple[str, bool]]
    """Text and whether it is supervised; prompts and replies take turns, and a reply holds the end of its turn."""
    unlearned: int
    """Replies that are only read, because the template rewrites them or nothing was asked before them."""


def split_turns(example: Example, renderer: Renderer) -> Turns:
    """All of an example's text; with one reply, the rendered prompt and then the reply with the end of its turn."""
    last = _rendered(example, renderer, len(example.prompt))
    pieces: list[tuple[str, bool]] = []
    past = unlearned = 0
    for place, turn in enumerate(example.prompt):
        if not example.all_turns or turn["role"] != "assistant":
            continue
        written = _written(example, renderer, place, last)
        if written is None or written[0] < past:
            unlearned += 1
            continue
        start, end = written
        pieces += [(last[past:start], False), (last[start:end], True)]
        past = end
    return Turns([*pieces, (last[past:], False), (example.completion + renderer.end_of_turn, True)], unlearned)


def _written(example: Example, renderer: Renderer, place: int, last: str) -> tuple[int, int] | None:
    """Where the reply in this place stands with its end in the last prompt; None if it is not there as it was asked."""
    if all(turn["role"] == "system" for turn in example.prompt[:place]):  # a greeting answers nothing
        return None
    before, reply = _rendered(example, renderer, place), example.prompt[place]["content"]
    for text in (reply, reply.strip()):  # templates may trim what is past, as Gemma's does
        if last.startswith(whole := before + text + renderer.end_of_turn):
            return len(before), len(whole)
    return None


def _rendered(example: Example, renderer: Renderer, turns: int) -> str:
    try:
        return renderer.prompt(example.prompt[:turns], example.domain)
    except UserError as error:
        raise UserError(f"Row {example.id!r}: {error}") from error
