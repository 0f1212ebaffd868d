"""A conversation as pieces of text: supervised or not.

A reply is supervised if it directly follows the text that the chat template renders before it, because that is what the
model sees when it generates the reply. Earlier replies can be supervised in the same sequence if the template does not
rewrite them. Some templates do: Qwen3's drops the thinking of earlier replies. Such replies are not supervised, and are
counted.
"""

from typing import NamedTuple

from weakdriven.data.example import Example
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError


class Turns(NamedTuple):
    pieces: list[tuple[str, bool]]
    """Text and whether it is supervised; prompts and replies alternate, and a reply includes its end of turn."""
    unlearned: int
    """Replies that are not supervised, because the template rewrites them or nothing was asked before them."""


def split_turns(example: Example, renderer: Renderer) -> Turns:
    """All text of an example; with one reply, the rendered prompt and then the reply with its end of turn."""
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
    """Start and end in the last prompt of the reply at this place; None if the template rewrote it."""
    if all(turn["role"] == "system" for turn in example.prompt[:place]):  # a greeting answers nothing
        return None
    before, reply = _rendered(example, renderer, place), example.prompt[place]["content"]
    for text in (reply, reply.strip()):  # templates may trim earlier replies, as Gemma's does
        if last.startswith(whole := before + text + renderer.end_of_turn):
            return len(before), len(whole)
    return None


def _rendered(example: Example, renderer: Renderer, turns: int) -> str:
    try:
        return renderer.prompt(example.prompt[:turns], example.domain)
    except UserError as error:
        raise UserError(f"Row {example.id!r}: {error}") from error
