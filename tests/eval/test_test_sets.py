"""Test sets of one's own: which grader they get, what a model is asked, what is an error before anything is loaded."""

import json
from dataclasses import replace

import pytest

from helpers import embedded_tokenizer, write_rows
from weakdriven.config.benchmarks import TestSet
from weakdriven.config.evaluation import EvalSettings
from weakdriven.config.file import parse_settings
from weakdriven.data.prompts import Renderer
from weakdriven.errors import UserError
from weakdriven.eval import grade
from weakdriven.eval.generate import Completion
from weakdriven.eval.run import check_task, evaluate, prepare_task, refresh
from weakdriven.eval.scoring import compare
from weakdriven.eval.settings import RegradeSettings
from weakdriven.eval.standalone import regrade_folder
from weakdriven.eval.test_sets import count_items, load_benchmark, token_budget
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import read_json, read_jsonl

CHATS = [{"question": "Where is my parcel?", "answer": "Shipping"}, {"prompt": "It broke.", "answer": "Returns"}]
FUNCTION = {"prompt": "def f(x):\n", "entry_point": "f", "test": "assert f(1) == 2", "question": "Write f."}


def settings(*entries, **more):
    return parse_settings(EvalSettings, {"benchmarks": list(entries), **more}, "settings")


@pytest.fixture
def task_of(tmp_path):
    """Rows in a file become a task, as a recipe's settings say."""

    def made(rows, style="plain", system=None, limit=None, **entry):
        path = write_rows(tmp_path / "support.jsonl", rows)
        given = settings({"path": path, **entry}, limit=limit)
        renderer = Renderer(embedded_tokenizer(), "math", style, system)
        return prepare_task(given.benchmarks[0], renderer, given, seed=0)

    return made


@pytest.fixture
def graded(tmp_path):
    """Evaluate a task with an engine that replies with these texts; returns folder and scores."""

    def made(task, *replies, name="out"):
        class Scripted:
            def complete(self, requests, sampling, on_done):
                on_done({row: Completion(reply, 3, "stop") for row, reply in enumerate(replies)})

        work, out = tmp_path / f"{name}-work", tmp_path / name / task.benchmark
        work.mkdir()
        out.mkdir(parents=True)
        evaluate(task, Scripted, work=work, out=out, progress=Progress())
        return out, read_json(out / "scores.json")

    return made


@pytest.mark.parametrize(
    "rows, grader",
    [
        ([{"question": "q", "options": ["red", "blue"], "answer": "blue"}], "choice"),
        ([FUNCTION], "code"),
        ([{"question": "q", "tests": [{"input": "1", "output": "2"}]}], "code"),
        ([{"question": "a", "answer": 4}, {"question": "b", "answer": "$\\frac{1}{2}$"}], "math"),
        ([{"question": "a", "answer": "1,200"}, {"question": "b", "answer": ["75%", "3/4"]}], "math"),
        ([{"question": "a", "answer": "So 1 + 2.\n#### 3"}], "math"),
        ([{"question": "a", "answer": 4}, {"question": "b", "answer": "four"}], "exact"),
        (CHATS, "exact"),
    ],
)
def test_the_grader_is_found_from_the_rows(task_of, rows, grader):
    task = task_of(rows)
    assert (task.entry.grader, task.entry.found, task.entry.rows) == (grader, True, len(rows))
    check_task(task) if grader != "code" else None


@pytest.mark.parametrize(
    "kind, gold, right, wrong",
    [
        ("exact", "Order  shipped", ["order shipped\n", "<think>no</think> ORDER SHIPPED"], ["It is order shipped."]),
        ("exact", ["yes", "Of course"], ["of course", "<answer>Yes</answer>"], ["yes, of course"]),
        ("contains", "no", ["No, sorry.", "We say no"], ["note", "<think>no</think>yes"]),
        ("contains", "5 €", ["It costs 5 €."], ["It costs 15 €."]),
        ("choice", ["A", "C"], ["C", "The answer is A."], ["B"]),
    ],
)
def test_texts_are_graded_by_what_a_reply_ends_with(kind, gold, right, wrong):
    assert [grade(kind, text, gold).correct for text in (*right, *wrong)] == [True] * len(right) + [False] * len(wrong)


