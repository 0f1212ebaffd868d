"""Snapshots of a phase: their steps, what is in their folders, and that they do not change training."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from weakdriven.config.recipe import DataSettings, JointSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.errors import UserError
from weakdriven.runs.directory import Progress, work_folder
from weakdriven.training.phase import Phase
from weakdriven.training.sft import save_model, train_supervised
from weakdriven.training.snapshots import publish_snapshots, snapshot_steps
from weakdriven.wmss.trainer import train_joint

ROWS = token_rows(24)
SMALL = {"batch_size": 4, "micro_batch_size": 2, "learning_rate": 2e-3, "gradient_checkpointing": False}
KEPT = [0.25, 0.5]
"""Of six steps: after the second and the third."""


class Stop(Progress):
    """Stops training at a step, as Ctrl-C does."""

    def __init__(self, step: int):
        self.step = step

    def update(self, done, total, **facts):
        if done == self.step:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def quiet_trackers(monkeypatch):
    """What a phase sets for trackers is undone."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")


def recipe(precision: str = "fp32") -> Recipe:
    return Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision=precision)


def train(root: Path, *, snapshots, joint=False, precision="fp32", adapters=False, progress=None, **options):
    """Six steps of a tiny model in the work folder of a run; returns the model and that folder."""
    work = root / ".work" / "stage" / "work"
    work.mkdir(parents=True, exist_ok=True)
    models = [tiny_model(seed=1), tiny_model(seed=2)]
    if adapters:
        torch.manual_seed(0)
        kind = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        models = [get_peft_model(model, kind) for model in models]
    tokenizer = embedded_tokenizer()

    def keep(folder: Path) -> None:
        save_model(models[0], tokenizer, folder, precision=precision, stop_ids=[1])

    phase = Phase("stage", 0, 1, work, progress or Progress(), keep=keep)
    settings = {**SMALL, "save_steps": 1, "snapshots": snapshots, **options}
    if joint:
        train_joint(*models, tokenizer, ROWS, JointSettings(**settings), recipe(precision), phase)
    else:
        train_supervised(models[0], tokenizer, ROWS, TrainSettings(**settings), recipe(precision), phase)
    return models[0], work


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def saved(folder: Path, file: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return load_file(folder / file)


def test_training_ends_with_the_same_weights_with_and_without_snapshots(tmp_path):
    options = {"joint": True, "precision": "bf16-mixed", "gradient_checkpointing": True}
    plain, _ = train(tmp_path / "plain", snapshots=[], **options)
    kept, work = train(tmp_path / "kept", snapshots=KEPT, **options)
    assert same(weights(plain), weights(kept))
    assert kept.dtype == torch.float32
    assert sorted(path.name for path in (work / "snapshots").iterdir()) == ["25", "50"]


@pytest.mark.parametrize(
    "joint, precision, dtype", [(False, "bf16-mixed", torch.bfloat16), (True, "fp32", torch.float32)]
)
def test_a_snapshot_is_the_trainers_own_model_after_that_step(joint, precision, dtype, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, snapshots=KEPT, joint=joint, precision=precision, progress=Stop(4))
    work = tmp_path / ".work" / "stage" / "work"
    for name, step in (("25", 2), ("50", 3)):
        if not (checkpoint := work / "checkpoints" / f"checkpoint-{step}").exists():
            continue  # the trainer keeps the last two
        trainer = {key: value.to(dtype) for key, value in saved(checkpoint).items()}
        assert same(saved(work / "snapshots" / name), trainer)
    assert (work / "checkpoints/checkpoint-3").exists()
    assert not same(saved(work / "snapshots/25"), saved(work / "snapshots/50"))
    assert not (work / "snapshots/50/weak").exists() and (work / "snapshots/50/tokenizer.json").is_file()
    loaded = type(tiny_model()).from_pretrained(work / "snapshots/50")
    assert (loaded.dtype, loaded.config.use_cache, loaded.generation_config.eos_token_id) == (dtype, True, [1])


@pytest.mark.parametrize("joint, stop", [(False, 5), (True, 3)])
def test_an_interrupted_training_ends_with_the_same_snapshots(joint, stop, tmp_path):
    options = {"snapshots": [0.25, 0.5, 0.75], "joint": joint, "save_steps": 2}
    whole, quiet = train(tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", progress=Stop(stop), **options)
    if stop < 4:
        torn = work_folder(tmp_path / "stopped", "stage") / "work" / "snapshots/75.part"
        torn.mkdir(parents=True)
        (torn / "model.safetensors").write_bytes(b"half")
    again, work = train(tmp_path / "stopped", **options)
    assert same(weights(whole), weights(again))
    assert sorted(path.name for path in (work / "snapshots").iterdir()) == ["25", "50", "75"]
    for name in ("25", "50", "75"):
        assert same(saved(work / "snapshots" / name), saved(quiet / "snapshots" / name))


def test_a_snapshot_of_an_adapted_model_is_its_adapter(tmp_path):
    file = "adapter_model.safetensors"
    plain, _ = train(tmp_path / "plain", snapshots=[], adapters=True)
    kept, work = train(tmp_path / "kept", snapshots=KEPT, adapters=True)
    assert same(weights(plain), weights(kept))
    publish_snapshots(work, tmp_path / "out", KEPT)
    for name in ("25", "50"):
        assert same(saved(tmp_path / "out/snapshots" / name, file), saved(work / "snapshots" / name, file))
    folder = work / "snapshots" / "50"
    assert not (folder / "model.safetensors").exists() and (folder / "tokenizer.json").is_file()
    kept.save_pretrained(tmp_path / "end")
    end, on_the_way = saved(tmp_path / "end", file), saved(folder, file)
    assert end.keys() == on_the_way.keys() and not same(end, on_the_way)
    assert all(weight.requires_grad for name, weight in kept.named_parameters() if "lora_" in name)


@pytest.mark.parametrize(
    "shares, answer",
    [
        ([0.25, 0.3], "at 0.3 falls on step 2 of 6, as does that at 0.25"),
        ([0.5, 0.99], "at 0.99 falls on step 6 of 6, as does the end"),
    ],
)
def test_two_snapshots_on_one_step_are_an_error(shares, answer):
    with pytest.raises(UserError, match=answer):
        snapshot_steps(shares, 6, "sft")


def test_two_snapshots_on_one_step_are_an_error_before_the_first_step(tmp_path):
    with pytest.raises(UserError, match="falls on step 2 of 6"):
        train(tmp_path, snapshots=[0.25, 0.3])
    assert not (work_folder(tmp_path, "stage") / "work" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    "shares, answer",
    [
        ([0.0], "between 0 and 1 .* found 0.0"),
        ([1.0], "found 1.0"),
        ([0.125], "at most two decimals, found 0.125"),
        ([0.5, 0.25], "in ascending order"),
        ([0.5, 0.5], "without repeats"),
        ([share / 100 for share in range(1, 22)], "at most 20"),
    ],
)
def test_shares_that_name_no_step_are_an_error(shares, answer):
    with pytest.raises(ValueError, match=answer):
        TrainSettings(snapshots=shares)


def test_every_whole_percent_is_a_share():
    for begin in (1, 21, 41, 61, 80):
        shares = [round(place / 100, 2) for place in range(begin, begin + 20)]
        assert TrainSettings(snapshots=shares).snapshots == shares
