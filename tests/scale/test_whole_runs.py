"""A whole recipe in several processes: the files of one process, and one sentence where something is wrong."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from launching import ALONE, CUT, launch, run_of_one_process, weakdriven
from safetensors.torch import load_file
from trained_shards import FSDP

from small_runs import SMALL, Recorder, run_small, small_recipe
from weakdriven.config.file import load_recipe
from weakdriven.errors import UserError
from weakdriven.pipeline.run import all_stages, carry_out
from weakdriven.runs.directory import work_folder
from weakdriven.runs.launcher import find_config, read_config
from weakdriven.training.checkpoints import last_complete_checkpoint
from weakdriven.training.launch import refuse_processes

TRAINED = ("sft", "round-1/strong")
SPIN = [*SMALL, "method=spin", "baselines=[]", "data.limit=32", "eval.limit=2", "eval.max_new_tokens=4"]
SPIN += ["spin.iterations=1", "spin.batch_size=4", "spin.micro_batch_size=2", "spin.rollouts.max_new_tokens=16"]
SPIN += ["spin.rollouts.subsample=12"]


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


MEANS = {"entropy", "mean_token_accuracy", "logits/chosen", "logits/rejected"}
"""What TRL logs of pairs as means of micro-batches' means, which depend on how rows are dealt out."""


def same_training(one: Path, other: Path, stage: str, *, but: frozenset[str] = frozenset()) -> None:
    mine, theirs = metrics(one / stage), metrics(other / stage)
    assert len(mine) == len(theirs) > 0
    for row, expected in zip(mine, theirs, strict=True):
        assert row.keys() == expected.keys() and {"loss", "validation_loss"} & row.keys()
        same = {key: value for key, value in expected.items() if key not in but}
        assert {key: row[key] for key in same} == pytest.approx(same, abs=2e-5)
    models = sorted(path.relative_to(other) for path in (other / stage).glob("**/model.safetensors"))
    assert models == sorted(path.relative_to(one) for path in (one / stage).glob("**/model.safetensors"))
    for model in models:
        mine, theirs = (load_file(root / model) for root in (one, other))
        assert mine.keys() == theirs.keys()
        # AdamW divides by the size of a gradient, so one of nearly 0 moves its weight by as much as its rounding says
        assert max(float((mine[name] - theirs[name]).abs().max()) for name in theirs) < 1e-3