@pytest.mark.parametrize(
    "text, gold, correct",
    [
        ("42", "42", True),
        ("He has 12 of the 30 pens.", "30", True),
        ("Each pays $5, so both pay $10.", "10", True),
        ("So it is \\frac{1}{2}.", "0.5", True),
        ("It is $x = 3$, I think.", "3", True),
        ("3 of them, \\boxed{4} in all, not 5.", "4", True),
        ("<think>7</think>", "7", False),
        ("Seven", "7", False),
    ],
)
def test_a_test_set_of_numbers_needs_no_boxes(text, gold, correct):
    assert grade("math", text, gold, boxed=False).correct is correct
    assert grade("math", text, gold).correct is (correct and "boxed" in text)


def test_a_model_is_asked_the_question_as_training_rows_are(task_of):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    rows = [
        {"question": "Where is it?", "answer": "a"},
        {"messages": [*chat, {"role": "user", "content": "Refund?"}], "answer": "b"},
        {"messages": [{"role": "system", "content": "Be rude."}, {"role": "user", "content": "Why?"}], "answer": "c"},
    ]
    start, end = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    task = task_of(rows)
    assert task.prompts[0] == f"{start}Where is it?{end}"
    assert task.prompts[1] == f"{start}Hi{end}Hello.<|im_end|>\n{start}Refund?{end}"
    assert [item.question for item in task.items] == ["Where is it?", "Hi\nRefund?", "Why?"]
    with_system = task_of(rows, system="Be kind.").prompts
    assert ["Be kind." in prompt for prompt in with_system] == [True, True, False] and "Be rude." in with_system[2]
    assert "<think>" in task_of(rows, style="tagged").prompts[0]


def test_options_are_shown_with_letters_and_the_answer_may_be_a_letter_or_a_text(task_of):
    rows = [{"question": f"{answer}?", "options": ["red", "blue"], "answer": answer} for answer in ("B", "red", " b")]
    task = task_of(rows)
    assert [item.gold for item in task.items] == ["B", "A", "B"] and "(A) red\n(B) blue" in task.prompts[0]


def test_levels_limits_and_budgets_are_those_of_benchmarks(task_of):
    rows = [{"question": f"{n}?", "answer": n, "level": n % 2} for n in range(5)]
    task = task_of(rows, limit=3, max_new_tokens=7)
    assert [item.level for item in task.items] == ["0", "1", "0"] and task.sampling.max_new_tokens == 7
    entry = settings({"path": task.entry.file}).benchmarks[0]
    assert (count_items(entry, None), count_items(entry, 2), count_items("gsm8k", None)) == (5, 2, 1319)
    assert token_budget(entry, settings(entry)) == 1024 and token_budget(entry, settings(entry, max_new_tokens=5)) == 5
    assert token_budget("gsm8k", settings()) == 4096


def test_scores_say_how_a_test_set_was_graded(task_of, graded):
    task = task_of(CHATS)
    folder, scores = graded(task, " shipping", "It is Returns.")
    assert (scores["accuracy"], scores["items"], scores["whole"]) == (0.5, 2, True)
    assert scores["test_set"] == {"path": task.entry.file, "grader": "exact", "found": True, "rows": 2}
    first, second = read_jsonl(folder / "samples.jsonl")
    assert (first["correct"], first["gold"], second["answer"]) == (True, "Shipping", "It is Returns.")
    assert regrade_folder(folder.parent, RegradeSettings(), Progress())["support"] == scores


