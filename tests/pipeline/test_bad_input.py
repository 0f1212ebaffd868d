"""What a user can get wrong: one clear sentence, exit code 2, no traceback, nothing half-written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import SMALL
from weakdriven.cli import main
from weakdriven.models.load import load_model, load_tokenizer, locate_model

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


def test_an_empty_dataset(refused, tmp_path):
    assert "there is no row to train on" in refused(write_rows(tmp_path / "rows.jsonl"))


def test_a_missing_data_file(refused):
    assert "there is no such data file" in refused("data.path=missing.jsonl")


def test_duplicate_ids(refused, tmp_path):
    assert "id 'a' stands in rows 1 and 2" in refused(write_rows(tmp_path / "rows.jsonl", ROW, ROW))


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
    assert "has no chat template; set chat_template in the recipe" in text


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


def test_a_benchmark_without_its_data(refused):
    assert "Benchmark gsm8k needs eval.data_dir" in refused("eval.benchmarks=[gsm8k]")


def run_where(root: Path, mount: str, *overrides: str) -> subprocess.CompletedProcess:
    """The command line in a mount namespace of its own, where `mount` has prepared the output directory."""
    words = " ".join([*SMALL, *overrides])
    weakdriven = f"{sys.executable} -c 'from weakdriven.cli import main; main()' run demo {words} --quiet"
    script = f"{mount} && {weakdriven} --output {root}/run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(["unshare", "-rm", "sh", "-c", script], env=environment, capture_output=True, text=True)


NAMESPACES = subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
needs_mounts = pytest.mark.skipif(not NAMESPACES, reason="this kernel lets no one mount a small disk for the test")


@needs_mounts
def test_a_full_disk(tmp_path):
    root = tmp_path / "disk"
    root.mkdir()
    done = run_where(root, f"mount -t tmpfs -o size=3m tmpfs {root}")
    assert done.returncode == 2, done.stderr
    assert "The disk is full" in done.stderr and "Traceback" not in done.stderr


@needs_mounts
def test_a_read_only_directory(tmp_path):
    root = tmp_path / "disk"
    root.mkdir()
    done = run_where(root, f"mount -t tmpfs -o ro tmpfs {root}")
    assert done.returncode == 2, done.stderr
    assert "cannot be written (Read-only file system)" in done.stderr and "Traceback" not in done.stderr


def test_debug_shows_the_traceback(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["weakdriven", "run", "demo", "model=./nowhere", "--debug"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match="There is no model folder"):
        main()
