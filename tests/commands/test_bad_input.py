"""What a user can get wrong: one clear sentence, exit code 2, no traceback, nothing half-written."""

import json
import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_line import WHOLE, assert_user_error, weakdriven
from small_runs import Recorder
from weakdriven.config.file import load_recipe
from weakdriven.models.load import load_model, load_tokenizer, locate_model
from weakdriven.pipeline.run import RunOptions, carry_out, run_recipe
from weakdriven.runs.files import read_json, read_jsonl
from weakdriven.runs.take_over import Siblings
from weakdriven.stages.data import data_stage

ROW = {"id": "a", "question": "What is 1 + 1?", "solution": "1 + 1 = 2. The answer is \\boxed{2}.", "answer": "2"}
OTHER_LAYOUT = {"id": "b", "messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]}
EMPTY = {"id": "b", "question": "What is 2 + 2?", "solution": " "}
HALF = "half of a pair: \ud83d"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}<|im_end|>"
TORCHAO = "weakdriven.training.optimizer.find_spec"


@pytest.fixture
def error_of(tmp_path, monkeypatch):
    """Run the demo recipe with overrides; returns the sentence after checking that the command left nothing behind."""
    monkeypatch.chdir(tmp_path)

    def run(*overrides: str, output: Path | None = None) -> str:
        root = output or tmp_path / "run"
        before = contents(root)
        done = weakdriven("run", "demo", *WHOLE, *overrides, "--output", root)
        assert_user_error(done)
        assert contents(root) == before, "something was left behind"
        return done.err

    return run


def contents(root: Path) -> dict[Path, bytes] | None:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} if root.is_dir() else None


def write_rows(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.path={path}"


def examples(root: Path, *overrides: str) -> list[dict]:
    """Those that the data stage of a run writes."""
    carry_out(load_recipe("demo", [*overrides]), root, Recorder(), data_stage)
    return list(read_jsonl(root / "data/examples.jsonl"))


@pytest.mark.parametrize(
    "override, words",
    [
        ("model=./nowhere", "There is no model folder ./nowhere"),
        ("model=nobody/nothing", "neither a local folder nor an accessible model"),
        ("data.path=missing.jsonl", "there is no such data file"),
        ("selection.dificulty=1", "Did you mean selection.difficulty?"),
        ("seed=4294967296", "seed: "),
        ("report_to=[nonsense]", "nonsense is not a tracker"),
        ("eval.benchmarks=[mawps]", "eval.data_dir"),
        ("eval.benchmarks=[gsm8k]", "openai/gsm8k cannot be read from the Hub"),
        ("eval.engine=vllm", "needs eval.vllm_python"),
        ("eval.k=[8]", "k is 8, but each item has 1 samples"),
        ("eval.max_prompt_tokens=2", "longer than max_prompt_tokens=2"),
    ],
)
def test_a_setting_that_cannot_be_used(error_of, override, words):
    assert words in error_of(override)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    "override, words",
    [
        ("sft.activation_offloading=true", "activation_offloading moves activations from the GPU"),
        ("joint.activation_offloading=true", "activation_offloading moves activations from the GPU"),
        ("fast_layers=liger", "there is no CUDA"),
    ],
)
def test_a_setting_that_needs_a_gpu(error_of, override, words):
    assert words in error_of(override)


