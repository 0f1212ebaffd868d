"""docs/start/your-own-task.md, run as a reader would, from its first block to its last."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import weakdriven
from weakdriven.runs.files import read_json, read_jsonl

PAGE = Path(__file__).parents[2] / "docs/start/your-own-task.md"
BLOCK = re.compile(r"```(bash|python|yaml)\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_the_page_runs_from_its_first_line_to_its_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":
            exec(text, {})
        elif language == "yaml":
            (tmp_path / "my.yaml").write_text(text)
        else:
            for line in text.splitlines():
                program, *words = shlex.split(line)
                done = weakdriven(*words)
                assert program == "weakdriven" and done.code == 0 and done.out, (line, done)
    root = tmp_path / "runs/my-compare"
    rows = {row["method"]: row for row in read_json(root / "comparison.json")["rows"]}
    assert {*rows} == {"base", "m1", "sft_restart", "sft", "wmss"}
    assert all(row["seeds"] == ["42", "43"] for row in rows.values())
    # it can be learned: the best is far above 25%, which is chance, and the base model has never seen a chat
    assert rows["base"]["score"] < 0.05 and max(rows["sft"]["score"], rows["sft_restart"]["score"]) > 0.35
    assert all(row["validation"]["loss"] < rows["base"]["validation"]["loss"] / 4 for row in list(rows.values())[1:])
    taken = [
        {row["id"] for row in read_jsonl(root / f"seed-{seed}/validation-data/examples.jsonl")} for seed in (42, 43)
    ]
    assert taken[0] == taken[1] and 24 < len(taken[0]) < 96
    page = (root / "compare.html").read_text(encoding="utf-8")
    assert "Highest score: " in page and "Validation loss" in page
    report = (root / "seed-42/report.html").read_text(encoding="utf-8")
    assert "support" in report and "validation" in report.lower()
