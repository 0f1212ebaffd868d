"""A stage that is killed, receives SIGTERM or finds the disk full: the next run resumes to the very same files."""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fault_cases import (
    FORKED,
    STAGES,
    Case,
    Forks,
    cases,
    damaged,
    one_sentence,
    params,
    record,
    results,
    resumes,
    struck_runs,
    without,
)
from weakdriven.runs.directory import work_folder
from weakdriven.runs.files import read_json

EVENTS = {"data": 13, "sft": 150, "entropy": 38, "selection": 10, "joint": 100, "eval": 25}
"""Times that a stage opens or renames a file of its own, at least: a fault strikes at one of them, drawn at random."""
WRITES = {"data": 5, "sft": 20, "entropy": 11, "selection": 4, "joint": 15, "eval": 12}
"""Those of them that write."""
NAMESPACES = subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
pytestmark = FORKED


def strike(tmp_path, case: Case, kind: str, at: int) -> tuple[int, str]:
    """A run that is struck while it computes the stage; all that was finished before must have stayed whole."""
    forks, calm = struck_runs()
    root = without(calm, tmp_path / "run", case.stage)
    code, output = forks.run(root, {"kind": kind, "stage": STAGES[case.stage], "at": at})
    assert code != 0, f"the fault at event {at} did not strike: {output}"
    assert damaged(root) == []
    return code, output


def moment(case: Case, events: dict[str, int]) -> int:
    return random.Random(f"{case.stage} {case.fault}").randint(1, events[case.stage])


@pytest.mark.parametrize("case", params("kill -9"))
def test_a_killed_stage_resumes_to_the_files_of_an_uninterrupted_one(case, tmp_path):
    code, _ = strike(tmp_path, case, "kill", moment(case, EVENTS))
    assert code == -9
    resumes(tmp_path / "run")
    record(case)


@pytest.mark.parametrize("case", params("SIGTERM", quick=("sft",)))
def test_sigterm_saves_exits_with_143_and_the_next_run_resumes_to_the_same_files(case, tmp_path):
    code, output = strike(tmp_path, case, "term", 2)
    assert code == 143
    sentence = one_sentence(output)
    assert sentence.startswith("Stopped on SIGTERM") and sentence.endswith("run the same command again to resume.")
    if case.stage in ("sft", "joint"):
        assert f"at step 1 of {STAGES[case.stage]}, saved" in sentence
    resumes(tmp_path / "run")
    record(case)


@pytest.mark.parametrize("case", params("Ctrl-C in training", quick=("sft",)))
def test_ctrl_c_in_training_saves_and_both_it_and_the_next_run_say_from_which_step_it_resumes(case, tmp_path):
    forks, calm = struck_runs()
    root, stage = without(calm, tmp_path / "run", case.stage), STAGES[case.stage]
    at_the_first_step = {"kind": "interrupt", "stage": stage, "file": "metrics.jsonl", "at": 2}
    code, output = forks.run(root, at_the_first_step)
    assert code == 130 and "Ctrl-C again" in output
    steps = read_json(calm / stage / "manifest.json")["counters"]["steps"]
    sentence = one_sentence(output)
    if steps > 2:
        assert f"at step 2 of {stage}, saved" in sentence and f"resumes from step 2 of {steps};" in sentence
    assert f"{stage}: resuming from step 2 of {steps}\n" in resumes(root) or steps <= 2
    record(case)


@pytest.mark.parametrize("case", params("full disk"))
def test_a_full_disk_is_one_sentence_and_costs_nothing_that_was_finished(case, tmp_path):
    code, output = strike(tmp_path, case, "disk", moment(case, WRITES))
    assert code == 2
    assert "The disk is full" in one_sentence(output)
    resumes(tmp_path / "run")
    record(case)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_at_random_times_ends_with_the_files_of_an_uninterrupted_one(tmp_path):
    forks, _ = struck_runs()
    draw, root = random.Random(0), tmp_path / "run"
    for finished in (0, 2, 5, 7):  # of nine stages
        process = forks.start(root)
        while len(list(root.glob("**/manifest.json"))) < finished:
            time.sleep(0.05)
        time.sleep(draw.uniform(0, 0.5))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        assert forks.finish()[0] == -9
        assert not (root / "data").exists() or damaged(root) == []
    resumes(root)
    record(*cases("kill -9 at random times"))


@pytest.mark.slow
@pytest.mark.skipif(not NAMESPACES, reason="this kernel lets no one mount a small disk for the test")
def test_a_disk_that_others_fill_while_a_checkpoint_is_written(tmp_path):
    _, calm = struck_runs()
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=100m tmpfs {disk} && exec "$0" "$@"'
    forks = Forks(tmp_path, ("unshare", "-rm", "sh", "-c", mount))
    try:
        forks.start(disk / "run")
        seen = Path(f"/proc/{forks.server.pid}/root") / disk.relative_to("/")  # what is mounted for the run alone
        home = work_folder(seen / "run", "sft") / "work/checkpoints"
        while not (home / "checkpoint-1/complete").exists():
            time.sleep(0.002)
        with suppress(OSError), (seen / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(1 << 16)):
                pass
        code, output = forks.finish()
        assert code == 2 and "The disk is full" in one_sentence(output)
        assert [path.name for path in home.glob("checkpoint-*") if not (path / "complete").exists()] == []
        assert damaged(seen / "run") == []
        (seen / "filler").unlink()
        code, output = forks.run(disk / "run")
        assert code == 0, output
        assert results(seen / "run") == results(calm)
    finally:
        forks.close()
    record(*cases("disk filled by others (tmpfs)"))
