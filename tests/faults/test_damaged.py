"""What is read back is checked: a damaged result stops the run, damaged work of an unfinished stage is done again."""

import os
import shutil
from pathlib import Path

import pytest
from peft import LoraConfig

from fault_cases import (
    FORKED,
    STAGES,
    TINY,
    Case,
    cases,
    damaged,
    params,
    record,
    results,
    resumes,
    struck_runs,
    without,
)
from helpers import tiny_model
from weakdriven.commands.verify import check_stages, verify
from weakdriven.config.file import load_recipe
from weakdriven.errors import UserError
from weakdriven.models.adapters import add_adapter, load_adapter, load_merged
from weakdriven.pipeline.run import run_recipe
from weakdriven.runs.directory import Progress, work_folder
from weakdriven.runs.files import write_json
from weakdriven.runs.manifest import FILES, MANIFEST, inventory

pytestmark = FORKED
RESULT = {
    "data": "tokens.arrow",
    "sft": "model.safetensors",
    "entropy": "scores.parquet",
    "selection": "active.parquet",
    "joint": "model.safetensors",
    "eval": "samples.jsonl",
}
READER = {"data": "entropy", "sft": "entropy", "entropy": "selection", "selection": "joint", "joint": "eval/round-1"}
"""A stage that reads the result of another; it is removed, so that a run has to compute it."""


