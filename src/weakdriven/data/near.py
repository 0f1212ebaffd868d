"""Which sets of words are nearly the same, without comparing all with all and without missing any.

Two sets with a Jaccard similarity of at least t share at least t of the words of either. So when the words of both are
put in one order, rare ones first, the sets share a word among the first few of each: with 30 words and t = 0.7, among
the first 10, and two words among the first 11 (the prefix filter of set-similarity joins: Chaudhuri et al. 2006,
Bayardo et al. 2007; its longer prefixes: Wang et al. 2012). An index of these first words finds every pair; any order
is correct, and rare words first makes it fast. Two words instead of one leave far fewer pairs to compare.

Sets are compared within a key (the numbers of a text), so the work grows with the rows as long as keys do. Under one
key it grows a little faster, with the sets that share rare words.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from fractions import Fraction
from itertools import chain

SMALL_BLOCK = 16
"""Up to this many sets under one key are compared one by one; an index would cost more memory than it saves time."""


class NearSets:
    """Sets of words, and which of them are near to a new one.

    Args:
        threshold: Smallest Jaccard similarity, in (0, 1], that counts as near.
        seen: Texts' words from which to learn which words are rare. Changes the speed, never what is found.

    >>> sets = NearSets(0.7)
    >>> sets.add("", {"a", "red", "fox", "ran"})
    0
    >>> sets.find("", {"a", "red", "fox", "ran", "off"})
    [(0, 0.8)]
    >>> sets.find("", {"the", "red", "fox", "ran"})
    []
    """

    def __init__(self, threshold: float, seen: Iterable[Collection[str]] = ()) -> None:
        # A float's 0.7 * n can lie above the whole number it stands for, and would then miss a pair at the border.
        exact = Fraction(str(threshold))
        self._enough, self._of = exact.numerator, exact.denominator
        self.compared = 0
        """How many pairs were looked at: the work done so far."""
        self._count = Counter(word for words in seen for word in set(words))
        self._sets: list[tuple[str, ...]] = []
        self._blocks: dict[str, list[int]] = {}
        self._by_word: dict[str, dict[str, list[int]]] = {}
        self._known: dict[str, str] = {}

    def add(self, key: str, words: Collection[str]) -> int:
        """Remember a set under a key; only sets with equal keys are ever near. Returns its number, counting from 0."""
        number = len(self._sets)
        self._sets.append(tuple(self._known.setdefault(word, word) for word in set(words)))
        block = self._blocks.setdefault(key, [])
        block.append(number)
        if key in self._by_word:
            self._index(self._by_word[key], number)
        elif len(block) > SMALL_BLOCK:
            by_word = self._by_word[key] = {}
            for each in block:
                self._index(by_word, each)
        return number

    def find(self, key: str, words: Collection[str]) -> list[tuple[int, float]]:
        """Number and similarity of every near set under this key, in the order they were added."""
        words = set(words)
        if not words:
            return []
        by_word = self._by_word.get(key)
        if by_word is None:
            candidates = self._blocks.get(key, ())
        else:
            met = Counter(chain.from_iterable(by_word.get(word, ()) for word in self._first_words(words)))
            enough = min(2, self._shared_at_least(words))
            candidates = [number for number, times in met.items() if times >= enough]
        self.compared += len(candidates)
        near = []
        for number in candidates:
            shared = len(words.intersection(self._sets[number]))
            union = len(words) + len(self._sets[number]) - shared
            if shared * self._of >= self._enough * union:
                near.append((number, shared / union))
        return sorted(near)

    def _index(self, by_word: dict[str, list[int]], number: int) -> None:
        for word in self._first_words(self._sets[number]):
            by_word.setdefault(word, []).append(number)

    def _first_words(self, words: Collection[str]) -> list[str]:
        """The rarest words, as many as a near set cannot be without two of."""
        rare_first = sorted(words, key=lambda word: (self._count[word], word))
        return rare_first[: len(words) - self._shared_at_least(words) + 2]

    def _shared_at_least(self, words: Collection[str]) -> int:
        return -(-len(words) * self._enough // self._of)
