"""What the README and the page of the demo tell a reader to run, run as a reader would, on fewer examples."""

import json
import re
import shlex
from pathlib import Path

import pytest
from datasets import load_dataset

from command_line import weakdriven
from weakdriven.data.demo import demo_problems
from weakdriven.models.load import EMBEDDED, locate_model

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(bash|python)\n(.*?)```", re.DOTALL)
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = BLOCK.findall(README)


def run(line: str) -> None:
    program, *words = shlex.split(line)
    done = weakdriven(*words)
    assert program == "weakdriven" and done.code == 0 and done.out, (line, done)


def test_the_readme_opens_with_the_two_commands():
    assert BLOCKS[0] == ("bash", "make demo\nmake test\n")


def test_the_readme_is_short():
    assert len(README.split()) <= 700


@pytest.mark.slow
def test_the_readme_trains_a_model_on_rows_of_ones_own_and_in_a_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, count in (("train", 48), ("test", 8)):
        problems = demo_problems(name)[:count]
        rows = [
            {"question": one.question, "solution": one.solution}
            if name == "train"
            else {"question": one.question, "answer": str(one.answer)}
            for one in problems
        ]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ((_, commands),) = [block for block in BLOCKS[1:] if block[0] == "bash"]
    install, command = commands.splitlines()
    assert install == "pip install ."
    run(command.replace("Qwen/Qwen2.5-0.5B", EMBEDDED))
    (script,) = (text for language, text in BLOCKS if language == "python")
    base = str(locate_model(EMBEDDED))
    for model in ("runs/sft/checkpoint", "Qwen/Qwen3-4B-Base"):
        assert model in script
        script = script.replace(model, base)
    dataset = load_dataset("json", data_files="train.jsonl", split="train").rename_columns(
        {"question": "prompt", "solution": "completion"}
    )
    exec(script.replace('"out", ', '"out", max_steps=1, use_cpu=True, bf16=False, '), {"dataset": dataset})
    assert (tmp_path / "out/model.safetensors").is_file()


@pytest.mark.slow
def test_commands_of_the_demo_page_run(tmp_path, monkeypatch):
    """In order and in one folder, because later commands read what earlier ones wrote."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/start/demo.md").read_text(encoding="utf-8")
    ((_, commands), (_, example)) = [block for block in BLOCK.findall(page) if "runs/two-rounds" in block[1]]
    for line in commands.splitlines():
        fewer = line.replace("data.limit=320", "data.limit=32").replace("eval.limit=64", "eval.limit=8")
        run(fewer.replace("--limit 32", "--limit 8"))
    exec(example, {})
    assert (tmp_path / "runs/two-rounds/report.html").is_file()