def test_another_grader_or_answer_grades_again_and_asks_the_model_nothing(task_of, graded):
    exact = task_of(CHATS)
    folder, _ = graded(exact, "shipping", "It is Returns.")
    contains = task_of(CHATS, grader="contains")
    assert (contains.key(), contains.prompts_key()) == (exact.key(), exact.prompts_key())
    refresh(folder, contains, Progress())
    scores = read_json(folder / "scores.json")
    assert scores["accuracy"] == 1.0 and scores["test_set"]["grader"] == "contains"
    refresh(folder, task_of([CHATS[0], CHATS[1] | {"answer": "Refunds"}]), Progress())
    assert read_json(folder / "scores.json")["accuracy"] == 0.5
    assert task_of([CHATS[0], CHATS[1] | {"prompt": "It fell."}]).prompts_key() != exact.prompts_key()
    assert task_of(CHATS, max_new_tokens=8).key() != exact.key()


def test_two_graders_are_not_compared(task_of, graded, tmp_path):
    for grader in ("exact", "contains"):
        graded(task_of(CHATS, grader=grader), "shipping", "returns", name=grader)
    with pytest.raises(UserError, match="graders differ"):
        compare(tmp_path / "exact", tmp_path / "contains")


GRADER = """
def judge(reply, row):
    return {"right": True, "half": 0.5, "some": 0.2, "wrong": False}[reply] if row["points"] else "none"
"""


def test_a_function_of_ones_own_grades_replies_with_the_row(task_of, graded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_judge.py").write_text(GRADER)
    rows = [{"question": f"{n}?", "points": 1} for n in range(4)]
    task = task_of(rows, grader="python:own_judge.judge")
    check_task(task)
    folder, scores = graded(task, "right", "half", "some", "wrong")
    assert scores["correct"] == 2 and scores["grading"]["source"]
    assert next(read_jsonl(folder / "samples.jsonl"))["reason"] == "score 1"
    with pytest.raises(UserError, match=r"own_judge.judge failed on row 1 \(KeyError: 'x'\)"):
        graded(task, "x", "x", "x", "x", name="bad")
    with pytest.raises(UserError, match="returned 'none' for row 1; expected True, False or a number"):
        graded(task_of([{"question": "?", "points": 0}], grader="python:own_judge.judge"), "right", name="worse")
    with pytest.raises(UserError, match="trust_grader=true"):  # a folder may come from somebody else
        regrade_folder(folder.parent, RegradeSettings(), Progress())
    assert regrade_folder(folder.parent, RegradeSettings(trust_grader=True), Progress())["support"] == scores
    (tmp_path / "own_judge.py").write_text(GRADER + "# other\n")
    assert task_of(rows, grader="python:own_judge.judge").golds_key() != task.golds_key()


@pytest.mark.parametrize(
    "name, words", [("no_such.f", "ModuleNotFoundError"), ("json.no", "no"), ("json.decoder", "is a")]
)
def test_a_function_that_cannot_be_imported_is_an_error_before_anything_is_asked(task_of, name, words):
    with pytest.raises(UserError, match=rf"python:{name} .*{words}"):
        task_of(CHATS, grader=f"python:{name}")


BAD_ROWS = [
    ([], None, "this test set has no rows"),
    ([*CHATS, {"question": "Why?"}], None, "row 3: the field 'answer' is missing or empty"),
    ([{"question": "Why?", "answer": ["a", " "]}], None, "row 1: the field 'answer' is missing or empty"),
    (
        [{"question": "Why?", "answer": {"text": "a"}}],
        None,
        "row 1: the answer is {'text': 'a'}; expected a string, a nu",
    ),
    ([{"question": " ", "answer": "a"}], None, "row 1: the prompt is empty"),
    (
        [{"text": "Why?", "answer": "a"}],
        None,
        "row 1: found the fields text, answer; expected question, prompt or mess",
    ),
    ([CHATS[0], CHATS[0] | {"answer": "x"}], None, "rows 1 and 2 ask the same question with different answers"),
    ([row | {"id": 7} for row in CHATS], None, "id '7' is in rows 1 and 2"),
    (
        [{"question": "q", "options": ["a", "b"], "answer": "c"}],
        None,
        "row 1: the answer is 'c'; expected a letter from A",
    ),
    ([{"question": "q", "options": ["a", "b"], "answer": "E"}], None, "expected a letter from A to B"),
    ([{"question": "q", "options": ["x", "x"], "answer": "x"}], None, "expected a letter from A to B"),
    (
        [{"question": "q", "options": [*"uvwxyz"], "answer": "u"}],
        None,
        "found 6 options; the grader choice needs 2 to 5",
    ),
    ([{"question": "q", "options": ["a", "b"], "answer": "a"}, CHATS[0]], None, "row 2 has no options, but row 1 has"),
    (CHATS, "choice", "row 1: found 0 options"),
    (CHATS, "code", "row 1: the field 'prompt' is missing"),
    (
        [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "\\frac{1}{"}],
        "math",
        "the grader math cannot read the gold answers of 1 items (first: support.jsonl, row 2, ",
    ),
]


