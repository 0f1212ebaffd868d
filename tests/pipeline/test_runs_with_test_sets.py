"""A test set of one's own in a run: its scores, pages and card, and what is an error before a model is loaded."""

import json

import pytest

from command_line import WHOLE, assert_user_error, weakdriven
from helpers import write_rows
from weakdriven.config.file import load_recipe
from weakdriven.runs.files import read_json

ROWS = [
    {"question": "Where is my parcel?", "answer": ["Shipping", "Delivery"]},
    {"messages": [{"role": "user", "content": "The lamp is broken."}], "answer": "Returns"},
]
SHORT = ["method=sft", "baselines=[]", "sft.epochs=1", "data.limit=8"]


def run(root, test_set, *overrides):
    return weakdriven("run", "demo", *WHOLE, *SHORT, *overrides, f"eval.benchmarks={test_set}", "--output", root)


@pytest.fixture(scope="module")
def own_run(once):
    """A finished run that is evaluated on the embedded benchmark and on two files, and what the command printed."""

    def build(root):
        root.mkdir()
        support = write_rows(root / "support.jsonl", ROWS)
        numbers = write_rows(root / "sums.jsonl", [{"question": "What is 50 + 51?", "answer": 101}])
        return run(root / "run", f"[arithmetic, {support}, {{path: {numbers}, name: numbers, max_new_tokens: 3}}]")

    folder, done = once("own-test-sets", build)
    return folder / "run", done


def test_a_run_scores_every_model_on_the_test_sets(own_run):
    root, done = own_run
    assert done.code == 0 and "grader exact, chosen from the answers" in done.out and "grader math, chosen" in done.out
    for model in ("base", "baseline-sft"):
        support, numbers = (read_json(root / f"eval/{model}/{name}/scores.json") for name in ("support", "numbers"))
        assert (support["items"], support["whole"], support["test_set"]["grader"]) == (2, True, "exact")
        assert (numbers["items"], numbers["protocol"]["max_new_tokens"]) == (1, 3)
    recipe = load_recipe(str(root / "recipe.yaml"))  # what a run saves is what it was given
    assert [getattr(entry, "name", entry) for entry in recipe.eval.benchmarks] == ["arithmetic", "support", "numbers"]


def test_pages_card_comparison_and_checks_know_the_test_sets(own_run):
    root, _ = own_run
    page = (root / "report.html").read_text(encoding="utf-8")
    card = (root / "baselines/sft/README.md").read_text(encoding="utf-8")
    assert "Where is my parcel?" in page and "| support |" in card and "type: numbers" in card
    assert weakdriven("verify", root).code == 0
    done = weakdriven("eval", "compare", root / "eval/base", root / "eval/baseline-sft")
    assert done.code == 0 and "support v1" in done.out and "numbers v1" in done.out
    assert weakdriven("eval", "regrade", root / "eval/base").code == 0


def test_a_plan_counts_the_rows_of_a_test_set(own_run):
    root, _ = own_run
    done = weakdriven("plan", root / "recipe.yaml", "--json")
    names = [stage["stage"] for stage in json.loads(done.out)["stages"]]
    assert "eval/base/support" in names and "eval/baseline-sft/numbers" in names


@pytest.mark.parametrize(
    "row, entry, words",
    [
        ({"question": "What is 3 + 4?"}, "{path: own.jsonl}", "row 1: the field 'answer' is missing"),
        ({"question": "?", "answer": "x"}, "{path: own.jsonl, grader: 'python:nowhere.f'}", "cannot be imported"),
        ({"question": "?", "answer": "x"}, "{path: own.jsonl, grader: nearly}", "no grader 'nearly'"),
        ({"question": "?", "answer": "x"}, "{path: own.jsonl, name: gsm8k}", "have the same name, gsm8k"),
        ({"question": "?", "answer": "x"}, "{path: other.jsonl}", "there is no such data file"),
        (
            {"question": "What is {}?", "answer": "x"},
            "{path: own.jsonl}",
            "1 of 3 training rows contain a question of a bench",
        ),
    ],
)
def test_a_mistake_in_a_test_set_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, row, entry, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("weakdriven.stages.model_loader.Loader.load", lambda *_, **__: pytest.fail("loaded a model"))
    questions = [f"What is the capital of the country number {number}?" for number in range(3)]
    write_rows(tmp_path / "rows.jsonl", [{"question": text, "solution": "No idea."} for text in questions])
    if row["question"] == "What is {}?":
        row = row | {"question": questions[2].upper()}
    write_rows(tmp_path / "own.jsonl", [row])
    assert_user_error(run(tmp_path / "run", f"[{entry}]", "data.path=rows.jsonl"), words)
    assert not (tmp_path / "run").exists()
