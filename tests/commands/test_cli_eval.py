"""`weakdriven eval` with the embedded model: what a person types, reads and finds on disk."""

import json
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from weakdriven.commands.app import main
from weakdriven.eval.generate.local import LocalEngine
from weakdriven.models.load import locate_model
from weakdriven.runs.files import read_json, read_jsonl
from weakdriven.runs.manifest import rewriting

MODEL = ["--model", "embedded:base", "style=plain", "precision=fp32"]


@pytest.fixture
def weakdriven(monkeypatch, capsys):
    """Runs a command line; returns exit code, standard output and standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["weakdriven", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def arithmetic(folder, *words, limit=6):
    return ["eval", *MODEL, "--benchmarks", "arithmetic", "--limit", limit, "--output", folder, *words]


def test_a_benchmark_is_run_scored_and_not_run_again(weakdriven, tmp_path):
    code, out, _ = weakdriven(*arithmetic(tmp_path / "a"))
    assert code == 0 and "arithmetic v2 (part)" in out and "not run yet" in out
    scores = read_json(tmp_path / "a" / "arithmetic" / "scores.json")
    assert scores["items"] == 6 and f"{100 * scores['accuracy']:.1f}%" in out
    code, out, _ = weakdriven(*arithmetic(tmp_path / "a"))
    assert code == 0 and "done before" in out
    code, out, _ = weakdriven(*arithmetic(tmp_path / "a", "max_new_tokens=40"))
    assert "max_new_tokens 96 -> 40" in out


def test_sampling_gives_pass_at_k_and_the_batch_size_changes_nothing(weakdriven, tmp_path):
    words = ("samples=4", "temperature=1.5", "k=[1,2,4]")
    code, out, _ = weakdriven(*arithmetic(tmp_path / "a", *words))
    assert code == 0 and "pass@2" in out and "pass@4" in out
    weakdriven(*arithmetic(tmp_path / "b", *words, "batch_size=5"))
    texts = [
        [
            (row["id"], row["sample"], row["text"])
            for row in read_jsonl(tmp_path / name / "arithmetic" / "samples.jsonl")
        ]
        for name in "ab"
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 24
    assert len({text for _, _, text in texts[0]}) > 6


def test_what_was_generated_before_the_engine_failed_is_kept(weakdriven, tmp_path, monkeypatch):
    complete = LocalEngine.complete

    def breaks(self, requests, sampling, on_done):
        complete(self, requests[:4], sampling, on_done)

    monkeypatch.setattr(LocalEngine, "complete", breaks)
    code, _, err = weakdriven(*arithmetic(tmp_path / "a"))
    assert code == 2 and "2 of 6 requests got no completion" in err and "run the same command again" in err
    asked = []
    monkeypatch.setattr(LocalEngine, "complete", lambda self, r, s, d: asked.append(len(r)) or complete(self, r, s, d))
    code, _, _ = weakdriven(*arithmetic(tmp_path / "a"))
    assert code == 0 and asked == [2]


def test_two_folders_are_compared_and_graded_again(weakdriven, tmp_path):
    weakdriven(*arithmetic(tmp_path / "a"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    file = tmp_path / "b" / "arithmetic" / "samples.jsonl"
    rows = [{**row, "text": f"\\boxed{{{row['gold']}}}"} for row in read_jsonl(file)]
    with rewriting(file.parent, file.name):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = weakdriven("eval", "regrade", tmp_path / "b")
    assert code == 0 and "100.0%" in out
    code, out, _ = weakdriven("eval", "compare", tmp_path / "a", tmp_path / "b")
    assert code == 0 and "McNemar" in out and "100.0%" in out


def test_a_model_of_a_run_is_asked_as_it_was_trained(weakdriven, tmp_path):
    (tmp_path / "run" / "sft").mkdir(parents=True)
    shutil.copytree(locate_model("embedded:base"), tmp_path / "run" / "sft", dirs_exist_ok=True)
    recipe = "model: embedded:base\ndata: {path: embedded:arithmetic, style: tag-free}\n"
    (tmp_path / "run" / "recipe.yaml").write_text(recipe)
    words = ["eval", "--model", tmp_path / "run" / "sft", "--benchmarks", "arithmetic", "--limit", 1]
    code, *_ = weakdriven(*words, "--output", tmp_path / "a", "max_new_tokens=2")
    assert code == 0
    (sample,) = read_jsonl(tmp_path / "a" / "arithmetic" / "samples.jsonl")
    assert "Solve the problem step by step" in sample["prompt"] and "<think>" not in sample["prompt"]


@pytest.mark.parametrize(
    "words, says",
    [
        (["--benchmarks", "gsm9k"], "There is no benchmark 'gsm9k'. Did you mean gsm8k?"),
        (["--benchmarks", ","], "--benchmarks is empty"),
        (["--benchmarks", "arithmetic", "k=[2]"], "k is 2, but each item has 1 samples"),
        (["--benchmarks", "arithmetic", "k=a"], 'k: Input should be a valid list, found "a"'),
        (["--benchmarks", "arithmetic", "samples=4"], "all 4 samples would be the same"),
        (["--benchmarks", "arithmetic", "--limit", "0"], "limit: Input should be greater than or equal to 1"),
        (["--benchmarks", "arithmetic", "--limit", "1", "limit=2"], "limit is given as an option and as limit=..."),
        (["--benchmarks", "arithmetic", "temprature=1"], "temprature is not a setting. Did you mean temperature?"),
        (["--benchmarks", "arithmetic", "url=a", "vllm_python=b"], "give one of them"),
        (["--benchmarks", "arithmetic", "max_prompt_tokens=3"], "longer than max_prompt_tokens=3"),
        (["--benchmarks", "arithmetic", "max_new_tokens=100000"], "positions; lower max_new_tokens"),
        (["--benchmarks", "mawps"], "Benchmark mawps needs eval.data_dir"),
        (["--benchmarks", "arithmetic", "vllm_python=/no/python"], "/no/python cannot be run"),
        (["--benchmarks", "arithmetic", "temperature=1", "batching=continuous"], "batching is continuous"),
        (["--benchmarks", "arithmetic", "--temperature=0.6"], "There is no option --temperature; write the setting t"),
        (["--benchmarks", "arithmetic", "--k", "1,2"], "write the setting k=VALUE."),
        (["--benchmarks", "arithmetic", "--unsafe"], "write the setting unsafe=VALUE."),
        (["--benchmarks", "arithmetic", "--nonsense"], "There is no option --nonsense"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(weakdriven, tmp_path, words, says):
    code, _, err = weakdriven("eval", *MODEL, *words, "--output", tmp_path / "a")
    assert code == 2 and says in err and err.count("\n") <= 2
    assert not (tmp_path / "a").exists()


def test_a_tokenizer_without_chat_template_asks_for_one(weakdriven, tmp_path):
    shutil.copytree(locate_model("embedded:base"), tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(config))
    words = ["eval", "--model", tmp_path / "m", "--benchmarks", "arithmetic", "--limit", 1, "--output", tmp_path / "a"]
    code, _, err = weakdriven(*words)
    assert code == 2 and "has no chat template; set chat_template" in err
    code, _, err = weakdriven(*words, "chat_template=gemma")
    assert code == 2 and "chat_template: gemma writes <start_of_turn> and <end_of_turn>, which" in err
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    code, *_ = weakdriven(*words, f"chat_template={tmp_path / 'chat.jinja'}", "style=plain", "max_new_tokens=2")
    assert code == 0


def test_a_folder_without_results_cannot_be_compared(weakdriven, tmp_path):
    code, _, err = weakdriven("eval", "compare", tmp_path, tmp_path)
    assert code == 2 and "holds no results of an evaluation" in err


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


def test_a_server_of_another_model_is_not_scored_as_this_one(weakdriven, tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code, _, err = weakdriven(*arithmetic(tmp_path / "a", f"url={url}"))
        server.shutdown()
    assert code == 2 and "serves other (from /models/other), and --model is embedded:base" in err
    assert "served_name=other" in err and not (tmp_path / "a").exists()


def test_the_table_shows_what_was_asked_for_and_a_report_says_where_to_look(weakdriven, tmp_path):
    weakdriven(*arithmetic(tmp_path / "a"))
    code, _, err = weakdriven("report", tmp_path / "a")
    assert code == 2 and "weakdriven eval regrade or compare" in err