@pytest.mark.parametrize("rows, grader, words", BAD_ROWS)
def test_a_bad_row_is_one_sentence_with_the_row(task_of, rows, grader, words, tmp_path):
    with pytest.raises(UserError) as error:
        check_task(task_of(rows, grader=grader))
    assert words in str(error.value).replace(f"{tmp_path}/", "") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "entries, words",
    [
        (["gsm9k"], "Did you mean gsm8k?"),
        (
            [{"path": "a.jsonl", "grader": "exakt"}],
            "no grader 'exakt'; expected math, choice, exact, contains, code or",
        ),
        ([{"path": "a.jsonl", "grader": "python:judge"}], "no grader 'python:judge'"),
        (
            [{"path": "a.jsonl", "graders": "exact"}],
            "benchmarks.0.graders is not a setting. Did you mean benchmarks.0.grader",
        ),
        ([{"path": "a.jsonl", "name": "../a"}], "benchmarks.0.name: "),
        ([{"path": "???.jsonl"}], "give a name"),
        (["GSM8K.jsonl"], "the test set GSM8K.jsonl and the benchmark GSM8K have the same name"),
        (["a/test.jsonl", "b/Test.csv"], "the test set b/Test.csv and a/test.jsonl have the same name, Test"),
        (["gsm8k", "gsm8k"], "contains a name twice: gsm8k, gsm8k"),
    ],
)
def test_a_test_set_that_cannot_be_one_is_an_error_of_the_settings(entries, words):
    with pytest.raises(UserError) as error:
        settings(*entries)
    assert words in str(error.value)


def test_names_come_from_files_and_survive_json():
    found = settings("a/support-2.v1.jsonl.gz", {"path": "b/test.csv", "name": "csv"}, "owner/chats", "gsm8k")
    assert [getattr(entry, "name", entry) for entry in found.benchmarks] == ["support-2-v1", "csv", "chats", "gsm8k"]
    assert parse_settings(EvalSettings, json.loads(found.model_dump_json()), "again") == found


def test_a_repeated_question_is_a_warning(task_of, caplog):
    task_of([*CHATS, CHATS[0]])
    assert "1 of 3 rows repeat a question" in caplog.text


def test_a_test_set_is_read_from_every_kind_of_file(tmp_path):
    rows = [{"question": "a?", "answer": "x"}, {"question": "b?", "answer": "y"}]
    (tmp_path / "t.json").write_text(json.dumps(rows))
    name, benchmark, items = load_benchmark(TestSet(path=str(tmp_path / "t.json")), None)
    assert (name, benchmark.grader, [item.gold for item in items]) == ("t", "exact", ["x", "y"])
    assert replace(items[0], id="b").as_row() == {
        "id": "b",
        "question": "a?",
        "gold": "x",
        "options": None,
        "level": None,
    }
