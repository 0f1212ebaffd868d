"""`weakdriven data show`: a source's layout, some rows with their supervised tokens, and what would be left out."""

from collections import Counter
from dataclasses import dataclass
from itertools import groupby, islice

from rich.console import Console
from rich.text import Text

from weakdriven.data.example import Example
from weakdriven.data.prompts import Renderer
from weakdriven.data.rows.sources import Source
from weakdriven.data.tokenize import IGNORE, tokenize
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


def look(example: Example, renderer: Renderer, max_length: int, positions: int | None = None) -> Look:
    """Tokenise one example whole and mark what fits; `positions` are those of the model, if it limits them."""
    row = tokenize(example, renderer)
    kinds = ["prompt" if label == IGNORE else "learned" for label in row["labels"]]
    unsupervised = kinds.count("prompt")
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
    elif positions is not None and min(len(kinds), max_length) > positions:
        fate = f"longer than the model's {positions:,} positions: an error; lower max_length to cut it"
    elif len(kinds) > max_length:
        fate = f"longer than max_length={max_length}: cut on the right, so its end is not learned"
    elif row["unlearned"]:
        fate = "some replies before the last are not learned: the chat template rewrites earlier replies"
    else:
        fate = ""
    return Look(example.id, runs, unsupervised, learned, len(kinds), fate)


def print_source(
    source: Source,
    renderer: Renderer,
    console: Console,
    *,
    rows: int,
    max_length: int,
    count: int | None,
    positions: int | None = None,
) -> bool:
    """Print the layout, the `count` of rows if known, some rows with the learned text in colour, and what is cut.

    Returns whether training could read these rows.
    """
    many = "" if count is None else f", {count:,} rows"
    _say(console, f"{source.path}: layout {source.layout.name} (fields {', '.join(source.layout.fields)}){many}")
    longest, fates, stopped = 0, Counter[str](), ""
    try:
        for number, example in enumerate(islice(source, LOOKED_AT)):
            one = look(example, renderer, max_length, positions)
            longest = max(longest, one.tokens)
            fates[one.fate] += 1
            if number < rows:
                print_look(one, console)
    except UserError as error:
        stopped = str(error)
    console.print()
    _say(console, f"Of the first {fates.total():,} rows (longest: {longest:,} tokens):")
    for fate, number in {"learned whole": fates.pop("", 0), **fates}.items():
        _say(console, f"  {number:,} {fate}")
    if stopped:
        _say(console, f"Training would stop here: {stopped}", "red")
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
    """Shortened, and without control characters."""
    if (more := len(text) - LONGEST) > 0:
        half = LONGEST // 2
        text = f"{text[:half]} … {more:,} characters … {text[-half:]}"
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
