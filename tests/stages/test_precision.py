"""The pipeline in each precision, with checkpointed activations and with less data than a batch."""

import json
import math
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from small_runs import Recorder, run_small, small_recipe
from weakdriven.errors import UserError
from weakdriven.models.load import locate_model
from weakdriven.pipeline.run import run_recipe
from weakdriven.runs.files import read_jsonl
from weakdriven.runs.signals import Stopped

TRAINED = ("sft", "round-1/strong")


@cache
def base_weights() -> dict[str, torch.Tensor]:
    return load_file(locate_model("embedded:base") / "model.safetensors")


def weights(root: Path, model: str) -> dict[str, torch.Tensor]:
    return load_file(root / model / "model.safetensors")


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of every single weight."""
    assert one.keys() == other.keys()
    return torch.cat([(one[name].float() - other[name].float()).abs().flatten() for name in one])


@pytest.mark.parametrize("precision", ["bf16-mixed", pytest.param("bf16", marks=pytest.mark.slow)])
def test_a_bf16_run_saves_finite_bf16_weights_that_have_changed(tmp_path, precision):
    # few tokens: a processor without bf16 takes 400 times as long for a product as in fp32
    tiny = ["data.limit=2", "eval.limit=1", "eval.max_new_tokens=2", "baselines=[]", "sft.epochs=1"]
    run_small(tmp_path / "run", f"precision={precision}", *tiny)
    start = {name: weight.bfloat16() for name, weight in base_weights().items()}
    for model in TRAINED:
        trained = weights(tmp_path / "run", model)
        assert {weight.dtype for weight in trained.values()} == {torch.bfloat16}
        assert all(weight.isfinite().all() for weight in trained.values())
        # a norm's weight of about 1 moves by less than bf16 can tell in so few steps
        matrices = [name for name, weight in start.items() if weight.ndim > 1]
        assert matrices and not any(torch.equal(trained[name], start[name]) for name in matrices)
        config = json.loads((tmp_path / "run" / model / "config.json").read_text())
        assert config["use_cache"] is True and config["dtype"] == "bfloat16"
        steps = [json.loads(line) for line in (tmp_path / "run" / model / "metrics.jsonl").read_text().splitlines()]
        assert steps and all(math.isfinite(row["loss"]) for row in steps)
    scores = json.loads((tmp_path / "run/eval/round-1/arithmetic/scores.json").read_text())
    assert scores["items"] == 1


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [[], ["lora={}"]], ids=["whole", "adapters"])
def test_an_fp16_run_trains_as_an_fp32_run_does_and_saves_fp16_weights(tmp_path, lora):
    for name in ("fp16", "fp32"):
        run_small(tmp_path / name, f"precision={name}", "baselines=[]", "data.limit=256", *lora)
    for model in TRAINED:
        half, whole = (read_jsonl(tmp_path / name / model / "metrics.jsonl") for name in ("fp16", "fp32"))
        losses = [row["loss"] for row in half]
        assert losses == pytest.approx([row["loss"] for row in whole], rel=0.02) and losses[-1] < 0.7 * losses[0]
        if not lora:
            assert {weight.dtype for weight in weights(tmp_path / "fp16", model).values()} == {torch.float16}


@pytest.mark.gpu
def test_an_fp16_run_that_is_stopped_resumes_with_its_loss_scale(tmp_path):
    overrides = ["precision=fp16", "method=sft", "baselines=[]", "eval.benchmarks=[]", "sft.save_steps=2"]
    run_small(tmp_path / "whole", *overrides)

    class Stopping(Recorder):
        def update(self, done, total, **facts):
            if "baselines/sft" in self.ran and done >= 3:
                raise KeyboardInterrupt

    recipe = small_recipe(*overrides)
    with pytest.raises(Stopped):
        run_recipe(recipe, tmp_path / "parts", Stopping())
    run_recipe(recipe, tmp_path / "parts", Recorder())
    model = "baselines/sft"
    assert difference(weights(tmp_path / "parts", model), weights(tmp_path / "whole", model)).max() == 0


def test_fp16_without_a_gpu_or_with_a_quantized_base_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="computes in bf16"):
        small_recipe("precision=fp16", "lora={quantize: 4bit}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="there is no GPU"):
        run_small(tmp_path / "run", "precision=fp16")


@pytest.mark.slow
def test_checkpointed_activations_give_the_same_weights_and_micro_batches_the_same_but_for_rounding(tmp_path):
    """Micro-batches add up in another order; AdamW turns that into 1e-4 for the few weights with hardly a gradient."""
    checkpointing, micro = "gradient_checkpointing=true", "micro_batch_size=4"
    for name, settings in {"plain": [], "checkpointed": [checkpointing], "small": [checkpointing, micro]}.items():
        overrides = [f"{phase}.{setting}" for phase in ("sft", "joint") for setting in settings]
        run_small(tmp_path / name, "data.limit=32", "baselines=[]", "eval.benchmarks=[]", *overrides)
    for model in TRAINED:
        plain, checkpointed, small = (weights(tmp_path / name, model) for name in ("plain", "checkpointed", "small"))
        assert difference(plain, base_weights()).mean() > 1e-3
        assert difference(plain, checkpointed).max() == 0
        assert difference(plain, small).mean() < 1e-7 and difference(plain, small).quantile(0.999) < 1e-6
        assert json.loads((tmp_path / "checkpointed" / model / "config.json").read_text())["use_cache"] is True


def test_less_data_than_a_batch_is_one_step_an_epoch_and_still_trains(tmp_path):
    run_small(tmp_path, "data.limit=8", "eval.benchmarks=[]")
    for model, steps in (("sft", 1), ("round-1/strong", 1), ("baselines/sft", 2)):
        counters = json.loads((tmp_path / model / "manifest.json").read_text())["counters"]
        assert counters["steps"] == steps
        assert difference(weights(tmp_path, model), base_weights()).mean() > 1e-3
