"""`weakdriven data show`: print a source's layout, some rows with supervised tokens, and what would be dropped."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from weakdriven.data.example import Example
from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.sources import Source
from weakdriven.data.structure import StyleShare
from weakdriven.data.tokenize import IGNORE, tokenize
from weakdriven.errors import UserError

LOOKED_AT = 1000
"""Rows that are tokenized to count truncated and dropped ones; of the others only those that may be errors."""
LONGEST = 1500
"""Maximum of characters shown of one piece of text."""
STYLES = {"prompt": "", "learned": "bold black on green", "cut": "strike dim"}
MARKS = {"prompt": ("", ""), "learned": ("[[", "]]"), "cut": ("{{", "}}")}
"""Used instead of colours if the terminal has none."""


@dataclass(frozen=True)
class Look:
    """One row as a model would see it."""

    id: str
    runs: list[tuple[str, str]]
    """Text with its kind: prompt, learned or cut."""
    prompt_tokens: int
    learned_tokens: int
    tokens: int
    fate: str
    """What happens to the row; empty if all of its replies are learned."""
    stops: bool = False
    """Whether the row would stop training."""


def look(
    example: Example,
    renderer: Renderer,
    max_length: int,
    positions: int | None = None,
    dropped: Collection[str] = (),
) -> Look:
    """Tokenize one example without truncation and mark what fits.

    Args:
        positions: Maximum positions of the model, if it has any.
        dropped: Which of long_prompts and empty_completions are dropped and not an error.
    """
    row = tokenize(example, renderer)
    kinds = ["prompt" if label == IGNORE else "learned" for label in row["labels"]]
    unsupervised = kinds.count("prompt")
    kinds[max_length:] = ["cut"] * len(kinds[max_length:])
    if blank := not example.completion.strip():
        kinds = ["prompt" if kind == "prompt" else "cut" for kind in kinds]
    groups = groupby(zip(kinds, row["input_ids"], strict=True), key=lambda pair: pair[0])
    runs = [(str(renderer.tokenizer.decode([token for _, token in group])), kind) for kind, group in groups]
    learned, stops = kinds.count("learned"), False
    if blank or not learned:
        what = "no completion" if blank else f"the prompt fills max_length={max_length}"
        setting = "empty_completions" if blank else "long_prompts"
        stops = setting not in dropped
        fate = f"{what}: an error, or dropped with data.{setting}=drop" if stops else f"{what}: dropped"
    elif positions is not None and min(len(kinds), max_length) > positions:
        fate = f"longer than the model's {positions:,} positions: an error; lower max_length to cut it"
        stops = True
    elif len(kinds) > max_length:
        fate = f"longer than max_length={max_length}: truncated on the right, so its end is not learned"
    elif row["unlearned"]:
        fate = "some replies before the last are not learned: the chat template rewrites earlier replies"
    else:
        fate = ""
    return Look(example.id, runs, unsupervised, learned, len(kinds), fate, stops)


def may_stop(example: Example, renderer: Renderer, max_length: int, positions: int | None) -> bool:
    """Return whether a row may stop training; bytes are an upper bound of tokens, so most rows need no tokenizing."""
    if not example.completion.strip():
        return True
    prompt = len(renderer.prompt(example.prompt, example.domain).encode()) if example.prompt else 0
    whole = prompt + len((example.completion + renderer.end_of_turn).encode())
    return prompt >= max_length or (positions is not None and positions < min(max_length, whole))


def print_source(
    source: Source,
    renderer: Renderer,
    console: Console,
    *,
    rows: int,
    max_length: int,
    count: int | None,
    positions: int | None = None,
    dropped: Collection[str] = (),
) -> bool:
    """Print the layout, the `count` of rows if known, some rows with learned text in colour, and what is cut.

    Return whether training could read all rows.
    """
    many = "" if count is None else f", {count:,} rows"
    _say(console, f"{source.path}: layout {source.layout.name} (fields {', '.join(source.layout.fields)}){many}")
    longest, learned, fates, errors, reasons = 0, False, Counter[str](), Counter[str](), list[str]()
    share = StyleShare(renderer.style)
    try:
        for number, example in enumerate(source):
            share.add(example, renderer.domain)
            if number >= LOOKED_AT and not may_stop(example, renderer, max_length, positions):
                learned = True
                continue
            one = look(example, renderer, max_length, positions, dropped)
            learned = learned or one.learned_tokens > 0
            errors[one.fate] += one.stops
            if number < LOOKED_AT:
                longest = max(longest, one.tokens)
                fates[one.fate] += 1
            if number < rows:
                print_look(one, console)
    except UserError as error:
        reasons.append(str(error))
    console.print()
    _say(console, f"Of the first {fates.total():,} rows (longest: {longest:,} tokens):")
    for fate, number in {"learned whole": fates.pop("", 0), **fates}.items():
        _say(console, f"  {number:,} {fate}")
    reasons += [share.fault(), *(f"{number:,} of all rows: {fate}" for fate, number in (+errors).items())]
    reasons += [] if learned else ["nothing is left to train on"]
    stopped = list(filter(None, reasons))
    for reason in stopped:
        _say(console, f"Training would stop: {reason}", "red")
    if renderer.warning:
        _say(console, f"Warning: {renderer.warning}", "yellow")
    return not stopped


def print_look(one: Look, console: Console) -> None:
    console.print()
    lengths = f"{one.prompt_tokens:,} prompt + {one.tokens - one.prompt_tokens:,} reply = {one.tokens:,} tokens"
    _say(console, f"row {one.id}: {lengths}, {one.learned_tokens:,} learned", "bold")
    shown = Text()
    for text, kind in one.runs:
        before, after = MARKS[kind] if console.color_system is None else ("", "")
        shown.append(before + _readable(text) + after, STYLES[kind])
    console.print(shown, soft_wrap=True, highlight=False)
    if one.fate:
        _say(console, one.fate, "yellow")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(_readable(text), style), soft_wrap=True, highlight=False)


def _readable(text: str) -> str:
    """Shorten a text and make it printable."""
    if (more := len(text) - LONGEST) > 0:
        half = LONGEST // 2
        text = f"{text[:half]} … {more:,} characters … {text[-half:]}"
    return printable(text)


def printable(text: str) -> str:
    """Remove control characters, which would control a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
