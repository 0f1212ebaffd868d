"""DDP and FSDP2 over gloo: losses, norms and weights of one process; checkpoints for any number of processes."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ALONE, by_several
from safetensors.torch import load_file
from trained_shards import FSDP, run

from weakdriven.errors import UserError
from weakdriven.training.launch import refuse_sharded_adapters, refuse_sharding_of_launch

CASES = {
    "pair": {"pair": True},
    "sft": {"pair": False},
    "untied": {"pair": True, "tied": False},
    "frozen": {"pair": True, "weak_trainable": False, "strong_weight": 0.7, "strong_anchor": 0.5},
}
BOTH = ("sft", "pair")
UNEQUAL = ("entropy", "mean_token_accuracy")
"""What TRL logs as means of micro-batches' means, which depend on which process has which examples."""
STOP = 2
Trained = tuple[dict[str, Any], Path]
"""What a case gave and the folder that it wrote to."""


@cache
def alone(name: str) -> dict[str, Any]:
    """What one process gives."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), **CASES[name])
        if CASES[name]["pair"]:
            found["saved"] = load_file(Path(folder) / "saved" / "model.safetensors")
    return found


def stopped(name: str) -> dict[str, Any]:
    return {**CASES[name], "stop": STOP}


def resumed(name: str, folder: Path) -> dict[str, Any]:
    return {**CASES[name], "resume": str(folder / f"checkpoint-{STOP}")}


def close(found: dict[str, Any], expected: dict[str, Any], *, since: int = 0, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found["weights"], expected["weights"], rtol=0, atol=atol)
    steps = [[row for row in one["logs"] if "loss" in row and row["step"] > since] for one in (found, expected)]
    assert len(steps[0]) == len(steps[1]) == 4 - since
    counts = {"num_tokens"} if since and "mixed_loss" not in steps[0][0] else set()  # TRL's begins anew
    for mine, theirs in zip(*steps, strict=True):
        for key in theirs.keys() - set(UNEQUAL) - counts:
            assert mine[key] == pytest.approx(theirs[key], abs=1e-4), key


def trained_as_one_process(name: str, found: dict[str, Any], folder: Path) -> None:
    assert found["sharded"]
    close(found, alone(name))
    norms = [row["grad_norm"] for row in found["logs"] if "loss" in row]
    assert max(norms) > 0.5, "nothing was clipped, so the test says nothing of clipping"
    if "saved" in alone(name):
        saved = load_file(folder / "saved" / "model.safetensors")
        torch.testing.assert_close(saved, alone(name)["saved"], rtol=0, atol=1e-5)
        config = json.loads((folder / "saved" / "config.json").read_text())
        assert config["architectures"] == ["Qwen3ForCausalLM"] and config["dtype"] == "float32"


@ALONE
def test_fsdp2_over_two_processes_trains_a_pair_as_one_process_and_saves_the_strong_model_whole(tmp_path):
    [(found, folder)] = by_several(2, tmp_path, [CASES["pair"]])
    trained_as_one_process("pair", found, folder)


@pytest.fixture(scope="session")
def sharded_by_two(tmp_path_factory) -> dict[str, list[Trained]]:
    """What two processes under FSDP2 give: the other cases, those that stop, and those that resume from one process."""
    names = [name for name in CASES if name != "pair"]
    folders = [tmp_path_factory.mktemp(name) for name in BOTH]
    for name, folder in zip(BOTH, folders, strict=True):
        run(folder, **stopped(name))
    cases = [*map(CASES.get, names), *map(stopped, BOTH), *map(resumed, BOTH, folders)]
    found = by_several(2, tmp_path_factory.mktemp("two"), cases)
    return {"whole": found[: len(names)], "stopped": found[len(names) : -2], "resumed": found[-2:]}


@pytest.mark.slow
@ALONE
def test_fsdp2_over_two_processes_trains_every_kind_of_model_as_one_process(sharded_by_two):
    names = [name for name in CASES if name != "pair"]
    for name, (found, folder) in zip(names, sharded_by_two["whole"], strict=True):
        trained_as_one_process(name, found, folder)


@pytest.mark.slow
@ALONE
def test_two_processes_resume_from_the_checkpoint_of_one(sharded_by_two):
    for name, (found, _) in zip(BOTH, sharded_by_two["resumed"], strict=True):
        assert found["sharded"]
        close(found, alone(name), since=STOP)


@pytest.mark.slow
@ALONE
def test_one_process_resumes_from_the_shards_of_two(sharded_by_two, tmp_path):
    for name, (_, folder) in zip(BOTH, sharded_by_two["stopped"], strict=True):
        assert not list((folder / f"checkpoint-{STOP}").glob("*.safetensors")), "the checkpoint is to be sharded"
        close(run(tmp_path / name, **resumed(name, folder)), alone(name), since=STOP)


@pytest.mark.slow
@ALONE
def test_four_processes_train_as_one_and_resume_from_the_shards_of_two(sharded_by_two, tmp_path):
    shards = [folder for _, folder in sharded_by_two["stopped"]]
    cases = [*map(CASES.get, BOTH), *map(resumed, BOTH, shards)]
    found = by_several(4, tmp_path, cases)
    for (one, _), name, since in zip(found, (*BOTH, *BOTH), (0, 0, STOP, STOP), strict=True):
        assert one["sharded"]
        close(one, alone(name), since=since)


@pytest.mark.slow
@ALONE
def test_ddp_over_two_processes_trains_as_one_process(tmp_path):
    found = by_several(2, tmp_path, [CASES[name] for name in BOTH], fsdp=False)
    for name, (one, _) in zip(BOTH, found, strict=True):
        assert not one["sharded"]
        close(one, alone(name))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed is not supported; use FSDP2"),
        ({"FSDP_VERSION": "1"}, "FSDP version 1"),
        ({"FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}, "FULL_STATE_DICT"),
        ({"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, "fsdp_cpu_ram_efficient_loading"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "because gradient_checkpointing decides that"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "the recipe's precision decides"),
    ],
)
def test_launches_that_would_train_something_else_raise_an_error(change, sentence, monkeypatch):
    for name, value in (FSDP | change).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=sentence):
        refuse_sharding_of_launch()


def test_adapters_under_fsdp_are_not_supported():
    with pytest.raises(UserError, match="FSDP2 with LoRA"):
        refuse_sharded_adapters(True, True)
    refuse_sharded_adapters(True, False)
