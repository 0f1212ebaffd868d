"""The overlaps that a survey of real training and evaluation files listed, found again (`pytest -m slow`).

The files have exact and near copies of evaluation items taken out, so those must be 0. Counted are training rows and
evaluation items. Math is compared by its question, logic by context and question, code by its prompt.
"""

import os
from pathlib import Path

import pytest

from weakdriven.data.overlap.find import KINDS, RULES, Held, HeldItem, deduplicate
from weakdriven.data.questions import bare, code_question, logic_question, math_question
from weakdriven.data.rows.files import read_rows
from weakdriven.eval.benchmarks import load_items

DATA = os.environ.get("WEAKDRIVEN_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA, reason="WEAKDRIVEN_DATA does not name a folder with math/, logic/ and code/ files"),
]
NONE = (0, 0)


def rows_of(name):
    return list(read_rows(next(str(path) for path in Path(str(DATA)).glob(f"*/{name}.jsonl*"))))


def raw_text(row):
    return f"{row.get('context', '')} {row.get('question') or row['prompt']}"


def count(train, held, text):
    rows, items = {kind: set() for kind in KINDS}, {kind: set() for kind in KINDS}
    for number, row in enumerate(train):
        for found in held.find(text(row)):
            rows[found.kind].add(number)
            items[found.kind].add(found.id)
    return {kind: (len(rows[kind]), len(items[kind])) for kind in KINDS}


@pytest.mark.parametrize(
    ("name", "rows"),
    [("gsm8k_train", 7473), ("mawps_train", 1694), ("aqua_train", 2147), ("logiqa2_dev", 1508), ("mbpp_train", 263)],
)
def test_training_files_have_the_listed_rows(name, rows):
    assert len(rows_of(name)) == rows


@pytest.mark.parametrize(
    ("train", "evaluation", "domain", "template", "ngram"),
    [
        ("gsm8k_train", "gsm8k_test", "math", NONE, (4, 3)),
        ("mawps_train", "mawps_test", "math", (88, 42), (87, 39)),
        ("mawps_train", "svamp", "math", NONE, (10, 15)),
        ("aqua_train", "aqua_test", "math", (2, 1), (1, 1)),
        ("logiqa2_dev", "logiqa2_test", "logic", NONE, (159, 168)),
        ("mbpp_train", "humaneval", "code", NONE, NONE),
        ("mbpp_train", "bigcodebench", "code", NONE, NONE),
    ],
)
def test_listed_overlaps_are_found(train, evaluation, domain, template, ngram):
    items = (HeldItem(evaluation, row["id"], raw_text(row)) for row in rows_of(evaluation))
    found = count(rows_of(train), Held(items, RULES[domain]), raw_text)
    assert found == {"exact": NONE, "near": NONE, "ngram": ngram, "template": template}


def test_mbpp_shares_no_id_and_no_text_with_mbpp_plus_but_runs_of_ten_words():
    """The survey found 24 tasks in training and validation rows together; the file holds the training rows alone."""
    train, plus = rows_of("mbpp_train"), rows_of("mbpp_plus")
    assert not {row["id"] for row in train} & {row["id"] for row in plus}
    found = count(train, Held((HeldItem("mbpp_plus", r["id"], raw_text(r)) for r in plus), RULES["code"]), raw_text)
    assert found["exact"] == NONE
    assert found["ngram"] == (20, 21)


def asked(row):
    if "context" in row:
        return logic_question(row["context"], row["question"], row["options"])
    if "question" in row:
        return math_question(row["question"], row.get("options"))
    return code_question(row["prompt"], row["entry_point"], row["test"])


@pytest.mark.parametrize(
    ("train", "benchmark", "domain", "ngram"),
    [
        ("gsm8k_train", "gsm8k", "math", (4, 3)),
        ("mawps_train", "mawps", "math", (87, 39)),
        ("mawps_train", "svamp", "math", (10, 15)),
        ("aqua_train", "aqua", "math", (1, 1)),
        ("logiqa2_dev", "logiqa2", "logic", (159, 168)),
    ],
)
def test_questions_as_they_are_asked_overlap_alike_once_bare(train, benchmark, domain, ngram):
    items = [HeldItem(benchmark, item.id, bare(item.question)) for item in load_items(benchmark, DATA)]
    found = count(rows_of(train), Held(items, RULES[domain]), lambda row: bare(asked(row)))
    assert (found["exact"], found["near"], found["ngram"]) == (NONE, NONE, ngram)


@pytest.mark.parametrize(
    ("train", "domain", "exact", "near"),
    [("gsm8k_train", "math", 0, 1), ("mawps_train", "math", 0, 74), ("logiqa2_dev", "logic", 1, 4)],
)
def test_repeats_inside_a_file(train, domain, exact, near):
    """Ours, not the survey's: it dropped rows that repeat word for word, and these are left."""
    repeats = [repeat.kind for _, repeat in deduplicate(rows_of(train), raw_text, rules=RULES[domain]) if repeat]
    assert (repeats.count("exact"), repeats.count("near")) == (exact, near)
