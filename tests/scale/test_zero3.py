"""DeepSpeed ZeRO-3 over gloo: losses, norms and weights of one process; checkpoints for any number of processes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import launch, weakdriven
from safetensors.torch import load_file
from test_sharded_training import CASES as SHARDED
from test_sharded_training import SCRIPT, STOP, close
from test_whole_runs import CUT, TRAINED, same_training
from trained_shards import run

from conftest import SMALL, run_small
from weakdriven.runs.launcher import launch_command, shipped_configs, supervised

pytestmark = pytest.mark.deepspeed
ROUNDING = 5e-5
"""AdamW divides by the size of a gradient, so one of nearly 0 moves its weight by as much as its rounding says."""
CASES = SHARDED | {
    # both decays and both rates, of which each group has its own
    "groups": {"pair": True, "tied": False, "weak_learning_rate": 1e-3, "weight_decay": 0.1},
    "recomputed": {"pair": True, "gradient_checkpointing": True},
    "bf16": {"pair": True, "bf16": True},
}
STOPPED = ("sft", "groups", "frozen")
CONFIG = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    # by default weights as small as ours stay whole
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("config") / "zero3.json"
    file.write_text(json.dumps(CONFIG))
    told = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false"}
    return told | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": str(file)}


def by_several(processes: int, folder: Path, cases: list[dict[str, Any]], environment: dict[str, str]) -> list[Any]:
    done = launch(processes, SCRIPT, str(folder), json.dumps(cases), environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "results.pt", weights_only=False)


@pytest.fixture(scope="module")
def by_two(tmp_path_factory, environment) -> dict[str, tuple[dict[str, Any], Path]]:
    folder = tmp_path_factory.mktemp("two")
    cases = [*CASES.items(), *((f"{name}, stopped", {**CASES[name], "stop": STOP}) for name in STOPPED)]
    found = by_several(2, folder, [case for _, case in cases], environment)
    return {name: (one, folder / str(at)) for at, ((name, _), one) in enumerate(zip(cases, found, strict=True))}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, dict[str, Any]]:
    found = {}
    for name, case in CASES.items():
        folder = tmp_path_factory.mktemp("alone")
        found[name] = run(folder, **case)
        if case["pair"]:
            found[name]["saved"] = load_file(folder / "saved" / "model.safetensors")
    return found


def checkpoint(by_two: dict[str, tuple[Any, Path]], name: str) -> str:
    return str(by_two[f"{name}, stopped"][1] / f"checkpoint-{STOP}")


@pytest.mark.parametrize("name", CASES)
def test_zero3_over_two_processes_trains_as_one_process(name, by_two, alone):
    found, _ = by_two[name]
    assert found["sharded"]
    close(found, alone[name], atol=ROUNDING)
    norms = [row["grad_norm"] for row in found["logs"] if "loss" in row]
    assert max(norms) > 0.5, "nothing was clipped, so the test says nothing of clipping"


@pytest.mark.parametrize("name", ["pair", "untied", "bf16"])
def test_the_strong_model_is_saved_in_one_piece(name, by_two, alone):
    _, folder = by_two[name]
    saved = load_file(folder / "saved" / "model.safetensors")
    torch.testing.assert_close(saved, alone[name]["saved"], rtol=0, atol=ROUNDING)
    config = json.loads((folder / "saved" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"] and config["dtype"] == "float32"


def test_a_checkpoint_holds_no_weight_twice(by_two):
    folder = Path(checkpoint(by_two, "groups"))
    assert not list(folder.rglob("*.safetensors")) and not list(folder.rglob("*.bin"))
    assert len(list(folder.glob("global_step*/*_optim_states.pt"))) == 2


def test_two_processes_go_on_from_the_checkpoint_of_two(by_two, alone, environment, tmp_path):
    cases = [{**CASES[name], "resume": checkpoint(by_two, name)} for name in STOPPED]
    for name, found in zip(STOPPED, by_several(2, tmp_path, cases, environment), strict=True):
        close(found, alone[name], since=STOP, atol=ROUNDING)


def test_four_processes_go_on_from_the_checkpoint_of_two(by_two, alone, environment, tmp_path):
    cases = [{**CASES[name], "resume": checkpoint(by_two, name)} for name in STOPPED]
    cases.append(CASES["pair"])
    for name, found in zip((*STOPPED, "pair"), by_several(4, tmp_path, cases, environment), strict=True):
        assert found["sharded"]
        close(found, alone[name], since=STOP if name in STOPPED else 0, atol=ROUNDING)
    left = sorted(path.name for path in Path(checkpoint(by_two, "sft")).parent.glob("checkpoint-*"))
    assert left == [f"checkpoint-{STOP}"]


@pytest.mark.parametrize("name", STOPPED)
def test_one_process_without_deepspeed_goes_on_from_the_checkpoint_of_two(name, by_two, alone, tmp_path):
    found = run(tmp_path, resume=checkpoint(by_two, name), **CASES[name])
    assert not found["sharded"]
    close(found, alone[name], since=STOP, atol=ROUNDING)


def test_a_checkpoint_of_one_process_is_refused_in_one_sentence(environment, tmp_path):
    run(tmp_path / "one", stop=STOP, **CASES["pair"])
    case = {**CASES["pair"], "resume": str(tmp_path / "one" / f"checkpoint-{STOP}")}
    done = launch(2, SCRIPT, str(tmp_path), json.dumps([case]), environment=environment)
    assert done.returncode != 0
    assert "is a checkpoint of a training without DeepSpeed, which ZeRO-3 cannot go on from" in done.stderr


def test_a_whole_recipe_under_zero3_gives_the_files_of_one_process(environment, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    run_small(one, *CUT)
    done = weakdriven(2, "run", "demo", *SMALL, *CUT, "--output", two, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    for stage in TRAINED:
        same_training(two, one, stage)
        keys = [json.loads((root / stage / "manifest.json").read_text())["key"] for root in (one, two)]
        assert keys[0] == keys[1]


def test_the_shipped_configuration_for_cpus_trains(tmp_path):
    arguments = ["run", "demo", *SMALL, *CUT, "eval.benchmarks=[]", "--output", str(tmp_path / "run")]
    assert supervised(launch_command(shipped_configs()["zero3-cpu-2"], arguments), {**os.environ}) == 0
    assert (tmp_path / "run" / "round-1" / "strong" / "model.safetensors").is_file()
