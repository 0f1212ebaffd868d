"""What trainers save, load and push under FSDP2: one process over gloo, two, and one on a GPU in bf16 over NCCL."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from launching import ALONE, by_several
from safetensors.torch import load, load_file
from trained_shards import FSDP, run

from helpers import tiny_model, weights
from hub_server import TOKEN, HubServer, hub_of_trainers
from weakdriven.runs.processes import leave
from weakdriven.wmss.pair import WeakStrongPair, load_pair_weights, read_pair

SAVED = {"save_strategy": "steps", "save_steps": 2}
BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2, **SAVED}
FIRST, LAST = ({**BEST, "greater_is_better": more} for more in (True, False))
"""The evaluation loss falls, so one of the two checkpoints is the best one."""
CASES: dict[str, dict[str, Any]] = {
    "first": {"pair": True, **FIRST},
    "last": {"pair": True, **LAST},
    "first sft": {"pair": False, "metric_for_best_model": "loss", **FIRST},
    "last sft": {"pair": False, "metric_for_best_model": "loss", **LAST},
    "model alone": {"pair": True, "save_only_model": True, **FIRST},
    "model alone sft": {"pair": False, "save_only_model": True, "metric_for_best_model": "loss", **LAST},
    "bf16": {"pair": True, "bf16": True},
    "bf16 sft": {"pair": False, "bf16": True},
    "push": {"pair": True, "push": True, "push_to_hub": True, "hub_model_id": "me/pair", "hub_token": TOKEN, **SAVED},
}


@pytest.fixture
def sharded(monkeypatch):
    """This process alone under FSDP2, over gloo."""
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    for name, value in {**FSDP, **ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    leave()
    AcceleratorState._reset_state(True)


def strong(weights):
    """Those of the strong model, under its own names."""
    return {name.removeprefix("strong."): w for name, w in weights.items() if name.startswith("strong.")}


def equal(ones, others):
    """A saved file has tied weights once."""
    assert ones.keys() <= others.keys() and len(others) - len(ones) <= 1
    assert all(torch.equal(ones[name], others[name]) for name in ones)


def check_best(name, found, folder):
    best, other = (2, 4) if CASES[name]["greater_is_better"] else (4, 2)
    assert set(found["best"]) == {(str(folder / f"checkpoint-{best}"), best)}, "one process found another"
    equal(found["weights"], found["after"][best])
    assert any(not torch.equal(w, found["after"][other][name]) for name, w in found["weights"].items())


def check_models_alone(found, folder, *, pair):
    for step in (2, 4):
        checkpoint = folder / f"checkpoint-{step}"
        names = {path.name for path in checkpoint.iterdir()}
        assert "trainer_state.json" in names and not names & {"optimizer.pt", "optimizer_0", "pytorch_model_fsdp_0"}
        if not pair:
            equal(load_file(checkpoint / "model.safetensors"), found["after"][step])
            continue
        loaded = WeakStrongPair(strong=tiny_model(seed=5), weak=tiny_model(seed=6, width=24))
        load_pair_weights(loaded, checkpoint)
        equal(weights(loaded), found["after"][step])
        assert read_pair(checkpoint)["strong_weight"] == 0.5


def check_precision(found):
    """Products in bfloat16; losses, and sums of gradients over processes, in float32."""
    assert found["layers"] == {torch.bfloat16} and found["policy"].reduce_dtype == torch.float32
    assert {loss.dtype for loss in found["losses"]} == {torch.float32}
    assert any(loss != loss.bfloat16() for loss in found["losses"])


def check_push(found, hub):
    assert {"README.md", "config.json", "tokenizer.json", "model.safetensors"} <= hub.files.keys()
    equal(load(hub.files["model.safetensors"]), strong(found["after"][4]))
    assert hub.messages[0] == "Training in progress, step 2" and hub.messages[-1] == "End of training"
    pushed = [load(content) for content in hub.objects.values()]
    assert any(torch.equal(one["model.norm.weight"], strong(found["after"][2])["model.norm.weight"]) for one in pushed)


def check(name, found, folder):
    """What each case is to give, apart from what is pushed."""
    options = CASES[name]
    assert found["sharded"]
    if options.get("load_best_model_at_end"):
        check_best(name, found, folder)
    if options.get("save_only_model"):
        check_models_alone(found, folder, pair=options["pair"])
    if options.get("bf16"):
        check_precision(found)
    if not options.get("push"):
        trained = strong(found["weights"]) if options["pair"] else found["weights"]
        equal(load_file(folder / "saved/model.safetensors"), trained)


@pytest.mark.usefixtures("sharded")
@pytest.mark.parametrize("name", ["first", "bf16", pytest.param("bf16 sft", marks=pytest.mark.slow)])
def test_one_process_saves_loads_and_computes_as_upstream_does_without_shards(name, tmp_path):
    check(name, run(tmp_path, **CASES[name]), tmp_path)


@pytest.mark.usefixtures("sharded")
def test_checkpoints_of_models_alone_are_ordinary_and_resume(tmp_path):
    check("model alone", run(tmp_path, **CASES["model alone"]), tmp_path)
    again = run(tmp_path / "again", pair=True, resume=str(tmp_path / "checkpoint-2"))
    assert again["sharded"] and list(again["after"]) == [3, 4]


@pytest.mark.usefixtures("sharded")
def test_the_strong_model_is_pushed_whole_at_each_save_and_at_the_end(monkeypatch, tmp_path):
    with hub_of_trainers(monkeypatch) as hub:
        check_push(run(tmp_path, **CASES["push"]), hub)


@pytest.mark.slow
@ALONE
def test_two_processes_save_load_and_push_as_one(tmp_path):
    with HubServer() as hub:
        names, settings = list(CASES), {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        settings["HF_HUB_DISABLE_TELEMETRY"] = "1"
        for name, (found, folder) in zip(names, by_several(2, tmp_path, [*CASES.values()], **settings), strict=True):
            check(name, found, folder)
        check_push(found, hub)


def close(found, expected):
    """In bfloat16 and on another path to the same step."""
    torch.testing.assert_close(found["weights"], expected["weights"], rtol=0, atol=5e-3)
    for mine, theirs in zip(found["losses"][-8:], expected["losses"][-8:], strict=True):
        assert mine.item() == pytest.approx(theirs.item(), abs=2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@ALONE
def test_one_process_on_a_gpu_trains_in_bf16_over_nccl(tmp_path):
    """Save, resume, best model, models alone and precision, under FSDP2 with one process."""
    names = [name for name in CASES if name != "push"]
    on_gpu = {"use_cpu": False, "bf16": True}
    stopped = [{"pair": pair, "stop": 2, "out": str(tmp_path / f"stopped-{pair}")} for pair in (True, False)]
    resumed = [{"pair": one["pair"], "resume": f"{one['out']}/checkpoint-2"} for one in stopped]
    alone = {"pair": True, "resume": str(tmp_path / f"{names.index('model alone')}/checkpoint-2")}
    cases = [*(CASES[name] for name in names), *stopped, *resumed, alone]
    found = by_several(1, tmp_path, [case | on_gpu for case in cases])
    for name, (one, folder) in zip(names, found, strict=False):
        check(name, one, folder)
        check_precision(one)
    for (one, _), name in zip(found[len(names) + 2 :], ("bf16", "bf16 sft"), strict=False):
        assert list(one["after"]) == [3, 4]
        close(one, found[names.index(name)][0])
    assert list(found[-1][0]["after"]) == [3, 4]
