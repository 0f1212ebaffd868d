"""Two processes on one selection: the scores and the draw of one, also after a kill, and nothing printed twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import WHOLE
from small_runs import Recorder
from weakdriven.config.file import load_recipe
from weakdriven.pipeline.run import select_recipe
from weakdriven.runs.directory import work_folder
from weakdriven.wmss.score_files import PartWriter, read_parts

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("alone")]
BATCHES = "selection.batch_tokens=256"
FILES = [f"entropy/{model}/scores.parquet" for model in ("base", "sft")] + ["round-1/active/active.parquet"]
KILLED = """
import os, signal
import weakdriven.wmss.entropy as scoring
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
"""Records whether each process still belonged to the process group when its command had ended."""


def launch(root: Path, *overrides: str, script: str = "") -> subprocess.CompletedProcess:
    """`weakdriven select` as a launcher starts it, twice."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    if script:
        path = root.with_name("script.py")
        path.write_text(script)
    command += [str(path)] if script else ["-m", "weakdriven"]
    command += ["select", "demo", *WHOLE, BATCHES, *overrides, "--output", str(root)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)


def files(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in FILES}


def select(root: Path, ready: str) -> None:
    select_recipe(load_recipe("demo", [*WHOLE, ready, BATCHES]), root, Recorder())


@pytest.fixture(scope="session")
def ready(whole_run) -> str:
    return f"sft.model={whole_run[0] / 'sft'}"


@pytest.fixture(scope="session")
def alone(ready, once) -> dict[str, bytes]:
    """What one process gives."""
    return files(once("selected-alone", lambda root: select(root, ready))[0])


def test_two_processes_give_the_files_of_one_and_only_the_main_one_prints(ready, alone, tmp_path):
    root = tmp_path / "run"
    done = launch(root, ready, script=LEFT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [(tmp_path / f"left-{rank}").read_text() for rank in (0, 1)] == ["False", "False"]
    assert files(root) == alone, "each score bit for bit, so the draw as well"
    record = json.loads((root / "entropy/sft/manifest.json").read_text())
    assert record["counters"]["processes"] == 2 and record["counters"]["examples"] == 32
    for line in ("] entropy/base\n", "] round-1/active\n", "Selection of round 1", "Hardest: "):
        assert done.stdout.count(line) == 1
    assert "Error" not in done.stderr and "Traceback" not in done.stderr
    assert sorted(path.name for path in (root / ".work").iterdir()) == ["lock"]


def test_one_process_finishes_what_two_killed_processes_began(ready, alone, tmp_path, monkeypatch):
    root, seen = tmp_path / "run", []
    assert launch(root, ready, script=KILLED).returncode != 0
    parts = work_folder(root, "entropy/base") / "work" / "parts"
    kept = read_parts(parts)["row"].to_pylist()
    assert 0 < len(kept) < 32 and len(set(kept)) == len(kept)
    assert not (root / "entropy").exists()

    add = PartWriter.add
    monkeypatch.setattr(
        PartWriter, "add", lambda self, batch: (seen.extend(batch["row"].to_pylist()), add(self, batch))
    )
    select(root, ready)
    assert files(root) == alone
    assert sorted(kept + seen) == sorted([*range(32), *range(32)]), "what was scored is not scored again"
