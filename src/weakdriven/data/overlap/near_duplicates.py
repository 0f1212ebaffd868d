"""Which sets or runs of words are nearly the same, without comparing all with all and without missing any.

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

from weakdriven.data.overlap.fingerprint import grams

RUN = 5
"""Words in a run of `NearRuns`."""
SHARED_RUNS = 5
"""As many of the rarest runs are shared before two texts are compared: one other word changes five runs."""
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


class NearRuns:
    """Texts, and which of them are near to a new one in the same order: the puzzles of a kind have all words in common.

    Found by their rare runs of words, as sets are by their rare words.

    Args:
        threshold: Smallest Jaccard similarity of the word sets, in (0, 1].
        share: Smallest share of the runs of either text that both have.
        seen: Texts' words from which to learn which runs are rare. Changes the speed, never what is found.

    >>> texts = NearRuns(0.8, 0.8)
    >>> texts.add("", "Ann is taller than Bob and Bob is taller than Tom".split())
    0
    >>> texts.find("", "Ann is taller than Bob and Bob is taller than Tom Who".split())
    [(0, 0.875)]
    >>> texts.find("", "Ann is taller than Tom and Tom is taller than Bob".split())
    []
    """

    def __init__(self, threshold: float, share: float, seen: Iterable[list[str]] = ()) -> None:
        self._jaccard, self._share = Fraction(str(threshold)), Fraction(str(share))
        self.compared = 0
        """How many pairs were looked at: the work done so far."""
        count = Counter(hash(run) for words in seen for run in runs_of(words))
        self._count = {run: times for run, times in count.items() if times > 1}
        self._texts: list[tuple[str, ...]] = []
        self._by_run: dict[int, int | list[int]] = {}
        self._known: dict[str, str] = {}

    def add(self, key: str, words: list[str]) -> int:
        """Remember a text under a key; only texts with equal keys are ever near. Returns its number from 0 on."""
        number = len(self._texts)
        self._texts.append(tuple(self._known.setdefault(word, word) for word in words))
        for run in self._first_runs(key, runs_of(words)):
            there = self._by_run.setdefault(run, number)  # most runs are of one text, and a list takes 60 bytes more
            if isinstance(there, list):
                there.append(number)
            elif there != number:
                self._by_run[run] = [there, number]
        return number

    def find(self, key: str, words: list[str]) -> list[tuple[int, float]]:
        """Number and similarity of every near text under this key, in the order they were added."""
        runs = runs_of(words)
        met = Counter[int]()
        for run in self._first_runs(key, runs):
            there = self._by_run.get(run, ())
            met.update((there,) if isinstance(there, int) else there)
        enough = min(SHARED_RUNS, self._shared_at_least(runs))
        candidates = sorted(number for number, times in met.items() if times >= enough)
        self.compared += len(candidates)
        near = []
        for number in candidates:
            others = runs_of(list(self._texts[number]))
            if len(runs & others) >= self._share * max(len(runs), len(others)):
                mine, theirs = set(words), set(self._texts[number])
                similarity = Fraction(len(mine & theirs), len(mine | theirs))
                if similarity >= self._jaccard:
                    near.append((number, float(similarity)))
        return near

    def _first_runs(self, key: str, runs: set[str]) -> list[int]:
        rare_first = sorted((self._count.get(hash(run), 1), run) for run in runs)
        kept = rare_first[: len(runs) - self._shared_at_least(runs) + SHARED_RUNS]
        return [hash((key, run)) for _, run in kept]

    def _shared_at_least(self, runs: set[str]) -> int:
        return -(-len(runs) * self._share.numerator // self._share.denominator)


def runs_of(words: list[str]) -> set[str]:
    """All runs of `RUN` words, or all words as one run."""
    return grams(words, min(RUN, len(words))) if words else set()