def flip(path: Path) -> None:
    """One bit in the middle; the file may be another run's too by a hard link, so it is written anew."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


HARM = {"truncated": truncate, "bit-flipped": flip, "removed": Path.unlink}


@pytest.mark.parametrize(
    "case",
    [
        *params("result bit-flipped", quick=tuple(STAGES)),
        *params("result truncated", quick=("sft",)),
        *params("result removed", quick=("eval",)),
    ],
)
def test_a_damaged_result_is_named_and_nothing_is_computed_or_removed(case: Case, tmp_path):
    _, calm = struck_runs()
    root = tmp_path / "run"
    shutil.copytree(calm, root)
    victim = root / STAGES[case.stage] / RESULT[case.stage]
    HARM[case.fault.removeprefix("result ")](victim)
    if case.stage in READER and case.fault == "result bit-flipped":  # contents are read when someone needs them
        shutil.rmtree(root / STAGES.get(READER[case.stage], f"{READER[case.stage]}/arithmetic"))
    before = results(root)
    with pytest.raises(UserError, match=r"when it was finished.* delete the folder") as error:
        run_recipe(load_recipe("demo", TINY), root, Progress())
    assert str(victim) in str(error.value)
    assert damaged(root) == [STAGES[case.stage]]
    assert {name: found for name, found in results(root).items() if name in before} == before
    record(case)


def unfinished(tmp_path: Path, stage: str, at: int, file: str = "") -> Path:
    """A run that was killed in a stage, when it opened one of its files."""
    forks, calm = struck_runs()
    root = without(calm, tmp_path / "run", stage)
    code, output = forks.run(root, {"kind": "kill", "stage": STAGES[stage], "at": at, "file": file})
    assert code == -9, output
    return work_folder(root, STAGES[stage]) / "work"


def stopped(tmp_path: Path, stage: str, step: int) -> Path:
    """A run whose training of a stage ended with an error after so many steps, each with its checkpoint."""
    forks, calm = struck_runs()
    root = without(calm, tmp_path / "run", stage)
    code, output = forks.run(root, {"kind": "memory", "stage": STAGES[stage], "at": step})
    assert code == 2, output
    return work_folder(root, STAGES[stage]) / "work/checkpoints"


@pytest.mark.parametrize("case", [*params("checkpoint truncated", quick=("sft",)), *params("checkpoint bit-flipped")])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(case: Case, tmp_path):
    last = 3 if case.stage == "sft" else 1
    checkpoints = stopped(tmp_path, case.stage, last)
    HARM[case.fault.removeprefix("checkpoint ")](checkpoints / f"checkpoint-{last}/optimizer.pt")
    output = resumes(tmp_path / "run")
    assert f"checkpoint-{last} is damaged and not used" in output
    assert ("resumes from checkpoint-2" if last == 3 else "training starts over") in output
    record(case)


@pytest.mark.slow
def test_without_an_intact_checkpoint_training_starts_anew(tmp_path):
    checkpoints = stopped(tmp_path, "sft", 3)
    assert sorted(path.name for path in checkpoints.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    flip(checkpoints / "checkpoint-3/model.safetensors")
    truncate(checkpoints / "checkpoint-2/complete")
    output = resumes(tmp_path / "run")
    assert "no checkpoint is left; training starts over" in output
    record(*cases("every checkpoint damaged"))


@pytest.mark.parametrize("case", [*params("part truncated"), *params("part bit-flipped")])
def test_a_damaged_part_of_scores_is_scored_again(case: Case, tmp_path):
    parts = unfinished(tmp_path, "entropy", 12) / "parts"
    victim = sorted(parts.glob("rows-*.parquet"))[0]
    HARM[case.fault.removeprefix("part ")](victim)
    resumes(tmp_path / "run")
    record(case)


@pytest.mark.slow
def test_damaged_completions_are_generated_again(tmp_path):
    file = unfinished(tmp_path, "eval", 2, "completions.jsonl") / "completions.jsonl"
    rows = file.read_bytes()
    assert rows.count(b"\n") >= 4
    place = rows.index(b'"text": "') + len(b'"text": "')  # still JSON, and only the checksum can tell
    file.write_bytes(rows[:place] + bytes([rows[place] ^ 1]) + rows[place + 1 :])
    resumes(tmp_path / "run")
    record(*cases("answers bit-flipped"))


@pytest.mark.parametrize("harm", ["truncated", "bit-flipped"])
def test_a_damaged_snapshot_of_an_adapter_is_named_by_whatever_reads_it(harm, tmp_path):
    """PEFT would tell a user of a header that cannot be parsed, or not notice."""
    stage, base = tmp_path / "sft", tmp_path / "base"
    tiny_model().save_pretrained(base)
    adapted = add_adapter(tiny_model(), LoraConfig(r=2, target_modules=["q_proj"]), seed=0)
    for folder in (stage, stage / "snapshots/50"):
        adapted.save_pretrained(str(folder), save_embedding_layers=False)
    write_json(stage / "manifest.json", {"stage": "sft", "key": "k", "files": inventory(stage)})
    HARM[harm](stage / "snapshots/50/adapter_model.safetensors")
    wrong = r"snapshots/50/adapter_model\.safetensors has .* when it was finished.* Restore the file from a copy"
    with pytest.raises(UserError, match=wrong):
        load_adapter(tiny_model(), stage / "snapshots/50")
    with pytest.raises(UserError, match=wrong):
        load_merged(stage / "snapshots/50", base, precision="fp32")
    load_adapter(tiny_model(), stage)  # the model beside it is whole
    (base / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"^\S*base holds no \.safetensors weights"):
        load_merged(stage, base, precision="fp32")


def test_verify_finds_every_file_whole_and_names_what_it_does_not_know(tmp_path):
    _, calm = struck_runs()
    found = {stage: (files, wrong) for stage, files, _, wrong in check_stages(calm)}
    assert all(files and not wrong for files, wrong in found.values()) and found.keys() >= set(STAGES.values())
    with pytest.raises(UserError, match="no finished stage"):
        check_stages(tmp_path)


def test_verify_counts_what_it_could_check(tmp_path, capsys):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("1")
    write_json(tmp_path / "new" / MANIFEST, {"key": "2", FILES: inventory(tmp_path / "new")})
    write_json(tmp_path / "old" / MANIFEST, {"key": "1"})
    verify(tmp_path)
    told = "All 1 files of 1 stages are intact. 1 stages list no files and were not checked."
    assert capsys.readouterr().out.splitlines()[-1] == told
