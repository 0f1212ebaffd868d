"""WDJTTrainer on tiny models: equivalences, what is logged, what is saved, resuming."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback, TrainerState
from trl.trainer.sft_trainer import SFTTrainer

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from weakdriven.errors import UserError
from weakdriven.recipe import DataSettings, Recipe, TrainSettings
from weakdriven.rundir import METRICS, Progress, read_jsonl
from weakdriven.training.arguments import training_order
from weakdriven.training.callbacks import PhaseCallback, last_complete_checkpoint
from weakdriven.training.joint import WDJTTrainer
from weakdriven.training.supervised import Phase, fit

BATCH, STEPS = 4, 6
RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="fp32")
ROWS = token_rows(BATCH * STEPS)
LOGGED = [
    "loss",
    "strong_loss",
    "weak_loss",
    "mixed_probability",
    "strong_probability",
    "margin_share",
    "strong_grad_norm",
    "weak_grad_norm",
]


class StopAt(TrainerCallback):
    """A kill that leaves the checkpoint of its step behind."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


def common(folder, *, micro_batch_size=2, callbacks=(), **changes):
    """Settings that every trainer here shares; the first step already learns, and nothing is random."""
    settings = TrainSettings(
        batch_size=BATCH,
        micro_batch_size=micro_batch_size,
        learning_rate=2e-3,
        warmup_ratio=0.0,
        gradient_checkpointing=False,
        save_steps=2,
        **changes,
    )
    made = Phase("round-1/strong", 1, 1, folder, Progress()).prepare(ROWS, settings, RECIPE)
    made["args"] = replace(made["args"], use_cpu=True)
    made["callbacks"] += callbacks
    return {**made, "processing_class": embedded_tokenizer()}


def joint(folder, *, strong_weight=0.42, weak_trainable=True, family="qwen3", **options):
    folder.mkdir(exist_ok=True)
    strong, weak = tiny_model(family, seed=1), tiny_model(family, seed=2)
    mixing = {"strong_weight": strong_weight, "weak_trainable": weak_trainable}
    return WDJTTrainer(strong, weak, **mixing, **common(folder, **options))


def trained(folder, **options):
    trainer = joint(folder, **options)
    fit(trainer)
    return trainer


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def both(trainer):
    return {**weights(trainer.model.strong), **{f"weak.{k}": v for k, v in weights(trainer.model.weak).items()}}


