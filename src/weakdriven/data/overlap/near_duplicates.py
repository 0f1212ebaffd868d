"""Find nearly equal texts without comparing all pairs and without missing any.

Two sets with a Jaccard similarity of at least t share at least t of the elements of either. So if the elements of both
are sorted in one order, rare ones first, the sets share one element among the first few of each: with 30 words and
t = 0.7 among the first 10, and two among the first 11. This is the prefix filter of set-similarity joins (Chaudhuri et
al. 2006, Bayardo et al. 2007; longer prefixes: Wang et al. 2012). An index of these first elements finds every pair.
Any order is correct; rare first is fast, and requiring two shared elements leaves far fewer pairs to compare.

Texts are compared only within a key (such as their numbers), so the work grows linearly with the rows if new rows bring
new keys. Within one key it grows a little faster, with the number of texts that share rare words.
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
"""The same for runs of words: changing one word changes five runs."""
SMALL_BLOCK = 16
"""Up to this many texts under one key are compared one by one; an index would cost more memory than it saves time."""


class NearTexts:
    """Stores texts as words and finds those near to a new one.

    Args:
        near: Smallest Jaccard similarity of the word sets, in (0, 1].
        ordered: Smallest share of the runs of either text that both have; 0 ignores order. Puzzles of
            one kind have all words in common. The index then holds rare runs and not rare words.
        seen: Texts that show what is rare. Changes the speed, never the result.

    >>> texts = NearTexts(0.7)
    >>> texts.add("", ["a", "red", "fox", "ran"])
    0
    >>> texts.find("", ["a", "red", "fox", "ran", "off"])
    [(0, 0.8)]
    """

    def __init__(self, near: float, ordered: float = 0.0, seen: Iterable[Collection[str]] = ()) -> None:
        # In floating point, 0.7 * n can exceed the whole number that it equals, which would miss a pair at the border.
        self._near, self._ordered = Fraction(str(near)), Fraction(str(ordered))
        self._least = self._ordered or self._near
        self._more = SHARED_RUNS if self._ordered else SHARED_WORDS
        self.compared = 0
        """Number of compared pairs: the work done so far."""
        count = Counter(chain.from_iterable(map(self._elements, seen)))
        self._count = {element: times for element, times in count.items() if times > 1}
        self._texts: list[tuple[str, ...]] = []
        self._blocks: dict[str, list[int]] = {}
        self._indexes: dict[str, dict[str, list[int]]] = {}
        self._known: dict[str, str] = {}

    def add(self, key: str, words: Collection[str]) -> int:
        """Store a text under a key and return its number, from 0. Only texts with equal keys can be near."""
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
        """Return number and similarity of every near text under this key, in the order they were added."""
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
        """Return the elements of a text in the index: its words or its runs of words."""
        return runs_of(list(words)) if self._ordered else set(words)

    def _index(self, index: dict[str, list[int]], number: int) -> None:
        for element in self._first(self._elements(self._texts[number])):
            index.setdefault(element, []).append(number)

    def _first(self, elements: set[str]) -> list[str]:
        """Return the rarest elements; a near text shares at least `_more` of them."""
        rare_first = sorted(elements, key=lambda element: (self._count.get(element, 1), element))
        return rare_first[: len(elements) - self._shared_at_least(elements) + self._more]

    def _shared_at_least(self, elements: set[str]) -> int:
        return -(-len(elements) * self._least.numerator // self._least.denominator)


def runs_of(words: list[str]) -> set[str]:
    """Return all runs of `RUN` words; a shorter text is one run."""
    return grams(words, min(RUN, len(words))) if words else set()
