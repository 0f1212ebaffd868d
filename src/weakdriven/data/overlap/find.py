"""Find training rows that repeat held-out items, or each other, in the same or nearly the same words.

Kinds of overlap, strongest first:

- `exact`: the same letters and digits in the same order, ignoring case, spaces and punctuation;
- `near`: not exact, the same numbers, and a Jaccard similarity of the word sets of at least `Rules.near`;
- `ngram`: a shared run of `Rules.ngram` words, or with `Rules.short_items` all words of an item that has fewer;
- `template`: not exact, the same text except for its numbers.

`fingerprint.py` defines words and numbers, `near_duplicates.py` finds near pairs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from typing import Literal, NamedTuple, TypeVar

from weakdriven.data.overlap.fingerprint import Fingerprint, fingerprint, grams
from weakdriven.data.overlap.near_duplicates import NearTexts

Kind = Literal["exact", "near", "ngram", "template"]
KINDS: tuple[Kind, ...] = ("exact", "near", "ngram", "template")
REMOVED: tuple[Kind, ...] = ("exact", "near", "ngram")
"""Kinds for which a training row is removed; a template with new numbers is a new problem."""
LEARN_FROM = 10_000
"""Rows from which `deduplicate` learns which words are rare."""
SHORT = 4
"""Fewest words and numbers of a short item that is searched for in longer texts: "What is x?" is everywhere."""
Row = TypeVar("Row")


@dataclass(frozen=True)
class Rules:
    """When two texts overlap."""

    near: float = 0.7
    """Smallest Jaccard similarity of the word sets."""
    same_numbers: bool = True
    """Whether near texts must have the same numbers equally often."""
    ngram: int = 13
    """Words in a shared run."""
    signs: bool = False
    """Whether exact and near texts must have the same + - * / ^ = < > ! brackets and decimal points, and near texts
    also the same order of numbers. For repeats among formulas; needs `same_numbers`."""
    ordered: float = 0.0
    """Smallest share of the 5-word runs of either text that near repeats have in common; 0 ignores order. For repeats
    among puzzles, many of which consist of the same few words."""
    short_items: bool = False
    """Whether a text overlaps with an item shorter than `ngram` words if it contains the whole item."""

    def key(self, print_: Fingerprint) -> str:
        """Return what near texts must share exactly."""
        return print_.numbers if self.same_numbers else ""


RULES = {"math": Rules(), "logic": Rules(near=0.8, same_numbers=False), "code": Rules(ngram=10)}
"""By domain of the held-out items; builds also search for short items (`decontaminate.py`)."""


class HeldItem(NamedTuple):
    """A text that must not be trained on; an item may occur several times with different texts."""

    benchmark: str
    id: str
    text: str


class Overlap(NamedTuple):
    """An overlap of a training text with a held-out item."""

    kind: Kind
    benchmark: str
    id: str
    score: float
    """Jaccard similarity (near), share of the item's n-grams that are in the text (ngram), or 1."""


class Repeat(NamedTuple):
    """The earlier row that a row repeats."""

    kind: Kind
    row: int
    """Row number in the input, from 0."""
    score: float


