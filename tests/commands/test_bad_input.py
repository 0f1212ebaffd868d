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

from conftest import SMALL, run_small
from weakdriven.commands.app import main
from weakdriven.models.load import load_model, load_tokenizer, locate_model
from weakdriven.runs.files import read_jsonl

ROW = {"id": "a", "question": "What is 1 + 1?", "solution": "1 + 1 = 2. The answer is \\boxed{2}.", "answer": "2"}


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Run the command line with overrides on the demo recipe; returns its sentence after checking the manners."""

    def run(*overrides: str, output: Path | None = None) -> str:
        root = output or tmp_path / "run"
        before = sorted(root.rglob("*")) if root.is_dir() else None
        monkeypatch.setattr(sys, "argv", ["weakdriven", "run", "demo", *SMALL, *overrides, "--output", str(root)])
        with pytest.raises(SystemExit) as stop:
            main()
        errors = capsys.readouterr().err
        assert stop.value.code == 2
        assert "Traceback" not in errors and errors.startswith("Error: ")
        assert (sorted(root.rglob("*")) if root.is_dir() else None) == before, "something was left behind"
        return errors

    return run


SHORT = ["method=sft", "baselines=[]", "eval.benchmarks=[]", "data.limit=4"]
"""A run of a second or two."""


def write_rows(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.path={path}"


def test_a_missing_model_folder(refused):
    assert "There is no model folder ./nowhere" in refused("model=./nowhere")


def test_a_model_that_no_hub_gives(refused):
    assert "neither a folder here nor a model that the Hub gives" in refused("model=nobody/nothing")


def test_a_row_without_a_completion(refused, tmp_path):
    bad = {key: value for key, value in ROW.items() if key != "solution"} | {"id": "b"}
    assert "row 2: there is no completion" in refused(write_rows(tmp_path / "rows.jsonl", ROW, bad))


def test_rows_without_a_completion_can_be_left_out_and_are_counted(refused, tmp_path):
    bad = {"id": "b", "question": "What is 2 + 2?"}
    assert "data.empty_completions=drop" in refused(write_rows(tmp_path / "rows.jsonl", ROW, bad))
    path = write_rows(tmp_path / "rows.jsonl", ROW, bad, ROW | {"id": "c"}, ROW | {"id": "d", "solution": " "})
    run_small(tmp_path / "run", *SHORT, path, "data.empty_completions=drop")
    counters = json.loads((tmp_path / "run/data/manifest.json").read_text())["counters"]
    assert (counters["examples"], counters["dropped_empty_completions"], counters["rows_read"]) == (2, 2, 4)
    assert [row["id"] for row in read_jsonl(tmp_path / "run/data/examples.jsonl")] == ["a", "c"]


def test_rows_of_two_layouts(refused, tmp_path):
    other = {"id": "b", "messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]}
    text = refused(write_rows(tmp_path / "rows.jsonl", ROW, other))
    assert "row 2 is the first in another layout: found messages" in text


def test_nothing_but_empty_completions(refused, tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", ROW | {"solution": ""})
    assert "1 completions are empty" in refused(path, "data.empty_completions=drop")


def test_an_empty_dataset(refused, tmp_path):
    assert "there is no row to train on" in refused(write_rows(tmp_path / "rows.jsonl"))


def test_a_missing_data_file(refused):
    assert "there is no such data file" in refused("data.path=missing.jsonl")


def test_duplicate_ids(refused, tmp_path):
    assert "id 'a' is in rows 1 and 2" in refused(write_rows(tmp_path / "rows.jsonl", ROW, ROW))


def test_a_data_file_that_is_a_folder(refused, tmp_path):
    (tmp_path / "rows.jsonl").mkdir()
    assert "rows.jsonl is a folder; name a file in it" in refused(f"data.path={tmp_path / 'rows.jsonl'}")


def test_a_data_file_that_is_not_what_its_name_says(refused, tmp_path):
    (tmp_path / "rows.jsonl.gz").write_text(json.dumps(ROW))
    assert "rows.jsonl.gz, line 1 cannot be read: Not a gzipped file" in refused(f"data.path={tmp_path}/rows.jsonl.gz")


@pytest.mark.skipif(
    os.geteuid() == 0 and not shutil.which("setpriv"), reason="root reads every file unless setpriv takes that from it"
)
def test_a_data_file_without_the_right_to_read_it(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", ROW)
    (tmp_path / "rows.jsonl").chmod(0)
    command = [sys.executable, "-c", "from weakdriven.commands.app import main; main()", "run", "demo", data]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    done = subprocess.run([*command, "--output", str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "rows.jsonl" in done.stderr and "cannot be read" in done.stderr, done.stderr
    assert not (tmp_path / "run").exists(), "something was left behind"


@pytest.mark.parametrize("field", ["question", "solution"])
def test_a_row_with_half_a_surrogate_pair(refused, tmp_path, field):
    bad = ROW | {"id": "b"} | {field: "half of a pair: \ud83d"}
    text = refused(write_rows(tmp_path / "rows.jsonl", ROW, bad))
    assert "row 2" in text and "half a surrogate pair, which is not valid Unicode" in text


def test_half_a_surrogate_pair_outside_the_text_to_learn_is_no_mistake(tmp_path):
    row = ROW | {field: "half of a pair: \ud83d" for field in ("id", "answer", "note")}
    run_small(tmp_path / "run", *SHORT, write_rows(tmp_path / "rows.jsonl", row))
    [kept] = read_jsonl(tmp_path / "run/data/examples.jsonl")
    assert kept["id"] == "half of a pair: \\ud83d" and kept["gold"] == kept["meta"]["note"] == row["note"]


def test_a_benchmark_item_with_half_a_surrogate_pair(refused, tmp_path):
    items = [ROW | {"id": str(i), "question": f"What is {i} + 1? \ud83d"} for i in range(30)]
    write_rows(tmp_path / "aime2025.jsonl", *items)
    text = refused(*SHORT, "eval.benchmarks=[aime2025]", f"eval.data_dir={tmp_path}", "eval.limit=1")
    assert "row 1" in text and "half a surrogate pair, which is not valid Unicode" in text


def test_a_parquet_file_with_a_date_column_is_no_mistake(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [ROW | {"id": str(i), "when": datetime(2026, 11, i + 1)} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    run_small(tmp_path / "run", *SHORT, f"data.path={tmp_path / 'rows.parquet'}")
    dates = [row["meta"]["when"] for row in read_jsonl(tmp_path / "run/data/examples.jsonl")]
    assert dates == [f"2026-11-0{i + 1} 00:00:00" for i in range(4)]


def test_a_prompt_longer_than_max_length(refused, tmp_path):
    long = ROW | {"question": "What is 1 + 1? " * 60}
    text = refused(write_rows(tmp_path / "rows.jsonl", long), "data.max_length=64")
    assert "1 rows have prompts of data.max_length=64 tokens or more (first: id 'a')" in text
    assert "data.long_prompts=drop" in text


def test_tokenizers_that_differ_between_weak_and_strong(refused, tmp_path):
    base, other = locate_model("embedded:base"), tmp_path / "other"
    model, tokenizer = load_model(base, precision="fp32"), load_tokenizer(base)
    tokenizer.add_tokens(["<extra>"])
    model.save_pretrained(other)
    tokenizer.save_pretrained(other)
    assert "Cannot mix logits: the tokenizers of" in refused(f"sft.model={other}")


def test_a_tokenizer_without_a_chat_template(refused, tmp_path):
    base, bare = locate_model("embedded:base"), tmp_path / "bare"
    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = None
    load_model(base, precision="fp32").save_pretrained(bare)
    tokenizer.save_pretrained(bare)
    text = refused(f"model={bare}")
    assert "has no chat template; set chat_template to a template file" in text


def test_a_chat_template_with_a_syntax_error(refused, tmp_path):
    (tmp_path / "chat.jinja").write_text("{% if %}")
    text = refused(f"chat_template={tmp_path / 'chat.jinja'}")
    assert "The chat template cannot be used with style 'plain': Expected an expression" in text


def test_a_chat_template_that_is_not_utf_8(refused, tmp_path):
    (tmp_path / "chat.jinja").write_bytes(b"\xff\xfe")
    text = refused(f"chat_template={tmp_path / 'chat.jinja'}")
    assert "chat.jinja is neither a readable file nor one of the shipped templates (gemma)" in text


def test_a_chat_template_that_refuses_the_system_prompt_of_the_style(refused, tmp_path):
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    rest = "{% for message in messages %}{{ message.content }}<|im_end|>{% endfor %}"
    (tmp_path / "chat.jinja").write_text(refuses + rest)
    text = refused(f"chat_template={tmp_path / 'chat.jinja'}", "data.style=tagged")
    assert "The chat template cannot be used with style 'tagged': No system role" in text


def test_an_output_directory_of_another_recipe(refused, tmp_path):
    root = tmp_path / "taken"
    root.mkdir()
    (root / "run.json").write_text('{"recipe": "other"}')
    assert "holds a run of recipe 'other', not 'demo'" in refused(output=root)


def test_an_output_directory_with_foreign_files(refused, tmp_path):
    root = tmp_path / "home"
    root.mkdir()
    (root / "thesis.tex").write_text("precious")
    assert "holds files but no run of weakdriven" in refused(output=root)


def test_an_output_that_is_a_file(refused, tmp_path):
    (tmp_path / "file").write_text("x")
    assert "is or lies under a file" in refused(output=tmp_path / "file")


def test_a_misspelt_setting(refused):
    assert "Did you mean selection.difficulty?" in refused("selection.dificulty=1")


def test_a_tracker_that_is_not_installed(refused):
    assert "report_to: nonsense is not a tracker installed here" in refused("report_to=[nonsense]")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("mistake", ["sft.activation_offloading=true", "joint.activation_offloading=true"])
def test_offloading_of_activations_without_a_gpu(refused, mistake):
    assert "activation_offloading moves activations from the GPU to the CPU's memory, and there is" in refused(mistake)


@pytest.mark.usefixtures("no_gpu")
def test_fast_layers_without_a_gpu(refused):
    assert "fast_layers: liger cannot be used, because there is no CUDA" in refused("fast_layers=liger")


def test_an_optimizer_without_its_package(refused, monkeypatch):
    monkeypatch.setattr("weakdriven.training.optimizer.find_spec", lambda package: None)
    text = refused("joint.optimizer=adamw_8bit")
    assert "joint.optimizer: adamw_8bit needs torchao, which is not installed; pip install 'weakdriven[cuda]'" in text


def test_an_optimizer_without_a_compiler(refused, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "adamw_8bit compiles its step, and there is no compiler no-such" in refused("sft.optimizer=adamw_8bit")


def test_a_seed_that_numpy_does_not_take(refused):
    assert "seed: Input should be less than 4294967296, found 4294967296" in refused("seed=4294967296")


def test_so_few_draws_that_one_row_is_left_is_no_mistake(tmp_path):
    run_small(tmp_path, "selection.multiplier=0.01", "data.limit=32", "baselines=[]", "eval.benchmarks=[]")
    assert sum(pq.read_table(tmp_path / "round-1/active/active.parquet")["draws"].to_pylist()) == 1
    counters = json.loads((tmp_path / "round-1/strong/manifest.json").read_text())["counters"]
    assert counters["steps"] == counters["rows"] == 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("finished") / "run"
    run_small(root, *SHORT)
    return root


@pytest.mark.parametrize("mistake", ["model=./nowhere", "data.path=missing.jsonl"])
def test_a_refused_recipe_leaves_a_finished_run_as_it_was(refused, finished, tmp_path, mistake):
    root = tmp_path / "run"
    shutil.copytree(finished, root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    refused(*SHORT, mistake, output=root)
    assert [path.name for path in before if path.read_bytes() != before[path]] == []


def test_a_benchmark_without_its_data(refused):
    assert "Benchmark mawps needs eval.data_dir" in refused("eval.benchmarks=[mawps]")
    assert "openai/gsm8k cannot be read from the Hub" in refused("eval.benchmarks=[gsm8k]")


def test_an_evaluation_that_cannot_be_served_or_reported(refused):
    assert "needs eval.vllm_python" in refused("eval.engine=vllm")
    assert "k is 8, but each item has 1 samples" in refused("eval.k=[8]")
    assert "longer than max_prompt_tokens=2" in refused("eval.max_prompt_tokens=2")


def run_where(root: Path, mount: str, *overrides: str) -> subprocess.CompletedProcess:
    """The command line in a mount namespace of its own, where `mount` has prepared the output directory."""
    words = " ".join([*SMALL, *overrides])
    weakdriven = f"{sys.executable} -c 'from weakdriven.commands.app import main; main()' run demo {words} --quiet"
    script = f"{mount} && {weakdriven} --output {root}/run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(["unshare", "-rm", "sh", "-c", script], env=environment, capture_output=True, text=True)


NAMESPACES = subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
needs_mounts = pytest.mark.skipif(not NAMESPACES, reason="this kernel lets no one mount a small disk for the test")


@needs_mounts
@pytest.mark.parametrize(("options", "needs"), [([], "The run will need about"), (["--force"], "sft will need about")])
def test_a_disk_that_is_too_small_for_the_checkpoints(tmp_path, options, needs):
    root = tmp_path / "disk"
    root.mkdir()
    done = run_where(root, f"mount -t tmpfs -o size=14m tmpfs {root}", "sft.save_steps=2", *options)
    assert done.returncode == 2, done.stderr
    assert needs in done.stderr and "MiB free" in done.stderr and "Traceback" not in done.stderr


@needs_mounts
def test_a_read_only_directory(tmp_path):
    root = tmp_path / "disk"
    root.mkdir()
    done = run_where(root, f"mount -t tmpfs -o ro tmpfs {root}")
    assert done.returncode == 2, done.stderr
    assert "cannot be written (Read-only file system)" in done.stderr and "Traceback" not in done.stderr


def test_a_run_without_a_mistake_says_nothing_on_stderr(tmp_path):
    command = [sys.executable, "-c", "from weakdriven.commands.app import main; main()", "run", "demo", *SMALL, *SHORT]
    done = subprocess.run([*command, "--output", str(tmp_path / "run")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_debug_shows_the_traceback(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["weakdriven", "run", "demo", "model=./nowhere", "--debug"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match="There is no model folder"):
        main()


def test_programs_that_could_not_be_isolated_are_refused_before_m1_is_trained(refused, monkeypatch):
    monkeypatch.setattr("weakdriven.eval.run.isolation", lambda: "none")
    code = ["data.domain=code", "method=dpo", "baselines=[]"]
    assert "Generated code needs a sandbox, and none works here" in refused(*code)
