"""The optimizers: small updates in bf16, stored state, resuming, and what each needs."""

import pytest
import torch
from trl.trainer.sft_trainer import SFTTrainer

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from weakdriven.config.recipe import DataSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.errors import UserError
from weakdriven.runs.directory import Progress
from weakdriven.training.optimizer import check_optimizer, optimizer_class
from weakdriven.training.phase import Phase
from weakdriven.training.sft import train_supervised

RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="bf16")
SMALL = {"batch_size": 4, "micro_batch_size": 4, "gradient_checkpointing": False}
STATES = {"adamw": "Tensor", "adamw_bf16": "Tensor", "adamw_8bit": "OptimState8bit", "adamw_fp8": "OptimStateFp8"}


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    folder = tmp_path / "run" / ".work" / "sft" / "work"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def uncompiled(monkeypatch):
    """Run the step of torchao's optimizers as it is written; compiling it takes up to a minute."""
    monkeypatch.setattr("torch.compile", lambda function, **options: function)


def wide_model():
    """One layer, its embedding large enough for 8-bit state."""
    return tiny_model(width=64, num_hidden_layers=1).bfloat16()


def prepared(work, **settings):
    settings = TrainSettings(**(SMALL | settings))
    return Phase("sft", 0, 1, work, Progress()).prepare(token_rows(16), settings, RECIPE)


def assert_small_updates_count(name, work):
    given = prepared(work, optimizer=name, learning_rate=1e-5)
    trainer = SFTTrainer(wide_model(), processing_class=embedded_tokenizer(), **given)
    optimizer = trainer.create_optimizer()
    [weight] = [p for p in trainer.model.parameters() if p.shape == (64, 64)][:1]
    with torch.no_grad():
        weight.fill_(0.02)
    start = weight.detach().float().mean()
    for _ in range(40):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    moved = (start - weight.detach().float().mean()).item()
    assert moved == 0 if name == "adamw" else moved == pytest.approx(40 * 1e-5, rel=0.2)
    state = optimizer.state[weight]["exp_avg"]
    assert type(state).__name__ == STATES[name]
    assert state.dtype == torch.bfloat16


@pytest.mark.parametrize("name", STATES)
def test_only_plain_adamw_loses_updates_smaller_than_the_spacing_of_bf16(name, work, uncompiled):
    assert_small_updates_count(name, work)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it starts a C++ compiler
def test_a_compiled_step_keeps_updates_smaller_than_the_spacing_of_bf16(work):
    assert_small_updates_count("adamw_fp8", work)


@pytest.mark.parametrize("name", [*STATES, "rmsprop"])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(name, work, uncompiled):
    settings = TrainSettings(**SMALL, optimizer=name, learning_rate=2e-3, save_steps=2)
    whole, resumed = wide_model(), wide_model()
    phase = Phase("sft", 0, 1, work, Progress())
    train_supervised(whole, embedded_tokenizer(), token_rows(16), settings, RECIPE, phase)
    assert {path.name for path in (work / "checkpoints").glob("checkpoint-*")} == {"checkpoint-2"}
    counted = train_supervised(resumed, embedded_tokenizer(), token_rows(16), settings, RECIPE, phase)
    assert counted["steps"] == 4
    start, want, got = weights(wide_model()), weights(whole), weights(resumed)
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert not torch.equal(got["lm_head.weight"], start["lm_head.weight"])


@pytest.mark.parametrize("name, made", [("adamw_bf16", "_AdamW"), ("adamw_fp8", "AdamWFp8")])
def test_optimizers_that_transformers_cannot_name_get_the_settings_of_the_phase(name, made):
    assert optimizer_class(TrainSettings()) is None and optimizer_class(TrainSettings(optimizer="adamw_8bit")) is None
    found, options = optimizer_class(TrainSettings(optimizer=name, learning_rate=3e-6, adam_betas=[0.8, 0.95]))
    assert found.__name__ == made
    assert options == {"lr": 3e-6, "betas": (0.8, 0.95), "eps": 1e-8, "bf16_stochastic_round": True}


@pytest.mark.parametrize("name", ["adamw_bf16", "adamw_8bit", "adamw_fp8"])
def test_a_missing_package_or_compiler_is_an_error_before_training(name, monkeypatch):
    check_optimizer("sft.optimizer", name)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=f"sft.optimizer: {name} .* no compiler no-such-c"):
        check_optimizer("sft.optimizer", name)
    monkeypatch.setattr("weakdriven.training.optimizer.find_spec", lambda package: None)
    with pytest.raises(UserError, match=rf"sft.optimizer: {name} needs torchao, .*; pip install 'weakdriven\[cuda\]'"):
        check_optimizer("sft.optimizer", name)
    check_optimizer("sft.optimizer", "adamw")
    check_optimizer("sft.optimizer", "rmsprop")


def test_rmsprop_has_no_betas():
    with pytest.raises(ValueError, match="adam_betas belong to AdamW, but optimizer is rmsprop; remove one of them"):
        TrainSettings(optimizer="rmsprop", adam_betas=[0.9, 0.95])


def test_fp8_on_a_gpu_without_it_is_an_error_before_training(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 9))
    check_optimizer("sft.optimizer", "adamw_fp8")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 6))
    with pytest.raises(UserError, match=r"sft.optimizer: adamw_fp8 needs a GPU of compute capability 8.9 .*found 8.6"):
        check_optimizer("sft.optimizer", "adamw_fp8")
    check_optimizer("sft.optimizer", "adamw_8bit")