def test_an_optimizer_without_its_package_or_compiler(error_of, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(TORCHAO, lambda package: None)
        assert "joint.optimizer: adamw_8bit needs torchao" in error_of("joint.optimizer=adamw_8bit")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "there is no compiler no-such" in error_of("sft.optimizer=adamw_8bit")


@pytest.mark.parametrize(
    "rows, words",
    [
        ([], "there are no rows to train on"),
        ([ROW, EMPTY], "data.empty_completions=drop"),
        ([ROW, OTHER_LAYOUT], "row 2 has another layout: found messages"),
        ([ROW, ROW], "id 'a' is in rows 1 and 2"),
        ([ROW, ROW | {"id": "b", "solution": HALF}], "half a surrogate pair"),
    ],
)
def test_rows_that_cannot_be_trained_on(error_of, tmp_path, rows, words):
    assert words in error_of(write_rows(tmp_path / "rows.jsonl", *rows))


def test_only_empty_completions(error_of, tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", EMPTY)
    assert "1 completions are empty" in error_of(path, "data.empty_completions=drop")


def test_a_prompt_longer_than_max_length(error_of, tmp_path):
    long = write_rows(tmp_path / "rows.jsonl", ROW | {"question": "What is 1 + 1? " * 60})
    text = error_of(long, "data.max_length=64")
    assert "1 rows have prompts of data.max_length=64 tokens or more (first: id 'a')" in text
    assert "data.long_prompts=drop" in text


def test_a_data_file_that_is_not_what_its_name_says(error_of, tmp_path):
    (tmp_path / "rows.jsonl.gz").write_text(json.dumps(ROW))
    assert "Not a gzipped file" in error_of("data.path=rows.jsonl.gz")
    (tmp_path / "rows.jsonl").mkdir()
    assert "rows.jsonl has no data file" in error_of("data.path=rows.jsonl")


def test_a_benchmark_item_with_half_a_surrogate_pair(error_of, tmp_path):
    items = [ROW | {"id": str(i), "question": f"What is {i} + 1? \ud83d"} for i in range(30)]
    write_rows(tmp_path / "aime2025.jsonl", *items)
    text = error_of("eval.benchmarks=[aime2025]", f"eval.data_dir={tmp_path}", "eval.limit=1")
    assert "row 1" in text and "half a surrogate pair" in text


def test_empty_completions_half_characters_and_dates_that_are_no_mistake(tmp_path, monkeypatch):
    kept = ROW | dict.fromkeys(("id", "answer", "note"), HALF)
    path = write_rows(tmp_path / "rows.jsonl", kept, EMPTY, ROW | {"id": "c"})
    first, last = examples(tmp_path / "run", path, "data.empty_completions=drop")
    assert first["id"] == "half of a pair: \\ud83d" and first["gold"] == first["meta"]["note"] == HALF
    assert last["id"] == "c"
    counters = read_json(tmp_path / "run/data/manifest.json")["counters"]
    assert (counters["examples"], counters["dropped_empty_completions"], counters["rows_read"]) == (2, 1, 3)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    pq.write_table(pa.Table.from_pylist([ROW | {"when": datetime(2026, 11, 1)}]), tmp_path / "rows.parquet")
    (dated,) = examples(tmp_path / "dated", f"data.path={tmp_path / 'rows.parquet'}")
    assert dated["meta"]["when"] == "2026-11-01 00:00:00"


def test_a_tokenizer_that_does_not_fit(error_of, tmp_path):
    base, tokenizer = locate_model("embedded:base"), load_tokenizer(locate_model("embedded:base"))
    tokenizer.add_tokens(["<extra>"])
    load_model(base, precision="fp32").save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    assert "Cannot mix logits: the tokenizers of" in error_of(f"sft.model={tmp_path / 'other'}")


@pytest.mark.parametrize(
    "template, style, words",
    [
        (b"{% if %}", "plain", "cannot be used with style 'plain': Expected an expression"),
        (b"\xff\xfe", "plain", "neither a readable file nor one of the shipped templates (chatml,"),
        (NO_SYSTEM.encode(), "tagged", "cannot be used with style 'tagged': No system role"),
    ],
)
def test_a_chat_template_that_cannot_be_used(error_of, tmp_path, template, style, words):
    (tmp_path / "chat.jinja").write_bytes(template)
    assert words in error_of(f"chat_template={tmp_path / 'chat.jinja'}", f"data.style={style}")


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("run/run.json", '{"recipe": "other"}', "contains a run of recipe 'other', not 'demo'"),
        ("run/thesis.tex", "precious", "contains files, but no run of weakdriven"),
        ("run", "x", "is a file or inside a file"),
    ],
)
def test_an_output_directory_that_is_not_ours(error_of, tmp_path, name, text, words):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert words in error_of()
    assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize("mistake", ["model=./nowhere", "data.path=missing.jsonl"])
def test_a_mistake_leaves_a_finished_run_as_it_was(error_of, whole_run, tmp_path, mistake):
    error_of(mistake, output=shutil.copytree(whole_run[0], tmp_path / "finished"))


def test_generated_code_without_a_sandbox_raises_an_error_before_m1_is_trained(error_of, monkeypatch):
    monkeypatch.setattr("weakdriven.eval.run.isolation", lambda: "none")
    assert "Generated code needs a sandbox" in error_of("data.domain=code", "method=dpo", "baselines=[]")


def test_debug_shows_the_traceback(monkeypatch, tmp_path):
    with pytest.raises(Exception, match="There is no model folder"):
        weakdriven("run", "demo", "model=./nowhere", "--output", tmp_path / "run", "--debug")


def test_a_selection_of_one_example_is_no_mistake(whole_run, tmp_path):
    few = [*WHOLE, "selection.multiplier=0.01", "baselines=[]", "eval.benchmarks=[]"]
    run_recipe(load_recipe("demo", few), tmp_path / "run", Recorder(), RunOptions(Siblings([whole_run[0]])))
    assert sum(pq.read_table(tmp_path / "run/round-1/active/active.parquet")["draws"].to_pylist()) == 1
    counters = read_json(tmp_path / "run/round-1/strong/manifest.json")["counters"]
    assert counters["steps"] == counters["rows"] == 1


# What needs a process of its own


def in_process(*words: str, before: str = "", inside: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """The command line in a new process, after a shell command and within another."""
    script = f'{before or "true"} && exec "$@"'
    command = [*inside, "sh", "-c", script, "sh", sys.executable, "-m", "weakdriven", "run", "demo", *WHOLE, *words]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)


NAMESPACES = subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
needs_mounts = pytest.mark.skipif(not NAMESPACES, reason="this kernel lets no one mount a small disk for the test")


@pytest.mark.slow
@needs_mounts
@pytest.mark.parametrize(
    "options, size, words",
    [
        ([], "size=14m", ["The run will need about", "MiB free"]),
        (["--force"], "size=14m", ["disk is full", "resumes from"]),
        ([], "ro", ["Read-only"]),
    ],
)
def test_a_disk_that_is_too_small_or_cannot_be_written(tmp_path, options, size, words):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o {size} tmpfs {disk}"
    done = in_process("--output", f"{disk}/run", *options, before=mount, inside=("unshare", "-rm"))
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root reads every file without setpriv")
def test_a_data_file_without_the_right_to_read_it(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", ROW)
    (tmp_path / "rows.jsonl").chmod(0)
    dropped = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    done = in_process(data, "--output", str(tmp_path / "run"), inside=dropped)
    assert done.returncode == 2 and "rows.jsonl" in done.stderr and "cannot be read" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()
