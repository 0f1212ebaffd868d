"""Which texts are nearly the same, without comparing all with all and without missing any.

Two sets with a Jaccard similarity of at least t share at least t of the elements of either. So if the elements of both
are put in one order, rare ones first, the sets share one among the first few of each: with 30 words and t = 0.7 among
the first 10, and two among the first 11 (the prefix filter of set-similarity joins: Chaudhuri et al. 2006, Bayardo et
al. 2007; its longer prefixes: Wang et al. 2012). An index of these first elements finds every pair. Any order is
correct; rare first makes it fast, and asking for two shared elements instead of one leaves far fewer pairs to compare.

Texts are compared within a key (their numbers, say), so the work grows with the rows as long as keys do. Under one key
it grows a little faster, with the texts that share rare words.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from fractions import Fraction
from itertools import chain

from weakdriven.data.overlap.fingerprint import grams

RUN = 5
"""Words in a run of ordered texts."""
SHARED_WORDS = 2
"""Two texts are compared only if they share this many of their rarest words."""
SHARED_RUNS = 5
"""The same for runs of words: one other word changes five runs."""
SMALL_BLOCK = 16
"""Up to this many texts under one key are compared one by one; an index would cost more memory than it saves time."""


class NearTexts:
    """Texts as words, and which of them are near to a new one.

    Args:
        near: Smallest Jaccard similarity of the word sets, in (0, 1].
        ordered: Smallest share of the runs of either text that both have; 0: the words may be in any order. Puzzles of
            one kind have all their words in common. The index then holds rare runs in place of rare words.
        seen: Texts from which to learn what is rare. Changes the speed, never what is found.

    >>> texts = NearTexts(0.7)
    >>> texts.add("", ["a", "red", "fox", "ran"])
    0
    >>> texts.find("", ["a", "red", "fox", "ran", "off"])
    [(0, 0.8)]
    """

    def __init__(self, near: float, ordered: float = 0.0, seen: Iterable[Collection[str]] = ()) -> None:
        # A float's 0.7 * n can lie above the whole number it stands for, and would then miss a pair at the border.
        self._near, self._ordered = Fraction(str(near)), Fraction(str(ordered))
        self._least = self._ordered or self._near
        self._more = SHARED_RUNS if self._ordered else SHARED_WORDS
        self.compared = 0
        """How many pairs were looked at: the work done so far."""
        count = Counter(chain.from_iterable(map(self._elements, seen)))
        self._count = {element: times for element, times in count.items() if times > 1}
        self._texts: list[tuple[str, ...]] = []
        self._blocks: dict[str, list[int]] = {}
        self._indexes: dict[str, dict[str, list[int]]] = {}
        self._known: dict[str, str] = {}

    def add(self, key: str, words: Collection[str]) -> int:
        """Remember a text under a key; only texts with equal keys are ever near. Returns its number, from 0 on."""
        number = len(self._texts)
        kept = words if self._ordered else set(words)
        self._texts.append(tuple(self._known.setdefault(word, word) for word in kept))
        block = self._blocks.setdefault(key, [])
        block.append(number)
        if key in self._indexes:
            self._index(self._indexes[key], number)
        elif len(block) > SMALL_BLOCK:
            index = self._indexes[key] = {}
            for each in block:
                self._index(index, each)
        return number

    def find(self, key: str, words: Collection[str]) -> list[tuple[int, float]]:
        """Number and similarity of every near text under this key, in the order they were added."""
        elements, mine = self._elements(words), set(words)
        if not mine:
            return []
        index = self._indexes.get(key)
        if index is None:
            candidates = self._blocks.get(key, [])
        else:
            met = Counter(chain.from_iterable(index.get(element, ()) for element in self._first(elements)))
            enough = min(self._more, self._shared_at_least(elements))
            candidates = sorted(number for number, times in met.items() if times >= enough)
        self.compared += len(candidates)
        near = []
        for number in candidates:
            shared = len(mine.intersection(self._texts[number]))
            union = len(mine.union(self._texts[number]))
            if shared * self._near.denominator >= self._near.numerator * union and self._in_order(elements, number):
                near.append((number, shared / union))
        return near

    def _in_order(self, runs: set[str], number: int) -> bool:
        if not self._ordered:
            return True
        others = self._elements(self._texts[number])
        return len(runs & others) >= self._ordered * max(len(runs), len(others))

    def _elements(self, words: Collection[str]) -> set[str]:
        """What the index holds of a text: its words, or its runs of words."""
        return runs_of(list(words)) if self._ordered else set(words)

    def _index(self, index: dict[str, list[int]], number: int) -> None:
        for element in self._first(self._elements(self._texts[number])):
            index.setdefault(element, []).append(number)

    def _first(self, elements: set[str]) -> list[str]:
        """The rarest elements: a near text shares at least `_more` of them."""
        rare_first = sorted(elements, key=lambda element: (self._count.get(element, 1), element))
        return rare_first[: len(elements) - self._shared_at_least(elements) + self._more]

    def _shared_at_least(self, elements: set[str]) -> int:
        return -(-len(elements) * self._least.numerator // self._least.denominator)


def runs_of(words: list[str]) -> set[str]:
    """All runs of `RUN` words, or all words as one run."""
    return grams(words, min(RUN, len(words))) if words else set()
