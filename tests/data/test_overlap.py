"""What counts as an overlap, kind by kind and at the borders, and that none is missed."""

import pickle
import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakdriven.data.overlap import find as overlap
from weakdriven.data.overlap.find import RULES, Held, HeldItem, Overlap, Repeat, Rules, deduplicate
from weakdriven.data.overlap.fingerprint import fingerprint
from weakdriven.data.overlap.near_duplicates import NearTexts

texts_of_few = st.lists(st.sampled_from(["a", "b", "c", "x1"]), max_size=11).map(" ".join)
TEN = "one two three four five six seven eight nine ten"


def kinds(held_text, text, rules=None):
    return {found.kind: found.score for found in Held([HeldItem("b", "1", held_text)], rules).find(text)}


@pytest.mark.parametrize(
    "text",
    [
        "How many red apples has Zoë got in 2 bags?",
        "  how MANY red apples has zoë got in 2 bags",
        "How many red-apples has Zoe\u0308 got, in $2$ bags?!",
        "Ｈow many red apples has Zoë got in ２ bags？",
        "how_many red app les has Zoë got in 2\nbags",
    ],
)
def test_case_layout_punctuation_and_unicode_forms_make_no_difference(text):
    assert kinds("How many red apples has Zoë got in 2 bags?", text)["exact"] == 1.0


def test_another_letter_is_not_exact():
    assert "exact" not in kinds("Zoë has 2 bags", "Zoe has 2 bags")


@pytest.mark.parametrize("text", ["Ελένη έχει 5 ΜΉΛΑ", "小明有3个苹果", "У Анны 7 яблок"])
def test_letters_of_every_script_count(text):
    assert kinds(text, text.lower()) == {"exact": 1.0}
    assert "exact" not in kinds(text, text[::-1])


def test_chinese_without_spaces_is_compared_by_characters():
    assert kinds("小明有3个红苹果和梨", "小明有3个红苹果和梨子")["near"] == 10 / 11
    assert kinds("小明有3个苹果，他又买了5个苹果", "问：小明有3个苹果，他又买了5个梨")["ngram"] > 0


@pytest.mark.parametrize("text", ["", " \n", "?! ...", "$$"])
def test_a_text_without_letters_or_digits_overlaps_with_nothing(text):
    assert kinds(text, text) == {}
    assert kinds("a b c", text) == {}
    assert [repeat for _, repeat in deduplicate([text, text])] == [None, None]


def test_very_short_texts_are_compared_too():
    assert kinds("x", "X.") == {"exact": 1.0}
    assert kinds("x", "y") == {}
    assert kinds("2 cats", "cats: 2") == {"near": 1.0}


