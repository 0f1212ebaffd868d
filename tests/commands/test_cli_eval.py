"""`weakdriven eval` with the embedded model: what a person types, reads and finds on disk."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from command_line import assert_user_error, weakdriven
from weakdriven.eval.generate.local import LocalEngine
from weakdriven.models.load import locate_model
from weakdriven.runs.files import read_json, read_jsonl
from weakdriven.runs.manifest import rewriting

MODEL = ["--model", "embedded:base", "style=plain", "precision=fp32"]


def evaluate(folder, *words, limit=6, tokens=16):
    command = ["eval", *MODEL, "--benchmarks", "arithmetic", "--limit", limit, "--output", folder]
    return weakdriven(*command, f"max_new_tokens={tokens}", *words)


@pytest.fixture(scope="session")
def evaluated(once):
    """A folder with results, and what the command printed."""
    return once("evaluated", evaluate)


def test_a_benchmark_is_run_scored_and_not_run_again(evaluated, tmp_path):
    folder, done = evaluated
    assert done.code == 0 and "arithmetic v2 (part)" in done.out and "[1/1] arithmetic\n" in done.out
    scores = read_json(folder / "arithmetic/scores.json")
    assert scores["items"] == 6 and f"{100 * scores['accuracy']:.1f}%" in done.out
    root = shutil.copytree(folder, tmp_path / "again")
    assert "already done" in evaluate(root).out
    before = read_json(root / "arithmetic/scores.json")
    assert_user_error(evaluate(root, tokens=8), "max_new_tokens 16 -> 8", "--replace", f"--output {root}-2")
    assert read_json(root / "arithmetic/scores.json") == before
    assert "max_new_tokens 16 -> 8" in evaluate(root, "--replace", tokens=8).out
    assert not (root / ".replaced").exists()
    done = weakdriven("report", root)
    assert_user_error(done, "not a run", "weakdriven eval regrade")


def test_sampling_gives_pass_at_k_and_the_batch_size_changes_nothing(tmp_path):
    words = ("samples=4", "temperature=1.5", "k=[1,2,4]")
    done = evaluate(tmp_path / "a", *words, limit=2)
    assert done.code == 0 and "pass@2" in done.out and "pass@4" in done.out
    evaluate(tmp_path / "b", *words, "batch_size=3", limit=2)
    texts = [
        [(row["id"], row["sample"], row["text"]) for row in read_jsonl(tmp_path / name / "arithmetic/samples.jsonl")]
        for name in "ab"
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 8
    assert len({text for _, _, text in texts[0]}) > 2


def test_completions_generated_before_the_engine_failed_are_kept(tmp_path, monkeypatch):
    complete = LocalEngine.complete

    def breaks(self, requests, sampling, on_done):
        complete(self, requests[:4], sampling, on_done)

    monkeypatch.setattr(LocalEngine, "complete", breaks)
    assert_user_error(evaluate(tmp_path / "a"), "2 of 6 requests got no completion", "run the same command again")
    asked = []
    monkeypatch.setattr(LocalEngine, "complete", lambda self, r, s, d: asked.append(len(r)) or complete(self, r, s, d))
    assert evaluate(tmp_path / "a").code == 0 and asked == [2]


def test_two_folders_are_compared_and_graded_again(evaluated, tmp_path):
    folder = shutil.copytree(evaluated[0], tmp_path / "b")
    file = folder / "arithmetic/samples.jsonl"
    rows = [{**row, "text": f"\\boxed{{{row['gold']}}}"} for row in read_jsonl(file)]
    with rewriting(file.parent, file.name):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = weakdriven("eval", "regrade", folder)
    assert done.code == 0 and "100.0%" in done.out
    done = weakdriven("eval", "compare", evaluated[0], folder)
    assert done.code == 0 and "McNemar" in done.out and "100.0%" in done.out


def test_a_model_of_a_run_is_evaluated_with_the_prompt_style_of_its_training(tmp_path):
    (tmp_path / "run" / "sft").mkdir(parents=True)
    shutil.copytree(locate_model("embedded:base"), tmp_path / "run" / "sft", dirs_exist_ok=True)
    recipe = "model: embedded:base\ndata: {path: embedded:arithmetic, %s}\n"
    (tmp_path / "run" / "recipe.yaml").write_text(recipe % "style: tag-free")
    words = ["eval", "--model", tmp_path / "run" / "sft", "--benchmarks", "arithmetic", "--limit", 1]
    assert weakdriven(*words, "--output", tmp_path / "a", "max_new_tokens=2").code == 0
    (sample,) = read_jsonl(tmp_path / "a" / "arithmetic" / "samples.jsonl")
    assert "Solve the problem step by step" in sample["prompt"] and "<think>" not in sample["prompt"]
    (tmp_path / "run" / "recipe.yaml").write_text(recipe % "system_prompt: Be kind.")
    assert weakdriven(*words, "--output", tmp_path / "b", "max_new_tokens=2").code == 0
    (sample,) = read_jsonl(tmp_path / "b" / "arithmetic" / "samples.jsonl")
    assert "system\nBe kind." in sample["prompt"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--benchmarks", "gsm9k"], "Did you mean gsm8k?"),
        (["--benchmarks", ","], "--benchmarks is empty"),
        (["k=[2]"], "k is 2, but each item has 1 samples"),
        (["k=a"], "k: Input should be a valid list"),
        (["samples=4"], "all 4 samples would be the same"),
        (["--limit", "0"], "limit: Input should be greater than or equal to 1"),
        (["--limit", "1", "limit=2"], "limit is given as an option and as limit=..."),
        (["temprature=1"], "Did you mean temperature?"),
        (["url=a", "vllm_python=b"], "give one of them"),
        (["max_prompt_tokens=3"], "longer than max_prompt_tokens=3"),
        (["max_new_tokens=100000"], "lower max_new_tokens"),
        (["--benchmarks", "mawps"], "needs --data-dir"),
        (["vllm_python=/no/python"], "/no/python cannot be run"),
        (["temperature=1", "batching=continuous"], "batching is continuous"),
        (["--temperature=0.6"], "There is no option --temperature; write the setting t"),
        (["--k", "1,2"], "write the setting k=VALUE."),
        (["--nonsense"], "There is no option --nonsense"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path, words, message):
    benchmark = [] if "--benchmarks" in words else ["--benchmarks", "arithmetic"]
    done = weakdriven("eval", *MODEL, *benchmark, *words, "--output", tmp_path / "a")
    assert_user_error(done, message)
    assert done.err.count("\n") <= 2 and not (tmp_path / "a").exists()


def test_a_run_directory_is_no_model_and_its_models_are_named(whole_run, tmp_path):
    run, _ = whole_run
    done = weakdriven("eval", "--model", run, "--benchmarks", "arithmetic", "--output", tmp_path / "a")
    assert_user_error(done, "is a run directory", str(run / "round-1/strong"))


def test_a_tokenizer_without_chat_template_gets_one(tmp_path, caplog):
    shutil.copytree(locate_model("embedded:base"), tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(config))
    words = ["eval", "--model", tmp_path / "m", "--benchmarks", "arithmetic", "--limit", 1, "--output", tmp_path / "a"]
    done = weakdriven(*words, "max_new_tokens=2")
    assert done.code == 0 and "has no chat template" in caplog.text
    (sample,) = read_jsonl(tmp_path / "a" / "arithmetic" / "samples.jsonl")
    assert sample["prompt"].startswith("User:\n") and sample["prompt"].endswith("\n\nAssistant:\n")
    assert_user_error(
        weakdriven(*words, "chat_template=gemma"), "gemma writes <start_of_turn> and <end_of_turn>, which"
    )
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    template = f"chat_template={tmp_path / 'chat.jinja'}"
    assert weakdriven(*words, template, "style=plain", "max_new_tokens=2", "--replace").code == 0


def test_a_folder_without_results_cannot_be_compared(tmp_path):
    assert_user_error(weakdriven("eval", "compare", tmp_path, tmp_path), "has no results of an evaluation")


class Models(BaseHTTPRequestHandler):
    """A server that lists one model and answers no prompt."""

    def do_GET(self):
        body = json.dumps({"data": [{"id": "other", "root": "/models/other", "max_model_len": 512}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_server_of_another_model_is_not_scored_as_this_one(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = evaluate(tmp_path / "a", f"url=http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert_user_error(done, "serves other (from /models/other), but --model is embedded:base", "served_name=other")
    assert not (tmp_path / "a").exists()
