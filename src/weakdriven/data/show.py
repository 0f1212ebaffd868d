"""`weakdriven data show`: a source's layout, some rows with their supervised tokens, and what would be left out."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice

from rich.console import Console
from rich.text import Text

from weakdriven.data.example import Example
from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.sources import Source
from weakdriven.data.tokenize import IGNORE, token_row
from weakdriven.data.turns import split_turns
from weakdriven.errors import UserError

LOOKED_AT = 1000
"""Rows that are tokenised to count how many would be cut or left out."""
LONGEST = 1500
"""Characters of one piece of text that are shown."""
STYLES = {"prompt": "", "learned": "bold black on green", "cut": "strike dim"}
MARKS = {"prompt": ("", ""), "learned": ("[[", "]]"), "cut": ("{{", "}}")}
"""Used in place of colours without a colour terminal."""


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


@dataclass
class Tally:
    """Counts of the tokenised rows."""

    rows: int = 0
    longest: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    stopped: str = ""
    """The error at which training would stop."""


def look(example: Example, renderer: Renderer, max_length: int) -> Look:
    """Tokenise one example whole and mark what fits."""
    turns = split_turns(example, renderer)
    row = token_row(example.id, turns, renderer, None)
    kinds = ["prompt" if label == IGNORE else "learned" for label in row["labels"]]
    kinds[max_length:] = ["cut"] * len(kinds[max_length:])
    if blank := not example.completion.strip():
        kinds = ["prompt" if kind == "prompt" else "cut" for kind in kinds]
    groups = groupby(zip(kinds, row["input_ids"], strict=True), key=lambda pair: pair[0])
    runs = [(str(renderer.tokenizer.decode([token for _, token in group])), kind) for kind, group in groups]
    learned = kinds.count("learned")
    if blank:
        fate = "no completion: an error, or left out with data.empty_completions=drop"
    elif not learned:
        fate = f"the prompt fills max_length={max_length}: an error, or left out with data.long_prompts=drop"
    elif len(kinds) > max_length:
        fate = f"longer than max_length={max_length}: cut on the right, so its end is not learned"
    elif turns.unlearned:
        fate = "some replies before the last are not learned: the chat template rewrites earlier replies"
    else:
        fate = ""
    unsupervised = sum(label == IGNORE for label in row["labels"])
    return Look(example.id, runs, unsupervised, learned, len(kinds), fate)


def looks(examples: Iterable[Example], renderer: Renderer, max_length: int, tally: Tally) -> Iterator[Look]:
    """Yield the first rows one by one and count them in `tally`; an error of the data ends it and is recorded there."""
    try:
        for example in islice(examples, LOOKED_AT):
            one = look(example, renderer, max_length)
            tally.rows += 1
            tally.longest = max(tally.longest, one.tokens)
            if one.fate:
                tally.fates[one.fate] += 1
            yield one
    except UserError as error:
        tally.stopped = str(error)


def print_source(
    source: Source, renderer: Renderer, console: Console, *, rows: int, max_length: int, count: int | None
) -> Tally:
    """Print the layout, the `count` of rows if known, some rows with the learned text in colour, and what is cut."""
    many = "" if count is None else f", {count:,} rows"
    _say(console, f"{source.path}: layout {source.layout.name} (fields {', '.join(source.layout.fields)}){many}")
    tally = Tally()
    for number, one in enumerate(looks(source, renderer, max_length, tally), start=1):
        if number <= rows:
            print_look(one, console)
    console.print()
    _say(console, f"Of the first {tally.rows:,} rows (longest: {tally.longest:,} tokens):")
    for fate, number in {"learned whole": tally.rows - tally.fates.total(), **tally.fates}.items():
        _say(console, f"  {number:,} {fate}")
    if tally.stopped:
        _say(console, f"Training would stop here: {tally.stopped}", "red")
    if renderer.warning:
        _say(console, f"Warning: {renderer.warning}", "yellow")
    return tally


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
    """Shortened, and without control characters."""
    if (more := len(text) - LONGEST) > 0:
        half = LONGEST // 2
        text = f"{text[:half]} … {more:,} characters … {text[-half:]}"
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
