"""Mean logits that joint training logs, against dense logits and against the diagnostics' definition."""

import pytest
import torch
from peft import LoraConfig

from helpers import tiny_model
from joint_cases import logs, make
from weakdriven.diagnose.logits import logit_statistics
from weakdriven.losses.head import Head
from weakdriven.losses.mixed_ce import IGNORE
from weakdriven.models.head import causal_lm, head, hidden_states
from weakdriven.wmss.pair import mean_row, summed_mean_logit, targets

NAMES = ("strong_mean_logit", "weak_mean_logit")


def watched(trainer, *, dense: bool):
    """Train, and collect by step the mean logits of both models before each update."""
    found: dict[int, list] = {}
    own = trainer.training_step

    def step(model, inputs, *args, **kwargs):
        batch = {name: inputs[name] for name in ("input_ids", "attention_mask")} | {"use_cache": False}
        target = targets(inputs["labels"])
        for place, network in enumerate((trainer.pair.strong, trainer.pair.weak)):
            if dense:
                with torch.no_grad():
                    means = causal_lm(network)(**batch).logits[:, :-1].double().mean(-1)[target != IGNORE]
            else:
                with torch.no_grad(), trainer.accelerator.autocast():
                    hidden_TD = hidden_states(network, batch)[:, :-1][target != IGNORE]
                assert hidden_TD.dtype == torch.bfloat16
                means = logit_statistics(hidden_TD, head(network), target[target != IGNORE])["mean"]
            found.setdefault(trainer.state.global_step + 1, [[], []])[place] += means.tolist()
        return own(model, inputs, *args, **kwargs)

    trainer.training_step = step
    trainer.train()
    return {at: [sum(values) / len(values) for values in both] for at, both in found.items()}


@pytest.mark.parametrize(
    "family, options",
    [
        ("qwen3", {"tied": True}),
        ("granite", {"tied": False, "logits_scaling": 4.0}),
        ("phi", {"tied": False}),  # its head has a bias
    ],
)
def test_logged_mean_logits_are_those_of_the_dense_logits(family, options, tmp_path):
    models = [tiny_model(family, seed=seed, **options) for seed in (1, 2)]
    for model in models:
        if (bias := model.get_output_embeddings().bias) is not None:
            torch.nn.init.normal_(bias, mean=3.0)
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    trainer = make(tmp_path, model=models[0], weak_model=models[1], **sizes)
    found = watched(trainer, dense=True)
    assert len(found) == 2
    for entry, means in zip(logs(trainer), found.values(), strict=True):
        assert [entry[name] for name in NAMES] == pytest.approx(means, abs=1e-5)


def test_under_autocast_and_adapters_they_are_those_of_the_diagnostics(tmp_path):
    kind = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make(tmp_path, bf16=True, trainer={"peft_config": kind})
    found = watched(trainer, dense=False)
    for entry, means in zip(logs(trainer), found.values(), strict=True):
        assert [entry[name] for name in NAMES] == pytest.approx(means, abs=1e-5)


def test_only_steps_that_are_logged_are_measured(tmp_path, monkeypatch):
    trainer = make(tmp_path, logging_steps=2, max_steps=5)
    passes = []
    own = trainer.pair.measure_mean_logits
    monkeypatch.setattr(trainer.pair, "measure_mean_logits", lambda on: (passes.append(on), own(on)))
    found = watched(trainer, dense=True)
    assert passes == [False, True, False, True, False]
    assert [entry["strong_mean_logit"] for entry in logs(trainer)] == pytest.approx(
        [found[2][0], found[4][0]], abs=1e-5
    )


def test_a_model_that_does_not_run_or_caps_its_logits_has_none(tmp_path):
    alone = make(tmp_path / "alone", strong_weight=1.0, max_steps=1)
    alone.train()
    assert NAMES[0] in logs(alone)[0] and NAMES[1] not in logs(alone)[0]
    capped = [tiny_model("gemma2", seed=seed, final_logit_softcapping=30.0) for seed in (1, 2)]
    trainer = make(tmp_path / "capped", model=capped[0], weak_model=capped[1], max_steps=1)
    trainer.train()
    assert logs(trainer) and not set(NAMES) & logs(trainer)[0].keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_pad_the_head_count_and_sums_are_wide(dtype):
    draw = torch.Generator().manual_seed(0)
    weight_VD = torch.randn(5000, 8, generator=draw).to(dtype)
    weight_VD[4000:] = 0  # padding
    hidden_TD = torch.randn(7, 8, generator=draw).to(dtype)
    one = Head(weight_VD, bias_V=torch.full((5000,), 0.25, dtype=dtype), scale=2.0)
    row = mean_row(one)
    assert row is not None and row[0].dtype == torch.float32
    want = 2 * (hidden_TD.double() @ weight_VD.double().T + 0.25).mean(-1).sum()
    assert summed_mean_logit(hidden_TD, row).item() == pytest.approx(want.item(), abs=1e-5)
    assert mean_row(one._replace(cap=30.0)) is None
