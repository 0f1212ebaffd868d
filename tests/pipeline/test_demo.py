"""The command at the top of the README as `make demo` runs it, with fewer problems to solve."""

import re
import subprocess
import sys

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from weakdriven.runs.files import read_jsonl


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demo_ends_with_the_table_and_a_strong_model_that_solves_problems(tmp_path):
    root = tmp_path / "demo"
    command = [sys.executable, "-m", "weakdriven", "run", "demo", "eval.limit=128"]
    done = subprocess.run([*command, "--output", str(root)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for name in ("M0", "M1", "SFT", "WMSS"):
        assert re.search(rf"{name}.*\d+/128.*%.* to ", done.stdout), f"{name} is missing from the table"
    assert done.stdout.rstrip().endswith("report.html") and (root / "report.html").is_file()

    accuracy = {}
    for path in root.glob("eval/*/arithmetic/samples.jsonl"):
        accuracy[path.parts[-3]] = sum(row["correct"] for row in read_jsonl(path)) / 128
    assert accuracy["sft"] > accuracy["base"] + 0.05, "SFT improves the base model"

    folder = root / "round-1/strong"
    solved = next(row for row in read_jsonl(root / "eval/round-1/arithmetic/samples.jsonl") if row["correct"])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(solved["prompt"], return_tensors="pt", add_special_tokens=False)
    reply = tokenizer.decode(model.generate(**inputs, max_new_tokens=96)[0, inputs["input_ids"].shape[1] :])
    assert f"\\boxed{{{solved['gold']}}}" in reply