@pytest.mark.parametrize(
    ("shared", "more", "found"), [(7, 3, True), (69, 31, False), (70, 30, True), (9, 4, False), (14, 6, True)]
)
def test_near_begins_at_seven_tenths(shared, more, found):
    words = [f"w{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(shared + more)]
    got = kinds(" ".join(words), " ".join(reversed(words[:shared])))
    assert got == ({"near": shared / (shared + more)} if found else {})


def test_near_texts_may_be_reordered_and_change_a_few_words():
    held = "Tom bought 12 blue pens and 7 red pens, how many pens did he buy in all?"
    assert "near" in kinds(held, "In all, how many pens did he buy: 7 red pens and 12 blue pens, which Tom bought?")


def test_near_texts_hold_the_same_numbers_each_as_often():
    assert "near" not in kinds(f"{TEN} 3 5", f"{TEN} 3 6")
    assert "near" not in kinds(f"{TEN} 3 5", f"{TEN} 3 5 5")
    assert "near" not in kinds(f"{TEN} 2.5", f"{TEN} 25")
    assert "near" in kinds(f"{TEN} 3 5 5", f"ten 5 {TEN} 5 3")
    assert "near" in kinds(f"{TEN} 1,250 km", f"{TEN} 1250")
    assert "near" in kinds(f"{TEN} 3 5", f"{TEN} 3 6", Rules(same_numbers=False))


def test_texts_without_numbers_are_near_by_their_words_alone():
    assert kinds(TEN, f"{TEN} eleven") == {"near": 10 / 11}
    assert kinds(TEN, f"{TEN} 11") == {}


def test_logic_asks_for_eight_tenths():
    assert kinds(TEN, "one two three four five six seven eight", RULES["logic"]) == {"near": 0.8}
    assert kinds(TEN, "one two three four five six seven", RULES["logic"]) == {}


def test_a_run_of_thirteen_words_is_shared_and_one_of_twelve_is_not():
    words = [f"w{number}" for number in range(20)]
    held, twelve, thirteen = " ".join(words), " ".join(words[4:16]), ", ".join(words[4:17]).upper()
    assert kinds(held, f"before {twelve} after") == {}
    assert kinds(held, f"before {thirteen} after") == {"ngram": 1 / 8}
    assert kinds(held, f"before {twelve} after", Rules(ngram=12)) == {"ngram": 1 / 9}


def test_runs_are_of_whole_words_in_order():
    held = " ".join(f"w{number}" for number in range(10, 23))
    assert "ngram" not in kinds(held, f"{held}0")
    assert "ngram" not in kinds(held, f"1{held}")
    assert "ngram" not in kinds(held, " ".join(reversed(held.split())))


def test_the_same_text_with_other_numbers_is_a_template_and_stays():
    found = kinds("Ann has 3 pens and 1,200 nibs", "ann has 40 pens, and 7.5 nibs")
    assert found == {"template": 1.0}
    assert not set(found) & set(overlap.REMOVED)


def test_signs_are_compared_only_when_asked_for():
    plus, minus = "Solve x^2 + 5x - 6 = 0", "Solve x^2 - 5x - 6 = 0"
    assert kinds(plus, minus) == {"exact": 1.0}
    assert kinds(plus, minus, Rules(signs=True)) == {}
    assert kinds("A well-known 2-digit sum", "a well known 2-digit sum", Rules(signs=True)) == {"exact": 1.0}


@pytest.mark.parametrize(
    "one, other",
    [
        ("Compute 1.5 + 2", "Compute 15 + 2"),
        ("Compute .5", "Compute 5"),
        ("Compute 5!", "Compute 5"),
        ("Find n!", "Find n"),
        ("Compute (2+3)*4", "Compute 2+(3*4)"),
        ("What is $2^3$?", "What is $3^2$?"),
        ("Compute 7 - 3", "Compute 3 - 7"),
    ],
)
def test_formulas_that_differ_in_points_brackets_factorials_or_order_are_no_repeats(one, other):
    assert [repeat for _, repeat in deduplicate([one, other], rules=Rules(signs=True))] == [None, None]
    assert [repeat for _, repeat in deduplicate([one, other])][1]


@pytest.mark.parametrize(
    "one, other",
    [
        (r"Find $x^{2} + \dfrac{1}{2}$!", r"find \(x^2 + \frac{1}{2}\)."),
        (r"Find $\left(x+10,\!000\right)^2$", "Find $(x + 10000)^2$"),
        ("How many (red) pens has Ann?", "How many (red) pens has Ann!"),
    ],
)
def test_formulas_in_another_layout_are_repeats(one, other):
    assert [repeat.kind for _, repeat in deduplicate([one, other], rules=Rules(signs=True)) if repeat] == ["exact"]


def test_rows_with_different_keys_are_no_repeats():
    rows = [("sin 30 of it", "1/2"), ("cos 30 of it", "3/4"), ("sin 30 of it", "3/4"), ("SIN 30 of it", "1/2")]
    repeats = [repeat for _, repeat in deduplicate(rows, lambda row: row[0], key=lambda row: row[1])]
    assert repeats == [None, None, None, Repeat("exact", 0, 1.0)]
    rules = Rules(near=0.5)
    repeats = [repeat for _, repeat in deduplicate(rows, lambda row: row[0], key=lambda row: row[1], rules=rules)]
    assert repeats == [None, None, Repeat("near", 1, 0.6), Repeat("exact", 0, 1.0)]


def test_ordered_rules_keep_what_says_other_things_in_the_same_words():
    one, other = "Ann is older than Bob and Bob is older than Tom", "Tom is older than Bob and Bob is older than Ann"
    rules = Rules(near=0.8, same_numbers=False, ordered=0.8)
    assert [repeat and repeat.kind for _, repeat in deduplicate([one, other, f"{one} Jones"], rules=rules)] == [
        None,
        None,
        "near",
    ]


SHORT = Rules(short_items=True)


def test_a_short_item_inside_a_longer_text_is_found():
    item = r"Compute: $1-2+3-4+5- \dots +99-100$."
    assert kinds(item, f"Think step by step. {item} Put the answer in a box.") == {}
    assert kinds(item, f"Think step by step. {item} Put the answer in a box.", SHORT) == {"ngram": 1.0}
    assert kinds(item, f"{item[:-5]}101$ and more", SHORT) == {}


@pytest.mark.parametrize(
    "item, found", [("What is x?", False), ("2 + 3", True), ("Simplify 242", False), ("Who of them lied", True)]
)
def test_very_short_items_are_found_as_a_whole_only(item, found):
    assert ("ngram" in kinds(item, f"Tell me: {item} Please.", SHORT)) == found
    assert "exact" in kinds(item, item, SHORT)


def test_an_item_of_thirteen_words_is_not_short():
    words = [f"w{number}" for number in range(13)]
    assert kinds(" ".join(words), " ".join(["a", *words, "b"]), SHORT)["ngram"] == 1.0
    assert kinds(" ".join(words[:12]), " ".join(["a", *words[:12], "b"]), SHORT)["ngram"] == 1.0
    assert "ngram" not in kinds(" ".join(words[:12]), " ".join(["a", *words[1:12], "b"]), SHORT)


@settings(deadline=None, max_examples=100)
@given(st.lists(texts_of_few, max_size=9), texts_of_few)
def test_short_items_are_found_wherever_they_stand(items, text):
    held = Held([HeldItem("b", str(number), item) for number, item in enumerate(items)], SHORT)
    found = {int(one.id) for one in held.find(text) if one.kind == "ngram"}
    inside = {n for n, item in enumerate(items) if item and f" {item} " in f" {text} "}
    numbers = [len(re.findall(r"\d+", item)) for item in items]
    assert found == {n for n in inside if len(items[n].split()) + numbers[n] >= overlap.SHORT}


def test_an_exact_item_is_not_listed_as_near_or_template_as_well():
    text = "Ann has 3 pens and 4 nibs"
    held = Held([HeldItem("a", "1", text), HeldItem("b", "1", text + " now")])
    assert held.find(text) == [Overlap("exact", "a", "1", 1.0), Overlap("near", "b", "1", 7 / 8)]


def test_an_item_with_several_texts_is_listed_once_with_its_best_score():
    items = [HeldItem("b", "1", f"{TEN} eleven twelve"), HeldItem("b", "1", f"{TEN} eleven")]
    assert Held(items).find(TEN) == [Overlap("near", "b", "1", 10 / 11)]


def test_held_items_of_several_benchmarks_with_one_text_are_all_found():
    held = Held(HeldItem(name, "7", TEN) for name in ("a", "b"))
    assert [(found.benchmark, found.kind) for found in held.find(TEN)] == [("a", "exact"), ("b", "exact")]
    assert Held([]).find(TEN) == []


def test_an_index_can_be_sent_to_another_process():
    held = Held([HeldItem("b", "1", f"{TEN} eleven twelve thirteen")])
    text = f"{TEN} eleven twelve thirteen fourteen"
    assert pickle.loads(pickle.dumps(held)).find(text) == held.find(text) != []


def test_the_first_of_like_rows_is_kept_and_the_others_name_it():
    rows = [{"q": text} for text in (TEN, "another 5", f"{TEN} eleven", TEN.upper(), "Another: 5", "5 another")]
    got = list(deduplicate(iter(rows), lambda row: row["q"]))
    assert [row for row, _ in got] == rows
    assert [repeat for _, repeat in got] == [
        None,
        None,
        Repeat("near", 0, 10 / 11),
        Repeat("exact", 0, 1.0),
        Repeat("exact", 1, 1.0),
        Repeat("near", 1, 1.0),
    ]


def test_rows_are_compared_with_kept_rows_only():
    words = [f"w{chr(97 + number)}" for number in range(13)]
    chain = [" ".join(words[start : start + 10]) for start in range(4)]
    assert [repeat and repeat.row for _, repeat in deduplicate(chain)] == [None, 0, None, 2]


def test_rows_are_handed_on_before_all_are_read(monkeypatch):
    monkeypatch.setattr(overlap, "LEARN_FROM", 3)
    read = []
    rows = deduplicate(read.append(number) or f"row {number}" for number in range(1000))
    next(rows)
    assert len(read) <= 4


def brute_force(held, text, rules):
    """The definitions, written once more without any index."""
    found = set()
    words, numbers = text.split(), sorted(re.findall(r"\d+", text))
    for number, other in enumerate(held):
        others = other.split()
        if not words or not others:
            continue
        exact = "".join(words) == "".join(others)
        jaccard = len({*words} & {*others}) / len({*words} | {*others})
        if exact:
            found.add(("exact", number))
        elif jaccard >= rules.near and (not rules.same_numbers or numbers == sorted(re.findall(r"\d+", other))):
            found.add(("near", number))
        if set(pairwise(words)) & set(pairwise(others)):
            found.add(("ngram", number))
        if not exact and re.sub(r"\d+", "0", "".join(text.split(" "))) == re.sub(r"\d+", "0", "".join(others)):
            found.add(("template", number))
    return found


texts = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "x1", "y22"]), max_size=7).map(" ".join)
rules_drawn = st.builds(Rules, near=st.sampled_from([0.5, 0.7, 0.8]), same_numbers=st.booleans(), ngram=st.just(2))


