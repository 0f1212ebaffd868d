"""The commands of `make demo`, with fewer problems to learn from and to solve."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from weakdriven.report.format import model_name
from weakdriven.runs.files import read_jsonl

MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
MODELS = ("base", "sft", "baseline-sft_restart", "baseline-sft", "round-1", "baseline-wmss_annealed")


def demo(root: Path) -> list[list[str]]:
    """The commands of `make demo`, with `root` as the run directory."""
    (block,) = re.findall(r"^demo:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    commands = [shlex.split(line.partition("$(BIN)/weakdriven ")[2]) for line in block.splitlines()]
    return [[str(root) if word == "runs/demo" else word for word in command] for command in commands]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demo_ends_with_the_table_and_a_strong_model_that_solves_problems(tmp_path):
    root, printed = tmp_path / "demo", []
    run, *others = demo(root)
    for command in ([*run, "data.limit=1280", "eval.limit=128"], *others):
        done = subprocess.run([sys.executable, "-m", "weakdriven", *command], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), (command, done.stderr)
        printed.append(done.stdout)
    for name in map(model_name, MODELS):
        assert re.search(rf"{name} .*\d+/128.*%.* to ", printed[0]), f"{name} is missing from the table"
    assert (root / "diagnostics").is_dir() and str(root / "report.html") in printed[-1]

    accuracy = {}
    for path in root.glob("eval/*/arithmetic/samples.jsonl"):
        accuracy[path.parts[-3]] = sum(row["correct"] for row in read_jsonl(path)) / 128
    assert set(accuracy) == set(MODELS)
    for name in ("sft", "baseline-sft_restart", "baseline-sft"):
        assert accuracy[name] > accuracy["base"] + 0.05, f"{name} improves the base model"

    folder = root / "round-1/strong"
    solved = next(row for row in read_jsonl(root / "eval/round-1/arithmetic/samples.jsonl") if row["correct"])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(solved["prompt"], return_tensors="pt", add_special_tokens=False)
    reply = tokenizer.decode(model.generate(**inputs, max_new_tokens=96)[0, inputs["input_ids"].shape[1] :])
    assert f"\\boxed{{{solved['gold']}}}" in reply
