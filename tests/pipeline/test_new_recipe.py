"""A recipe from a model, data and a test set: `weakdriven init`, and `weakdriven run` without a file."""

import io
import shlex
import sys

import pytest
import yaml

from command_line import assert_user_error, weakdriven
from helpers import write_rows
from weakdriven.commands.run import asked_recipe
from weakdriven.config.file import load_recipe
from weakdriven.data.demo import demo_rows
from weakdriven.errors import UserError
from weakdriven.pipeline.new_recipe import propose

MODEL = "embedded:base"
ROW = {"prompt": "hello", "completion": "world"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """A file of rows in the folder that the commands are started in."""
    monkeypatch.chdir(tmp_path)
    return write_rows(tmp_path / "support chats.jsonl", demo_rows("train")[:8])


def init(rows, *words):
    return weakdriven("init", "--model", MODEL, "--data", rows, "--test", "arithmetic", *words)


def test_a_commented_recipe_is_written_that_loads(rows, tmp_path):
    done = init(rows)
    text = (tmp_path / "recipe.yaml").read_text()
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    assert done.code == 0 and "8 rows" in done.out and "weakdriven run recipe.yaml" in done.out
    assert (recipe.name, recipe.model, recipe.data.path) == ("support-chats", MODEL, rows)
    assert recipe.eval.benchmarks == ["arithmetic"] and "sft" in recipe.baselines
    assert "# Peak learning rate.\n  learning_rate" in text and "Paper: lambda.\n  strong_weight: 0.5" in text
    before, keys = "", 0
    for line in text.splitlines():
        if line.strip() and not line.strip().startswith("#"):
            assert before.strip().startswith("#"), f"{line} is not explained"
            keys += 1
        before = line
    assert keys > 15 and max(map(len, text.splitlines())) < 120


def test_an_existing_file_is_never_overwritten_and_a_mistake_leaves_none(rows, tmp_path):
    (tmp_path / "recipe.yaml").write_text("mine")
    assert_user_error(init(rows), "recipe.yaml", "not overwritten")
    assert (tmp_path / "recipe.yaml").read_text() == "mine"
    assert init(rows, "--output", "other.yaml").code == 0
    wrong = weakdriven("init", "--model", MODEL, "--data", rows, "--test", "gsm9", "--output", "third.yaml")
    assert_user_error(wrong, "gsm9")
    assert not (tmp_path / "third.yaml").exists()
    assert_user_error(init(rows, "--output", "nowhere/recipe.yaml"), "cannot be written")


@pytest.mark.parametrize(
    "words, missing",
    [([], "--model, --data, --test"), (["--model", MODEL], "--data, --test"), (["--data", "x"], "--model, --test")],
)
def test_without_a_terminal_what_is_missing_is_an_error(monkeypatch, words, missing):
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\n"))
    assert_user_error(weakdriven("init", *words), missing)


def test_on_a_terminal_what_is_missing_is_asked_for(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal(f"{rows}\nnone\n"))
    assert weakdriven("init", "--model", MODEL).code == 0
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    assert (recipe.model, recipe.data.path, recipe.eval.benchmarks) == (MODEL, rows, [])
    assert recipe.data.validation_share is not None


@pytest.mark.parametrize("count, batch", [(3, 8), (450, 8), (800, 16), (3200, 64), (100_000, 512)])
def test_the_batch_size_leaves_some_steps_in_an_epoch(tmp_path, monkeypatch, count, batch):
    path = write_rows(tmp_path / "rows.jsonl", [ROW] * 3)
    monkeypatch.setattr("weakdriven.data.rows.sources.count_rows", lambda path, split: count)
    recipe = propose(MODEL, path, "arithmetic").recipe()
    assert recipe.sft.batch_size == recipe.joint.batch_size == batch
    assert recipe.sft.steps(count) >= 50 or batch == 8


@pytest.mark.parametrize("characters, length", [(10, 256), (700, 512), (10**5, 512)])
def test_the_length_fits_the_rows_and_the_models_positions(tmp_path, characters, length):
    path = write_rows(tmp_path / "rows.jsonl", [ROW, {"prompt": "a" * characters, "completion": "b"}])
    recipe = propose(MODEL, path, "arithmetic").recipe()
    assert recipe.data.max_length == length and recipe.eval.max_new_tokens is not None


def test_a_hub_model_is_not_downloaded_and_rows_of_code_are_of_that_domain(tmp_path):
    code = {"prompt": "def f(x):\n", "entry_point": "f", "test": "assert f(1)", "solution": "x" * 9000}
    new = propose("some/model", write_rows(tmp_path / "rows.jsonl", [code]), "humaneval_plus, mbpp_plus")
    recipe = new.recipe()
    assert (recipe.data.domain, recipe.data.max_length, recipe.eval.max_new_tokens) == ("code", 4096, None)
    assert recipe.eval.benchmarks == ["humaneval_plus", "mbpp_plus"] and recipe.precision == "bf16-mixed"


def test_a_run_without_a_file_has_the_recipe_that_init_writes(rows, tmp_path):
    init(rows)
    written = load_recipe(str(tmp_path / "recipe.yaml"), ["sft.epochs=2", "seed=7"])
    assert asked_recipe("sft.epochs=2", ["seed=7"], MODEL, rows, "arithmetic") == written
    with pytest.raises(UserError, match=r"recipe .demo. and --model"):
        asked_recipe("demo", [], MODEL, rows, "arithmetic")
    with pytest.raises(UserError, match=r"Missing: --data"):
        asked_recipe(None, None, MODEL, None, "arithmetic")
    with pytest.raises(UserError, match=r"--model, --data and --test"):
        asked_recipe(None, None, None, None, None)
    assert asked_recipe("demo", ["seed=7"], None, None, None) == load_recipe("demo", ["seed=7"])


def test_settings_decide_how_the_rows_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = [{"input": f"{number} + 0?", "target": str(number)} for number in range(9)]
    words = ("--model", MODEL, "--data", write_rows(tmp_path / "own.jsonl", own), "--test", "none")
    assert_user_error(weakdriven("init", *words), "found the fields input, target")
    given = ["data.fields={prompt: input, completion: target}", "data.validation_share=0.5", "sft.epochs=3"]
    done = weakdriven("init", *words, *given)
    assert done.code == 0 and "9 rows" in done.out
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    assert recipe == asked_recipe(given[0], given[1:], MODEL, words[3], "none")
    assert recipe.data.fields == {"prompt": "input", "completion": "target"}
    assert (recipe.data.validation_share, recipe.sft.epochs) == (0.5, 3)
    look = next(line for line in done.out.splitlines() if line.startswith("Next: weakdriven data show"))
    assert weakdriven(*shlex.split(look)[2:]).code == 0
    assert_user_error(
        weakdriven("init", *words, "data.feilds={}", "--output", "other.yaml"), "Did you mean data.fields?"
    )


def test_the_rows_of_several_sources_are_counted_together(tmp_path):
    paths = [write_rows(tmp_path / f"{name}.jsonl", [ROW] * 40 + [{**ROW, "completion": name}]) for name in "ab"]
    sources = "data=[" + ", ".join(f"{{path: {path}}}" for path in paths) + "]"
    new = propose(MODEL, paths[0], "none", [sources, f"data.validation={paths[0]}"])
    data = new.recipe().data
    assert [one.path for one in data.sources] == paths and data.validation_share is None
    assert "82 rows of 2 sources" in new.found


def test_a_test_set_of_ones_own_is_read_before_the_file_is_written(rows, tmp_path):
    items = [{"question": row["question"], "answer": row["answer"]} for row in demo_rows("test")[:3]]
    write_rows(tmp_path / "good.jsonl", items)
    write_rows(tmp_path / "bad.jsonl", [*items, {"question": "Why?"}])
    words = ("init", "--model", MODEL, "--data", rows, "--test")
    assert_user_error(weakdriven(*words, "good.jsonl,bad.jsonl"), "bad.jsonl, row 4", "answer")
    assert not (tmp_path / "recipe.yaml").exists()
    done = weakdriven(*words, "good.jsonl,arithmetic")
    assert done.code == 0 and "good.jsonl: 3 questions, grader math" in done.out
    first, second = load_recipe(str(tmp_path / "recipe.yaml")).eval.benchmarks
    assert (first.path, second) == ("good.jsonl", "arithmetic")


def test_a_run_without_a_file(rows, tmp_path):
    write_rows(tmp_path / "mine.jsonl", [{"question": "Which colour has the sky?", "answer": "blue"}])
    fast = ["method=sft", "baselines=[]", "eval.max_new_tokens=4"]
    done = weakdriven("run", "--model", MODEL, "--data", rows, "--test", "mine.jsonl", *fast)
    assert done.code == 0 and "mine" in done.out and "0/1" in done.out
    recipe = yaml.safe_load((tmp_path / "runs/support-chats/recipe.yaml").read_text())
    assert (recipe["method"], recipe["data"]["path"]) == ("sft", rows)


def test_a_model_that_is_not_there_is_one_sentence(rows):
    done = weakdriven("init", "--model", "./nowhere", "--data", rows, "--test", "arithmetic")
    assert_user_error(done, "no model folder ./nowhere")