class Held:
    """An index of held-out items: built once, searched for every training row.

    Texts on both sides should be bare (`questions.bare`), or all questions overlap in the words that we add.

    >>> held = Held([HeldItem("gsm8k", "7", "Ann has 3 red pens and buys 4 more. How many pens?")])
    >>> held.find("Ann has 3 RED pens, and buys 4 more: how many pens?")
    [Overlap(kind='exact', benchmark='gsm8k', id='7', score=1.0)]
    >>> held.find("Ann has 4 pens and buys 3 more. How many?")
    [Overlap(kind='near', benchmark='gsm8k', id='7', score=0.9090909090909091)]
    """

    def __init__(self, items: Iterable[HeldItem], rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self._names: list[tuple[str, str]] = []
        self._same: dict[tuple[Kind, bytes], list[int]] = {}
        self._runs: list[int] = []
        self._by_run: dict[str, list[int]] = {}
        self._short: dict[str, list[tuple[int, list[str], int]]] = {}
        """Maps a word of a short item to its position in the item, the item's words, and the item's number."""
        prints = []
        for benchmark, id, text in items:
            if (print_ := fingerprint(text, signs=self.rules.signs)).words:
                self._names.append((benchmark, id))
                prints.append(print_)
        self.near_texts = NearTexts(self.rules.near, seen=(print_.words for print_ in prints))
        for print_ in prints:
            self._add(print_)

    def find(self, text: str) -> list[Overlap]:
        """Find all overlaps of a text, strongest kind first, one for each kind and item."""
        if not (print_ := fingerprint(text, signs=self.rules.signs)).words:
            return []
        exact = dict.fromkeys(self._same.get(("exact", print_.exact), ()), 1.0)
        near = dict(self.near_texts.find(self.rules.key(print_), print_.words))
        template = dict.fromkeys(self._same.get(("template", print_.template), ()), 1.0)
        found: dict[tuple[Kind, str, str], float] = {}
        exact_names = {self._names[item] for item in exact}
        shared = self._shared_grams(print_.words)
        for kind, scores in zip(KINDS, (exact, near, shared, template), strict=True):
            for item, score in scores.items():
                what = (kind, *self._names[item])
                if kind in ("exact", "ngram") or what[1:] not in exact_names:
                    found[what] = max(score, found.get(what, 0.0))
        return [Overlap(*what, score) for what, score in found.items()]

    def contained(self, text: str) -> Overlap | None:
        """Find the first item that is the text or is contained in it; cheaper than `find`."""
        if not (print_ := fingerprint(text, signs=self.rules.signs)).words:
            return None
        for item in self._same.get(("exact", print_.exact), ()):
            return Overlap("exact", *self._names[item], 1.0)
        for item, share in self._shared_grams(print_.words).items():
            if share == 1.0:
                return Overlap("ngram", *self._names[item], 1.0)
        return None

    def _add(self, print_: Fingerprint) -> None:
        item = self.near_texts.add(self.rules.key(print_), print_.words)
        self._same.setdefault(("exact", print_.exact), []).append(item)
        self._same.setdefault(("template", print_.template), []).append(item)
        runs = grams(print_.words, self.rules.ngram)
        for run in runs:
            self._by_run.setdefault(run, []).append(item)
        self._runs.append(len(runs))
        if self.rules.short_items and not runs and len(print_.words) + len(print_.numbers.split()) >= SHORT:
            word = max(print_.words, key=len)  # long words are rare and leave few places to compare
            self._short.setdefault(word, []).append((print_.words.index(word), print_.words, item))

    def _shared_grams(self, words: list[str]) -> dict[int, float]:
        """Return, in the order of items, the share of each item's n-grams that are among these words."""
        runs = grams(words, self.rules.ngram)
        shared = Counter(item for run in runs for item in self._by_run.get(run, ()))
        shares = {item: shared[item] / self._runs[item] for item in shared}
        for place, word in enumerate(words) if self._short else ():
            for before, run, item in self._short.get(word, ()):
                if before <= place and words[place - before : place - before + len(run)] == run:
                    shares[item] = 1.0
        return dict(sorted(shares.items()))


def deduplicate(
    rows: Iterable[Row],
    text: Callable[[Row], str] = str,
    *,
    key: Callable[[Row], str] = lambda row: "",
    rules: Rules | None = None,
) -> Iterator[tuple[Row, Repeat | None]]:
    """Yield every row in order, with the kept row that it repeats exactly or nearly, or None if the row is kept.

    The first of several similar rows is kept. Rows are compared with kept rows only, so a chain of small changes is not
    followed. Reads ahead by `LEARN_FROM` rows; memory grows with the kept rows.

    Args:
        text: Returns the text to compare, including options: many questions consist of the same few words.
        key: Rows with different keys (answers, say) never repeat each other.

    >>> list(deduplicate(["2 red cats", "Cats, red, 2"]))
    [('2 red cats', None), ('Cats, red, 2', Repeat(kind='near', row=0, score=1.0))]
    """
    rules = rules or Rules()
    rows = iter(rows)
    first = list(islice(rows, LEARN_FROM))
    seen = (fingerprint(text(row), signs=rules.signs).words for row in first)
    near_texts = NearTexts(rules.near, rules.ordered, seen)
    kept_exact: dict[bytes, int] = {}
    kept: list[int] = []
    for number, row in enumerate(chain(first, rows)):
        print_ = fingerprint(text(row), signs=rules.signs)
        apart = key(row)
        same = print_.exact + (blake2b(apart.encode(errors="surrogatepass"), digest_size=8).digest() if apart else b"")
        near_key = f"{apart}\n{rules.key(print_)}" if apart else rules.key(print_)
        repeat = None
        if same in kept_exact:
            repeat = Repeat("exact", kept_exact[same], 1.0)
        elif near := near_texts.find(near_key, print_.words):
            repeat = Repeat("near", kept[near[0][0]], near[0][1])
        elif print_.words:
            kept_exact[same] = number
            near_texts.add(near_key, print_.words)
            kept.append(number)
        yield row, repeat
