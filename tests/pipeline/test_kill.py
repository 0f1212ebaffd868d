"""A run that is killed and resumed ends with the files of an uninterrupted one."""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from command_line import WHOLE, weakdriven
from fault_cases import FORKED, Forks, killed_at, results
from weakdriven.runs.directory import work_folder
from weakdriven.runs.files import read_json


@FORKED
def test_a_run_killed_in_the_middle_of_training_and_resumed_equals_an_uninterrupted_one(whole_run, tmp_path):
    root = shutil.copytree(whole_run[0], tmp_path / "run")
    for stage in ("round-1/strong", "eval/round-1"):
        shutil.rmtree(root / stage)
    checkpoint = work_folder(root, "round-1/strong") / "work/checkpoints/checkpoint-2/complete"
    words = ["run", "demo", *WHOLE, "--output", root]
    assert killed_at(checkpoint, *words) == -signal.SIGKILL and checkpoint.exists()
    assert not (root / "round-1/strong").exists(), "half a result is none"
    resumed = weakdriven(*words)
    assert resumed.code == 0, resumed.err
    assert read_json(root / "round-1/strong/manifest.json")["resumed"] == 1
    assert results(root) == results(whole_run[0])


KILL_WHEN = [
    ("data", "manifest.json"),
    ("sft", "checkpoints/checkpoint-2/optimizer.pt"),  # in the middle of writing a checkpoint
    ("sft", "snapshots/50.part/config.json"),  # in the middle of writing a snapshot
    ("sft", "best/3.part/config.json"),  # in the middle of writing the best model so far
    ("sft", "checkpoints/checkpoint-4/complete"),
    ("round-1/strong", "snapshots/50"),
    ("round-1/strong", "checkpoints/checkpoint-2/complete"),
    ("round-1/strong", "manifest.json"),
    ("baselines/sft", "checkpoints/checkpoint-8/complete"),
]
"""The run is killed as soon as a stage is finished, or has such a file to resume from; the next try runs further."""
SNAPSHOTS = ["data.limit=96", "baselines=[sft]", "sft.save_steps=2", "joint.save_steps=2"]
SNAPSHOTS += ["sft.snapshots=[0.5]", "joint.snapshots=[0.5]", "joint.weak_snapshot=0.5"]
BEST = ["data.validation_share=0.1", "sft.eval_steps=1", "sft.keep=best", "joint.eval_steps=2"]


@pytest.mark.slow
def test_a_run_with_snapshots_and_best_models_that_is_killed_again_and_again_equals_an_uninterrupted_one(tmp_path):
    calm, killed, kills = tmp_path / "calm", tmp_path / "killed", 0
    forks = Forks(tmp_path)
    try:
        code, output = forks.run(calm, None, *SNAPSHOTS, *BEST)
        assert code == 0, output
        for stage, landmark in KILL_WHEN:
            place = killed / stage if landmark == "manifest.json" else work_folder(killed, stage) / "work"
            process = forks.start(killed, None, *SNAPSHOTS, *BEST)
            while Path(f"/proc/{process}").exists() and not any(place.glob(landmark)):
                time.sleep(0.005)
            with suppress(ProcessLookupError):  # it may have ended already
                os.kill(process, signal.SIGKILL)
            kills += forks.finish()[0] == -signal.SIGKILL
        assert kills >= len(KILL_WHEN) - 2, "a stage may end before it is killed, but not several"
        code, output = forks.run(killed, None, *SNAPSHOTS, *BEST)
        assert code == 0 and "WMSS" in output and "report.html" in output, output
    finally:
        forks.close()
    found = results(calm)
    assert results(killed) == found and "sft/snapshots/50/model.safetensors" in found
    resumed = [read_json(path)["resumed"] for path in killed.glob("**/manifest.json")]
    assert sum(resumed) >= 3, "most kills came in the middle of a stage"
