"""The similarity join finds what comparing all with all finds, with far fewer comparisons."""

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakdriven.data.overlap import near_duplicates as near
from weakdriven.data.overlap.near_duplicates import NearTexts, runs_of

THRESHOLDS = (0.07, 0.29, 0.5, 0.55, 0.7, 0.8, 0.9, 1.0)
word_sets = st.lists(st.tuples(st.sampled_from(["", "3 4"]), st.sets(st.sampled_from("abcdefghijkl"))), max_size=30)


def near_by_comparing_all(sets, key, words, threshold):
    found = []
    for number, (other_key, others) in enumerate(sets):
        if key == other_key and words and others:
            similarity = Fraction(len(words & others), len(words | others))
            if similarity >= Fraction(str(threshold)):
                found.append((number, float(similarity)))
    return found


@pytest.mark.parametrize("small_block", [0, 3, 16])
def test_the_join_finds_what_comparing_all_finds(small_block, monkeypatch):
    monkeypatch.setattr(near, "SMALL_BLOCK", small_block)

    @settings(deadline=None, max_examples=60)
    @given(word_sets, word_sets, st.sampled_from(THRESHOLDS), st.lists(st.sets(st.sampled_from("abcdefmn"))))
    def check(held, asked, threshold, seen):
        sets = NearTexts(threshold, seen=seen)
        for number, (key, words) in enumerate(held):
            assert sets.find(key, words) == near_by_comparing_all(held[:number], key, words, threshold)
            assert sets.add(key, words) == number
        for key, words in asked:
            assert sets.find(key, words) == near_by_comparing_all(held, key, words, threshold)

    check()


@pytest.mark.parametrize("threshold", [0.55, 0.7, 0.8])  # 0.55 * 100 is a little above 55
def test_no_pair_at_the_border_is_lost_to_rounding(threshold, monkeypatch):
    """The smallest subset that is near; the rarest words are missing, so one word too few in the index misses it."""
    monkeypatch.setattr(near, "SMALL_BLOCK", 0)
    exact = Fraction(str(threshold))
    for size in range(2, 131):
        words = [f"{number:03}" for number in range(size)]
        kept = -(-size * exact.numerator // exact.denominator)
        sets = NearTexts(threshold)
        sets.add("", set(words))
        assert sets.find("", set(words[size - kept :])) == [(0, kept / size)]
        assert sets.find("", set(words[size - kept + 1 :])) == []


def zipf_sets(count, rng):
    """Sets of about 25 words with the frequencies of a natural language."""
    vocabulary = [f"word{number}" for number in range(50_000)]
    weights = [1 / (rank + 10) for rank in range(len(vocabulary))]
    drawn = rng.choices(vocabulary, weights, k=40 * count)
    return [set(drawn[40 * row : 40 * row + 40]) for row in range(count)]


def comparisons(count, keys):
    rng = random.Random(0)
    rows = zipf_sets(count, rng)
    sets = NearTexts(0.7, seen=rows)
    for words in rows:
        key = keys(rng)
        sets.find(key, words)
        sets.add(key, words)
    return sets.compared


def test_with_numbers_as_keys_comparisons_grow_no_faster_than_rows():
    def numbers(rng):
        return " ".join(sorted(str(rng.randint(1, 100)) for _ in range(3)))

    few, many = comparisons(200, numbers), comparisons(2000, numbers)
    assert many <= 11 * max(few, 20)
    assert many < 0.001 * 2000**2 / 2


def test_in_one_large_block_rare_words_leave_few_comparisons():
    assert comparisons(2000, lambda rng: "") < 0.05 * 2000**2 / 2


def test_learning_which_words_are_rare_saves_comparisons():
    rows = [{"the", "of", "and", f"zebra{number}", f"zoo{number}", "with"} for number in range(100)]

    def compared(seen):
        sets = NearTexts(0.7, seen=seen)
        for words in rows:
            sets.find("", words)
            sets.add("", words)
        return sets.compared

    assert compared(rows) < compared([]) == 100 * 99 // 2


few_words = st.tuples(st.sampled_from(["", "3 4"]), st.lists(st.sampled_from("abcd"), max_size=14))


@pytest.mark.parametrize("small_block", [0, 16])
def test_runs_find_what_comparing_all_finds(small_block, monkeypatch):
    monkeypatch.setattr(near, "SMALL_BLOCK", small_block)

    @settings(deadline=None, max_examples=60)
    @given(st.lists(few_words, max_size=30), st.sampled_from([0.2, 0.5, 0.8, 1.0]), st.lists(few_words))
    def check(texts, share, seen):
        near_runs = NearTexts(0.7, share, (words for _, words in seen))
        for number, (key, words) in enumerate(texts):
            expected = []
            for other, (other_key, others) in enumerate(texts[:number]):
                if words and others and key == other_key:
                    mine, theirs = runs_of(words), runs_of(others)
                    enough = len(mine & theirs) >= Fraction(str(share)) * max(len(mine), len(theirs))
                    jaccard = Fraction(len({*words} & {*others}), len({*words} | {*others}))
                    if enough and jaccard >= Fraction("0.7"):
                        expected.append((other, float(jaccard)))
            assert near_runs.find(key, words) == expected
            assert near_runs.add(key, words) == number

    check()


def test_puzzles_over_the_same_words_leave_few_comparisons():
    rng = random.Random(0)
    people = ["ann", "bob", "carl", "dora", "emil", "fay", "gus", "hal", "ida", "jon", "kim", "leo"]

    def puzzle():
        said = (rng.sample(people, 3) for _ in range(5))
        what = ("knight", "knave")
        claims = (f"{a} says {b} is a {rng.choice(what)} or {c} is a {rng.choice(what)}" for a, b, c in said)
        return f"on an island live knights who tell the truth and knaves who lie {' '.join(claims)} who lies".split()

    rows = [puzzle() for _ in range(1000)]
    near_runs = NearTexts(0.8, 0.8, rows)
    for words in rows:
        assert near_runs.find("", words) == []
        near_runs.add("", words)
    assert near_runs.compared < 0.01 * 1000**2 / 2
