"""A run that is killed, again and again, ends with the weights of one that was not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import SMALL
from weakdriven.runs.directory import work_folder

KILL_WHEN = [
    ("data", "manifest.json"),
    ("sft", "checkpoints/checkpoint-2/optimizer.pt"),  # in the middle of writing a checkpoint
    ("sft", "snapshots/50.part/config.json"),  # in the middle of writing a snapshot
    ("sft", "checkpoints/checkpoint-4/complete"),
    ("entropy/sft-at-50", "parts/rows-*.parquet"),
    ("entropy/sft", "parts/rows-*.parquet"),
    ("round-1/strong", "snapshots/50"),
    ("round-1/strong", "checkpoints/checkpoint-2/complete"),
    ("round-1/strong", "manifest.json"),
    ("baselines/sft", "checkpoints/checkpoint-8/complete"),
    ("eval/sft/arithmetic", "completions.jsonl"),
]
"""The run is killed as soon as a stage is finished, or has such a file to go on from; the next try runs further."""


FLUSH_EACH_BATCH = (
    "import weakdriven.wmss.score_files as s; s.FLUSH_SECONDS = 0; from weakdriven.commands.app import main; main()"
)


def start(root: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", FLUSH_EACH_BATCH, "run", "demo", *SMALL]
    command += ["sft.snapshots=[0.5]", "joint.snapshots=[0.5]", "joint.weak_snapshot=0.5"]
    command += ["selection.batch_tokens=1024", "eval.batch_size=4", "--quiet", "--output", str(root)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(root: Path) -> str:
    process = start(root)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output


@pytest.mark.slow
def test_final_weights_after_any_number_of_kills_equal_the_uninterrupted_ones(tmp_path):
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    finish(calm)
    kills = 0
    for stage, landmark in KILL_WHEN:
        place = stormy / stage if landmark == "manifest.json" else work_folder(stormy, stage) / "work"
        process = start(stormy)
        while process.poll() is None and not any(place.glob(landmark)):
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= len(KILL_WHEN) - 1, "a stage can be quicker than the look-out, but not several"
    table = finish(stormy)
    assert "WMSS" in table and "report.html" in table

    models = ("sft", "round-1/strong", "baselines/sft")
    for model in (*models, *(f"{model}/snapshots/50" for model in models)):
        one, two = (load_file(root / model / "model.safetensors") for root in (calm, stormy))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one), f"{model} differs"
    scores = [f"entropy/{model}/scores.parquet" for model in ("sft-at-50", "sft")]
    for file in (*scores, "round-1/active/active.parquet", "round-1/strong/metrics.jsonl"):
        assert (calm / file).read_bytes() == (stormy / file).read_bytes()
    for path in calm.glob("eval/*/*/scores.json"):
        assert path.read_text() == (stormy / path.relative_to(calm)).read_text()
    resumed = [json.loads(path.read_text())["resumed"] for path in stormy.glob("**/manifest.json")]
    assert sum(resumed) >= 3, "most kills came in the middle of a stage"