@pytest.fixture(scope="session")
def by_two(tmp_path_factory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("two") / "run"
    done = weakdriven(2, "run", "demo", *SMALL, *CUT, "--output", root)
    assert done.returncode == 0, done.stderr[-3000:]
    return root, done.stdout


def same_run(root: Path, one: Path) -> None:
    """Trained, selected and generated as by one process."""
    for stage in TRAINED:
        same_training(root, one, stage)
        manifests = [json.loads((run / stage / "manifest.json").read_text()) for run in (root, one)]
        assert manifests[0]["execution"]["processes"] == 2 and manifests[0]["key"] == manifests[1]["key"]
        configs = [json.loads((run / stage / "config.json").read_text()) for run in (root, one)]
        assert configs[0]["architectures"] == configs[1]["architectures"]
    draws = [pq.read_table(run / "round-1/active/active.parquet")["draws"] for run in (root, one)]
    assert draws[0].equals(draws[1])
    files = sorted(path.relative_to(one) for path in one.glob("eval/*/*/samples.jsonl"))
    assert len(files) == 3
    for file in files:
        assert (root / file).read_bytes() == (one / file).read_bytes()


@pytest.mark.slow
@ALONE
def test_two_processes_train_select_and_evaluate_as_one(by_two, once):
    root, said = by_two
    same_run(root, run_of_one_process(once))
    assert said.count("] round-1/strong\n") == said.count("Report: ") == said.count("WMSS, round 1") == 1
    assert (root / "report.html").is_file()
    assert sorted(path.name for path in (root / ".work").iterdir()) == ["lock"]


@pytest.mark.slow
@ALONE
def test_a_recipe_that_is_launched_under_fsdp2_trains_selects_and_evaluates_as_one_process(once, tmp_path):
    root = tmp_path / "run"
    command = [sys.executable, "-m", "weakdriven", "run", "demo", *SMALL, *CUT, "--launch", "fsdp2-cpu-2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"capture_output": True, "text": True}
    done = subprocess.run([*command, "--output", str(root)], **pipes, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Report: ") == 1
    same_run(root, run_of_one_process(once))


@pytest.mark.slow
@ALONE
def test_one_process_skips_what_two_have_finished(by_two, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(by_two[0], root)
    assert run_small(root, *CUT).ran == {}


@pytest.mark.slow
@ALONE
def test_an_error_in_every_process_is_printed_once_and_leaves_nothing_behind(tmp_path):
    odd = ["sft.batch_size=15", "sft.micro_batch_size=15"]
    done = weakdriven(2, "run", "demo", *SMALL, *odd, "--output", tmp_path / "run")
    assert done.returncode != 0
    sentence = "sft.batch_size is 15, which is not divisible by 2 processes; start 1 process"
    assert done.stderr.count(sentence) == 1, done.stderr[-3000:]
    assert "src/weakdriven" not in done.stderr, "a sentence, not a traceback of ours"
    assert not (tmp_path / "run").exists(), "something was left behind"


def test_a_batch_that_the_processes_cannot_share_raises_an_error():
    recipe = load_recipe("demo", ["sft.batch_size=15", "sft.micro_batch_size=15"])
    with pytest.raises(UserError, match=r"sft\.batch_size is 15, which is not divisible by 2 processes"):
        refuse_processes(recipe, 2)


@pytest.mark.parametrize("method", ["undial", "ssb", "scaled_ce"])
def test_methods_that_train_in_one_process_raise_an_error(method):
    with pytest.raises(UserError, match=f"{method} trains in one process, found 2"):
        refuse_processes(load_recipe("demo", [f"baselines=[sft,{method}]"]), 2)


@pytest.mark.parametrize("override", ["method=dpo", "method=spin", "baselines=[sft,spin]"])
def test_preferences_under_fsdp_raise_an_error_before_anything_is_computed(override, tmp_path, monkeypatch):
    """As in the first of two processes that a shipped configuration starts."""
    recipe = small_recipe(override)
    refuse_processes(recipe, 2)
    environment = read_config(find_config("fsdp2-8gpu"))["fsdp_config"]
    for key, value in {"accelerate_use_fsdp": True, **environment}.items():
        monkeypatch.setenv(key.upper(), str(value).lower() if isinstance(value, bool) else str(value))
    monkeypatch.setattr("weakdriven.pipeline.run.size", lambda: 2)
    with pytest.raises(UserError, match=r"(dpo|spin) trains in one process or with DDP, not with FSDP; use"):
        carry_out(recipe, tmp_path / "run", Recorder(), all_stages)
    assert not (tmp_path / "run").exists(), "something was left behind"


def test_several_gpus_without_a_launcher_raise_an_error_that_names_launch(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    with pytest.raises(UserError, match=r"4 GPUs are visible.*--launch"):
        refuse_processes(load_recipe("demo"), 1)


def test_a_recipe_without_processes_raises_an_error_under_a_launcher(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="a launcher started 2"):
        refuse_processes(load_recipe("demo"), 1)


FAILS = """
import sys
from pathlib import Path
import weakdriven.stages.data as stages
from weakdriven.errors import UserError
from weakdriven.commands.app import main

def write_tokens(*inputs, **options):
    raise UserError("The first process found a bad row.")

stages.write_tokens = write_tokens
main()
"""


@pytest.mark.slow
@ALONE
def test_an_error_of_the_main_process_alone_ends_all_with_its_message(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    done = launch(2, str(script), "run", "demo", *SMALL, "--output", str(tmp_path / "run"))
    assert done.returncode != 0
    assert done.stderr.count("The first process found a bad row.") == 1, done.stderr[-3000:]
    root_cause = done.stderr.split("Root Cause")[1]
    assert "exitcode  : 2 " in root_cause, "ended by itself, not by a timeout of the group"


STOPPED = """
import os
import signal
import sys
import time
from pathlib import Path
from weakdriven.commands.app import main
from weakdriven.runs.signals import stop_requested
from weakdriven.training.callbacks import PhaseCallback

told = Path(sys.argv.pop(1))
on_step_end = PhaseCallback.on_step_end

def tell_the_launcher(self, args, state, control, **kwargs):
    if state.global_step == 3 and os.environ["RANK"] == "0" and not told.exists():
        told.touch()
        os.kill(os.getppid(), signal.SIGTERM)
        while not stop_requested():  # it passes the signal on to both of us
            time.sleep(0.01)
    on_step_end(self, args, state, control, **kwargs)

PhaseCallback.on_step_end = tell_the_launcher
main()
"""


@pytest.mark.slow
@ALONE
def test_two_processes_that_receive_sigterm_save_and_resume_to_the_same_weights(by_two, tmp_path):
    script, root = tmp_path / "stopped.py", tmp_path / "run"
    script.write_text(STOPPED)
    command = [
        str(script),
        str(tmp_path / "told"),
        "run",
        "demo",
        *SMALL,
        *CUT,
        "eval.benchmarks=[]",
        "--output",
        str(root),
    ]
    done = launch(2, *command)
    assert done.returncode != 0
    assert done.stderr.count("Stopped on SIGTERM at step 3 of sft, saved") == 1, done.stderr[-3000:]
    assert last_complete_checkpoint(work_folder(root, "sft") / "work" / "checkpoints").name == "checkpoint-3"
    done = launch(2, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    for stage in TRAINED:
        mine, theirs = (load_file(folder / stage / "model.safetensors") for folder in (root, by_two[0]))
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.slow
@ALONE
def test_rollouts_and_preferences_of_two_processes_are_those_of_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    run_small(one, *SPIN)
    done = weakdriven(2, "run", "demo", *SPIN, "--output", two)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("rollouts.jsonl", "labels.jsonl"):
        place = f"rollouts/sft/spin/{name}"
        assert (two / place).read_bytes() == (one / place).read_bytes()
    same_training(two, one, "baselines/spin", but=frozenset(MEANS))


EVALUATED = ["eval.benchmarks=[]", "selection.enabled=false", "data.validation_share=0.2"]
EVALUATED += ["sft.eval_steps=1", "sft.keep=best", "joint.eval_steps=0.5"]


@pytest.mark.slow
@ALONE
@pytest.mark.parametrize("launched", ["ddp", "fsdp2"])
def test_two_processes_evaluate_during_training_and_keep_the_best_model_as_one(launched, once, tmp_path):
    one = once("one-process-evaluated", lambda root: run_small(root, *CUT, *EVALUATED))[0]
    root = tmp_path / "run"
    options = {"environment": FSDP} if launched == "fsdp2" else {}
    done = weakdriven(2, "run", "demo", *SMALL, *CUT, *EVALUATED, "--output", root, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    for stage in TRAINED:
        same_training(root, one, stage)
        assert any("validation_loss" in row for row in metrics(one / stage))
    steps = [json.loads((run / "sft/manifest.json").read_text())["counters"]["best_step"] for run in (root, one)]
    assert steps[0] == steps[1]
