"""DDP and FSDP2 over gloo: losses, norms and weights of one process; checkpoints for any number of processes."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import launch
from safetensors.torch import load_file
from trained_shards import FSDP, run

from weakdriven.errors import UserError
from weakdriven.training.fsdp import refuse_sharded_adapters, refuse_sharding_of_launch

SCRIPT = str(Path(__file__).with_name("trained_shards.py"))
CASES = {
    "sft": {"pair": False},
    "pair": {"pair": True},
    "untied": {"pair": True, "tied": False},
    "frozen": {"pair": True, "weak_trainable": False, "strong_weight": 0.7, "strong_anchor": 0.5},
}
UNEQUAL = ("entropy", "mean_token_accuracy")
"""What TRL logs as means of micro-batches' means, which depend on how rows are dealt out."""
STOP = 2


@cache
def alone(name: str) -> dict[str, Any]:
    """What one process gives."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), **CASES[name])
        if CASES[name]["pair"]:
            found["saved"] = load_file(Path(folder) / "saved" / "model.safetensors")
    return found


def by_several(processes: int, folder: Path, cases: list[dict[str, Any]], *, fsdp: bool) -> list[dict[str, Any]]:
    done = launch(processes, SCRIPT, str(folder), json.dumps(cases), environment=FSDP if fsdp else {})
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "results.pt", weights_only=False)


def close(found: dict[str, Any], expected: dict[str, Any], *, since: int = 0, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found["weights"], expected["weights"], rtol=0, atol=atol)
    steps = [[row for row in one["logs"] if "loss" in row and row["step"] > since] for one in (found, expected)]
    assert len(steps[0]) == len(steps[1]) == 4 - since
    counts = {"num_tokens"} if since and "mixed_loss" not in steps[0][0] else set()  # TRL's begins anew
    for mine, theirs in zip(*steps, strict=True):
        for key in theirs.keys() - set(UNEQUAL) - counts:
            assert mine[key] == pytest.approx(theirs[key], abs=1e-4), key


@pytest.fixture(scope="module")
def sharded_by_two(tmp_path_factory) -> dict[str, tuple[dict[str, Any], Path]]:
    folder = tmp_path_factory.mktemp("sharded")
    stopped = [{**CASES[name], "stop": STOP} for name in ("sft", "pair")]
    found = by_several(2, folder, [*CASES.values(), *stopped], fsdp=True)
    return {name: (one, folder / str(at)) for at, (name, one) in enumerate(zip([*CASES, *"ab"], found, strict=True))}


@pytest.mark.parametrize("name", CASES)
def test_fsdp2_over_two_processes_trains_as_one_process(name, sharded_by_two):
    found, _ = sharded_by_two[name]
    assert found["sharded"]
    close(found, alone(name))
    norms = [row["grad_norm"] for row in found["logs"] if "loss" in row]
    assert max(norms) > 0.5, "nothing was clipped, so the test says nothing of clipping"


@pytest.mark.parametrize("name", ["pair", "untied"])
def test_the_strong_model_is_saved_in_one_piece(name, sharded_by_two):
    _, folder = sharded_by_two[name]
    saved, expected = load_file(folder / "saved" / "model.safetensors"), alone(name)["saved"]
    torch.testing.assert_close(saved, expected, rtol=0, atol=1e-5)
    config = json.loads((folder / "saved" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"] and config["dtype"] == "float32"


def test_ddp_over_two_processes_trains_as_one_process(tmp_path):
    cases = [CASES["sft"], CASES["pair"]]
    for name, found in zip(("sft", "pair"), by_several(2, tmp_path, cases, fsdp=False), strict=True):
        assert not found["sharded"]
        close(found, alone(name))


@pytest.mark.parametrize(("place", "name"), [("a", "sft"), ("b", "pair")])
def test_one_process_goes_on_from_the_shards_of_two(place, name, sharded_by_two, tmp_path):
    checkpoint = sharded_by_two[place][1] / f"checkpoint-{STOP}"
    assert not list(checkpoint.glob("*.safetensors")), "the checkpoint is to be sharded"
    close(run(tmp_path, resume=str(checkpoint), **CASES[name]), alone(name), since=STOP)


def test_two_processes_go_on_from_the_checkpoint_of_one(tmp_path):
    cases = []
    for name in ("sft", "pair"):
        run(tmp_path / name, stop=STOP, **CASES[name])
        cases.append({**CASES[name], "resume": str(tmp_path / name / f"checkpoint-{STOP}")})
    for name, found in zip(("sft", "pair"), by_several(2, tmp_path, cases, fsdp=True), strict=True):
        assert found["sharded"]
        close(found, alone(name), since=STOP)


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [False, True])
def test_four_processes_train_as_one(fsdp, tmp_path):
    cases = [CASES["sft"], CASES["pair"]]
    for name, found in zip(("sft", "pair"), by_several(4, tmp_path, cases, fsdp=fsdp), strict=True):
        assert found["sharded"] == fsdp
        close(found, alone(name))


@pytest.mark.slow
def test_four_processes_go_on_from_the_shards_of_two(sharded_by_two, tmp_path):
    resumed = {
        name: str(sharded_by_two[place][1] / f"checkpoint-{STOP}") for place, name in (("a", "sft"), ("b", "pair"))
    }
    cases = [{**CASES[name], "resume": folder} for name, folder in resumed.items()]
    for name, found in zip(resumed, by_several(4, tmp_path, cases, fsdp=True), strict=True):
        close(found, alone(name), since=STOP)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"FSDP_VERSION": "1"}, "FSDP version 1"),
        ({"FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}, "FULL_STATE_DICT"),
        ({"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, "fsdp_cpu_ram_efficient_loading"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "gradient_checkpointing of the recipe"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "the recipe's precision decides"),
    ],
)
def test_ways_to_shard_that_would_train_something_else_are_refused(change, sentence, monkeypatch):
    for name, value in (FSDP | change).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=sentence):
        refuse_sharding_of_launch()


def test_deepspeed_is_refused_with_what_to_use_instead(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UserError, match=r"DeepSpeed is not supported; use FSDP2.*fsdp2-8gpu"):
        refuse_sharding_of_launch()


def test_adapters_under_fsdp_are_refused():
    with pytest.raises(UserError, match="FSDP2 with LoRA"):
        refuse_sharded_adapters(True, True)
    refuse_sharded_adapters(True, False)