@settings(deadline=None, max_examples=100)
@given(st.lists(texts, max_size=25), st.lists(texts, max_size=5), rules_drawn)
def test_held_finds_what_comparing_all_finds(held_texts, asked, rules):
    held = Held([HeldItem("b", str(number), text) for number, text in enumerate(held_texts)], rules)
    for text in asked:
        found = held.find(text)
        assert {(one.kind, int(one.id)) for one in found} == brute_force(held_texts, text, rules)
        assert len(found) == len({one[:3] for one in found})


@settings(deadline=None, max_examples=100)
@given(st.lists(texts, max_size=40), rules_drawn)
def test_deduplicate_keeps_what_comparing_all_keeps(rows, rules):
    kept = []
    for number, (row, repeat) in enumerate(deduplicate(rows, rules=rules)):
        assert row == rows[number]
        found = {what for what in brute_force([rows[k] for k in kept], row, rules) if what[0] in ("exact", "near")}
        if repeat is None:
            assert not found
            kept.append(number)
        else:
            assert (repeat.kind, kept.index(repeat.row)) in found


def test_ten_times_the_rows_cost_about_ten_times_the_comparisons(monkeypatch):
    made = []

    class Counted(NearTexts):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            made.append(self)

    monkeypatch.setattr(overlap, "NearTexts", Counted)

    def compared(count):
        rows = [f"{n} pens and {n * n % 1009} more, how many pens now?" for n in range(count)]
        assert sum(repeat is not None for _, repeat in deduplicate(rows)) < count / 100
        held = Held(HeldItem("b", row, row) for row in rows[::10])
        assert Counter(len(held.find(row)) > 0 for row in rows)[True] >= count // 10
        return sum(sets.compared for sets in made[-2:])

    assert compared(1500) <= 11 * max(compared(150), 1)


def test_a_fingerprint_takes_texts_that_are_not_valid_unicode():
    assert fingerprint("a \ud800 b").words == ["a", "b"]