def assert_equal(mine, theirs):
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An uninterrupted run of six steps, and where it was."""
    folder = tmp_path_factory.mktemp("joint") / "run"
    return trained(folder), folder


def test_both_branches_learn_and_the_steps_are_those_of_the_data(run):
    trainer, _ = run
    assert trainer.state.global_step == len(losses(trainer)) == STEPS
    start = {**weights(tiny_model(seed=1)), **{f"weak.{k}": v for k, v in weights(tiny_model(seed=2)).items()}}
    assert all(not torch.equal(after, start[name]) for name, after in both(trainer).items())


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_accumulating_micro_batches_equals_one_batch(family, tmp_path):
    one, four = (trained(tmp_path / str(size), family=family, micro_batch_size=size) for size in (4, 1))
    assert (one.args.gradient_accumulation_steps, four.args.gradient_accumulation_steps) == (1, 4)
    assert losses(one) == pytest.approx(losses(four), abs=1e-5)
    torch.testing.assert_close(both(one), both(four), rtol=0, atol=1e-5)
    logged = [{key: entry[key] for key in LOGGED[1:6]} for entry in one.state.log_history[:STEPS]]
    for mine, theirs in zip(logged, four.state.log_history, strict=False):
        assert mine == pytest.approx({key: theirs[key] for key in mine}, abs=1e-4)


def test_all_weight_on_the_strong_logits_is_plain_sft(tmp_path):
    mixed = trained(tmp_path / "mixed", strong_weight=1.0)
    (tmp_path / "plain").mkdir()
    plain = SFTTrainer(model=tiny_model(seed=1), **common(tmp_path / "plain"))
    fit(plain)
    assert losses(mixed) == pytest.approx(losses(plain), abs=1e-5)
    torch.testing.assert_close(weights(mixed.model.strong), weights(plain.model), rtol=0, atol=1e-5)
    assert_equal(weights(mixed.model.weak), weights(tiny_model(seed=2)))


def test_a_frozen_weak_model_stays_as_it_was_bit_for_bit(tmp_path):
    trainer = trained(tmp_path / "run", weak_trainable=False)
    assert_equal(weights(trainer.model.weak), weights(tiny_model(seed=2)))
    strong = weights(tiny_model(seed=1))
    assert all(not torch.equal(after, strong[name]) for name, after in weights(trainer.model.strong).items())
    held = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert not held & {id(p) for p in trainer.model.weak.parameters()}
    assert all("weak_grad_norm" not in entry for entry in trainer.state.log_history)


def test_every_step_logs_what_is_worth_knowing_about_both_branches(run):
    _, folder = run
    rows = list(read_jsonl(folder / METRICS))
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        assert all(math.isfinite(row[key]) for key in LOGGED)
        assert all(0 <= row[key] <= 1 for key in ("mixed_probability", "strong_probability", "margin_share"))
        assert row["loss"] <= 0.42 * row["strong_loss"] + 0.58 * row["weak_loss"] + 1e-4  # convexity
        assert row["grad_norm"] == pytest.approx(math.hypot(row["strong_grad_norm"], row["weak_grad_norm"]), rel=1e-4)


def test_the_first_logged_line_equals_a_direct_computation(run):
    _, folder = run
    first = next(read_jsonl(folder / METRICS))
    totals, tokens = {"strong_loss": 0.0, "weak_loss": 0.0}, 0
    order = training_order(len(ROWS), epochs=1, batch_size=BATCH, seed=RECIPE.seed, phase=1)
    for row in ROWS.select(order[:BATCH]):
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor([row["labels"]])
        count = (labels[:, 1:] != -100).sum().item()
        tokens += count
        for key, seed in (("strong_loss", 1), ("weak_loss", 2)):
            totals[key] += tiny_model(seed=seed)(input_ids=ids, labels=labels).loss.item() * count
    assert first["tokens"] == tokens
    assert {key: first[key] for key in totals} == pytest.approx({k: v / tokens for k, v in totals.items()}, abs=1e-4)


@pytest.mark.parametrize("weak_trainable", [True, False], ids=["joint", "frozen"])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(weak_trainable, run, tmp_path):
    whole = run[0] if weak_trainable else trained(tmp_path / "whole", weak_trainable=False)
    killed = trained(tmp_path / "run", weak_trainable=weak_trainable, callbacks=[StopAt(4)])
    assert killed.state.global_step == 4
    resumed = trained(tmp_path / "run", weak_trainable=weak_trainable)
    assert resumed.state.global_step == STEPS
    assert_equal(both(resumed), both(whole))
    assert losses(resumed) == losses(whole)
    assert [row["step"] for row in read_jsonl(tmp_path / "run" / METRICS)] == list(range(1, STEPS + 1))


def test_a_checkpoint_that_was_not_written_to_its_end_is_not_resumed_from(run, tmp_path):
    trained(tmp_path / "run", callbacks=[StopAt(4)])
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "checkpoint-4" / "complete").unlink()
    assert last_complete_checkpoint(checkpoints) == checkpoints / "checkpoint-2"
    assert_equal(both(trained(tmp_path / "run")), both(run[0]))


def test_checkpoints_hold_both_models(run):
    trainer, folder = run
    last = last_complete_checkpoint(folder / "checkpoints")
    assert last.name == f"checkpoint-{STEPS}"
    strong, weak = (AutoModelForCausalLM.from_pretrained(path) for path in (last, last / "weak"))
    assert_equal(weights(strong), weights(trainer.model.strong))
    assert_equal(weights(weak), weights(trainer.model.weak))


def test_the_saved_model_is_an_ordinary_strong_checkpoint(run, tmp_path):
    trainer, _ = run
    trainer.save_model(str(tmp_path / "final"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert_equal(weights(loaded), weights(trainer.model.strong))
    assert not (tmp_path / "final" / "weak").exists()
    assert (tmp_path / "final" / "tokenizer.json").is_file()


@pytest.mark.parametrize("branch", ["strong", "weak"])
def test_a_weight_that_is_not_a_number_stops_training_at_its_step(branch, tmp_path):
    trainer = joint(tmp_path / "run")
    with torch.no_grad():
        next(getattr(trainer.model, branch).parameters())[5] = math.nan
    with pytest.raises(UserError, match=r"diverged: at step 1 the loss is nan .* Lower learning_rate"):
        fit(trainer)


class Poison(TrainerCallback):
    """Spoils one weight of a branch at the end of a step."""

    def __init__(self, step, branch="strong", value=math.nan):
        self.step, self.branch, self.value = step, branch, value

    def on_step_end(self, args, state, control, model, **kwargs):
        if state.global_step == self.step:
            next(getattr(model, self.branch).parameters()).data[5] = self.value


def test_a_later_divergence_names_its_step(tmp_path):
    with pytest.raises(UserError, match="at step 4 the loss is nan"):
        trained(tmp_path / "run", callbacks=[Poison(3)])
    assert last_complete_checkpoint(tmp_path / "run" / "checkpoints").name == "checkpoint-2"


@pytest.mark.parametrize("branch, value", [("strong", math.nan), ("weak", math.nan), ("strong", math.inf)])
def test_a_checkpoint_with_a_weight_that_is_not_finite_is_never_complete(branch, value, run, tmp_path):
    with pytest.raises(UserError, match=r"diverged: at step 4 a weight is not finite\. Lower learning_rate"):
        trained(tmp_path / "run", callbacks=[Poison(4, branch, value)])
    assert last_complete_checkpoint(tmp_path / "run" / "checkpoints").name == "checkpoint-2"
    assert_equal(both(trained(tmp_path / "run")), both(run[0]))


def test_adapters_are_refused(tmp_path):
    with pytest.raises(UserError, match="peft_config is not supported"):
        WDJTTrainer(tiny_model(seed=1), tiny_model(seed=2), peft_config=object(), **common(tmp_path))


@pytest.mark.parametrize("loss, norm", [(math.inf, 1.0), (math.nan, 1.0), (1.0, math.inf), (1.0, math.nan)])
def test_either_a_loss_or_a_gradient_that_is_not_finite_stops_training_and_is_written_down(loss, norm, tmp_path):
    logs = {"loss": loss, "grad_norm": norm, "learning_rate": 0.1}
    with pytest.raises(UserError, match=f"at step 7 the loss is {loss} and the gradient norm {norm}"):
        PhaseCallback(tmp_path, Progress()).on_log(None, TrainerState(global_step=7), None, logs=logs)
    assert [row["step"] for row in read_jsonl(tmp_path / METRICS)] == [7]
