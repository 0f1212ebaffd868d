"""Several processes on one selection: the scores and the draw of one, also after a kill, and nothing said twice."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conftest import SMALL, Recorder, small_recipe
from weakdriven.pipeline.run import select_recipe
from weakdriven.runs.directory import work_folder
from weakdriven.wmss import score_files as scores
from weakdriven.wmss.score_files import read_parts

BATCHES = "selection.batch_tokens=1024"
FILES = [f"entropy/{model}/scores.parquet" for model in ("base", "sft")] + ["round-1/active/active.parquet"]
KILLED = """
import os, signal
import weakdriven.stages.entropy as scoring
import weakdriven.wmss.score_files as scores
from weakdriven.commands.app import main

scores.FLUSH_SECONDS = 0
scan = scoring.scan

def dies(*inputs):
    for number, batch in enumerate(scan(*inputs)):
        if os.environ["RANK"] == "1" and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch

scoring.scan = dies
main()
"""
"""Of two processes the second is killed when two of its batches are on disk."""

LEFT = """
import os
from pathlib import Path
import torch.distributed as dist
from weakdriven.commands.app import main

try:
    main()
finally:
    Path(__file__).with_name("left-" + os.environ["RANK"]).write_text(str(dist.is_initialized()))
"""
"""Says of each process whether it still belonged to the others when its command had ended."""


def launch(root: Path, *overrides: str, script: str = "") -> subprocess.CompletedProcess:
    """`weakdriven select` as a launcher starts it, twice."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    if script:
        path = root.with_name("script.py")
        path.write_text(script)
    command += [str(path)] if script else ["-m", "weakdriven"]
    command += ["select", "demo", *SMALL, BATCHES, *overrides, "--output", str(root)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def files(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def ready(two_round_run) -> str:
    return f"sft.model={two_round_run[0] / 'sft'}"


@pytest.fixture(scope="module")
def alone(ready, tmp_path_factory) -> dict[str, bytes]:
    """What one process gives."""
    root = tmp_path_factory.mktemp("alone") / "run"
    select_recipe(small_recipe(ready, BATCHES), root, Recorder())
    return files(root)


def test_two_processes_give_the_files_of_one_and_one_of_them_speaks(ready, alone, tmp_path):
    root = tmp_path / "run"
    done = launch(root, ready, script=LEFT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [(tmp_path / f"left-{rank}").read_text() for rank in (0, 1)] == ["False", "False"]
    assert files(root) == alone, "each score bit for bit, so the draw as well"
    record = json.loads((root / "entropy/sft/manifest.json").read_text())
    assert record["counters"]["processes"] == 2 and record["counters"]["examples"] == 96
    for line in ("entropy/base: not run yet", "round-1/active: not run yet", "Selection of round 1", "Hardest: "):
        assert done.stdout.count(line) == 1
    assert "Error" not in done.stderr and "Traceback" not in done.stderr
    assert sorted(path.name for path in (root / ".work").iterdir()) == ["lock"]


def test_what_two_processes_left_when_they_were_killed_one_process_finishes(ready, alone, tmp_path, monkeypatch):
    root, seen = tmp_path / "run", []
    assert launch(root, ready, script=KILLED).returncode != 0
    parts = work_folder(root, "entropy/base") / "work" / "parts"
    kept = read_parts(parts)["row"].to_pylist()
    assert 0 < len(kept) < 96 and len(set(kept)) == len(kept)
    assert not (root / "entropy").exists()

    add = scores.PartWriter.add
    monkeypatch.setattr(
        scores.PartWriter, "add", lambda self, batch: (seen.extend(batch["row"].to_pylist()), add(self, batch))
    )
    select_recipe(small_recipe(ready, BATCHES), root, Recorder())
    assert files(root) == alone
    assert sorted(kept + seen) == sorted([*range(96), *range(96)]), "what was there is not scored again"


def test_several_processes_train_what_a_selection_needs(alone, tmp_path):
    root = tmp_path / "run"
    done = launch(root)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (root / "sft" / "model.safetensors").is_file() and not (root / "round-1" / "strong").exists()
    draws = [pq.read_table(io.BytesIO(found[FILES[-1]]))["draws"] for found in (alone, files(root))]
    assert draws[0].equals(draws[1])
