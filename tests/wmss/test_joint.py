"""WDJTTrainer on tiny models: equivalences, what is logged, what is saved, resuming."""

import json
import math
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback, TrainerState
from trl.trainer.sft_trainer import SFTTrainer

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from weakdriven.config.recipe import DataSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.errors import UserError
from weakdriven.runs.directory import METRICS, Progress
from weakdriven.runs.files import read_jsonl
from weakdriven.training.arguments import training_order
from weakdriven.training.callbacks import PhaseCallback
from weakdriven.training.checkpoints import checkpoints, last_complete_checkpoint
from weakdriven.training.phase import Phase, fit
from weakdriven.wmss.trainer import WDJTConfig, WDJTTrainer

BATCH, STEPS = 4, 6
RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="fp32")
ROWS = token_rows(BATCH * STEPS)
LOGGED = [
    "loss",
    "mixed_loss",
    "strong_loss",
    "weak_loss",
    "mixed_probability",
    "strong_probability",
    "margin_share",
    "mixed_entropy",
    "strong_entropy",
    "weak_entropy",
    "strong_gap",
    "strong_grad_norm",
    "weak_grad_norm",
    "strong_weight",
    "tokens",
    "num_tokens",
]


class StopAt(TrainerCallback):
    """Stops training after a step, as a kill does that leaves the checkpoint of that step behind."""

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


def joint(folder, *, options=None, shape=None, **mixing):
    """A trainer of two tiny models; `options` are of `common`, `shape` of `tiny_model`, the rest of WDJTConfig."""
    folder.mkdir(exist_ok=True)
    strong, weak = (tiny_model(seed=seed, **(shape or {})) for seed in (1, 2))
    made = common(folder, **(options or {}))
    made["args"] = WDJTConfig.of(made["args"], **{"strong_weight": 0.42, **mixing})
    trainer = WDJTTrainer(strong, weak_model=weak, **made)
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, Poison):
            callback.pair = trainer.pair
    return trainer


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
    """An uninterrupted run of six steps, and its folder."""
    folder = tmp_path_factory.mktemp("joint") / "run"
    return trained(folder), folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The same run stopped after step 4, and its folder."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    return trained(folder, options={"callbacks": [StopAt(4)]}), folder


@pytest.fixture
def copy(stopped, tmp_path):
    """A copy of the stopped run's folder, to resume in."""
    return shutil.copytree(stopped[1], tmp_path / "copy")


def test_both_models_learn_and_the_data_sets_the_number_of_steps(run):
    trainer, _ = run
    assert trainer.state.global_step == len(losses(trainer)) == STEPS
    start = {**weights(tiny_model(seed=1)), **{f"weak.{k}": v for k, v in weights(tiny_model(seed=2)).items()}}
    assert all(not torch.equal(after, start[name]) for name, after in both(trainer).items())


def test_accumulating_micro_batches_equals_one_batch(tmp_path):
    one, four = (trained(tmp_path / str(size), options={"micro_batch_size": size}) for size in (4, 1))
    assert (one.args.gradient_accumulation_steps, four.args.gradient_accumulation_steps) == (1, 4)
    assert losses(one) == pytest.approx(losses(four), abs=1e-5)
    torch.testing.assert_close(both(one), both(four), rtol=0, atol=1e-5)
    logged = [{key: entry[key] for key in LOGGED[:11]} for entry in one.state.log_history[:STEPS]]
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
    weak = {key for entry in mixed.state.log_history for key in entry if "weak" in key or key == "margin_share"}
    assert weak == set()


def test_every_step_logs_the_statistics_of_both_models(run):
    _, folder = run
    rows = list(read_jsonl(folder / METRICS))
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        assert all(math.isfinite(row[key]) for key in LOGGED)
        assert all(0 <= row[key] <= 1 for key in ("mixed_probability", "strong_probability", "margin_share"))
        assert row["loss"] <= 0.42 * row["strong_loss"] + 0.58 * row["weak_loss"] + 1e-4  # convexity
        assert row["loss"] == pytest.approx(row["mixed_loss"], abs=1e-5)
        assert row["strong_gap"] == pytest.approx(row["strong_loss"] - row["mixed_loss"], abs=1e-6)
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


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(run, stopped, copy):
    whole, (killed, _) = run[0], stopped
    assert killed.state.global_step == 4
    resumed = trained(copy)
    assert resumed.state.global_step == STEPS
    assert_equal(both(resumed), both(whole))
    assert losses(resumed) == losses(whole)
    assert [row["step"] for row in read_jsonl(copy / METRICS)] == list(range(1, STEPS + 1))


def test_a_resumed_schedule_weak_rate_token_count_and_gap_equal_uninterrupted_ones(tmp_path):
    mixing = {"strong_weight": 0.4, "strong_weight_end": 1.0, "strong_weight_schedule": "cosine"}
    mixing |= {"weak_learning_rate": 1e-4, "weight_decay": 0.1, "logging_steps": 3}  # no checkpoint where a log is
    whole = trained(tmp_path / "whole", **mixing)
    trained(tmp_path / "run", **mixing, options={"callbacks": [StopAt(4)]})
    kept = json.loads((tmp_path / "run" / "checkpoints" / "checkpoint-4" / "pair.json").read_text())
    assert kept["strong_weight"] == pytest.approx(0.7) and kept["strong_weight_end"] == 1.0
    resumed = trained(tmp_path / "run", **mixing)
    assert_equal(both(resumed), both(whole))
    assert resumed._gap.state() == whole._gap.state() and len(resumed._gap.current) == STEPS
    assert resumed._total_train_tokens == whole._total_train_tokens > 0
    assert resumed.state.log_history[1]["num_tokens"] == whole.state.log_history[1]["num_tokens"]


def test_a_frozen_weak_model_stays_as_it_was_also_in_a_resumed_run(tmp_path):
    trainer = trained(tmp_path / "whole", weak_trainable=False)
    assert_equal(weights(trainer.model.weak), weights(tiny_model(seed=2)))
    strong = weights(tiny_model(seed=1))
    assert all(not torch.equal(after, strong[name]) for name, after in weights(trainer.model.strong).items())
    held = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert not held & {id(p) for p in trainer.model.weak.parameters()}
    assert all("weak_grad_norm" not in entry for entry in trainer.state.log_history)
    trained(tmp_path / "run", weak_trainable=False, options={"callbacks": [StopAt(4)]})
    assert_equal(both(trained(tmp_path / "run", weak_trainable=False)), both(trainer))


def test_eight_bit_optimizer_state_with_a_weak_rate_and_a_schedule_resumes_bit_for_bit(monkeypatch, tmp_path):
    pytest.importorskip("torchao")
    monkeypatch.setattr("torch.compile", lambda function, **options: function)  # compiling torchao's step is slow

    def run(folder, **options):
        mixing = {"strong_weight_end": 1.0, "weak_learning_rate": 2e-4}
        shape = {"width": 64, "num_hidden_layers": 1}
        return trained(folder, shape=shape, options={"optimizer": "adamw_8bit", **options}, **mixing)

    whole = run(tmp_path / "whole")
    kinds = {type(value).__name__ for state in whole.optimizer.state.values() for value in state.values()}
    assert "OptimState8bit" in kinds
    run(tmp_path / "run", callbacks=[StopAt(4)])
    resumed = run(tmp_path / "run")
    assert_equal(both(resumed), both(whole))
    rates = [[group["lr"] for group in trainer.optimizer.param_groups] for trainer in (whole, resumed)]
    assert rates[0] == rates[1] and losses(resumed) == losses(whole)


def test_an_incomplete_checkpoint_is_not_resumed_from(run, copy):
    (copy / "checkpoints" / "checkpoint-4" / "complete").unlink()
    assert last_complete_checkpoint(copy / "checkpoints") == copy / "checkpoints" / "checkpoint-2"
    assert_equal(both(trained(copy)), both(run[0]))


def test_the_last_step_writes_no_checkpoint_because_the_model_itself_follows(run):
    assert [path.name for path in checkpoints(run[1] / "checkpoints")] == ["checkpoint-4", "checkpoint-2"]


def test_checkpoints_hold_both_models(stopped):
    trainer, folder = stopped
    last = last_complete_checkpoint(folder / "checkpoints")
    assert last.name == "checkpoint-4"
    strong, weak = (AutoModelForCausalLM.from_pretrained(path) for path in (last, last / "weak"))
    assert_equal(weights(strong), weights(trainer.model.strong))
    assert_equal(weights(weak), weights(trainer.model.weak))


def test_the_saved_model_is_an_ordinary_strong_checkpoint(run, tmp_path):
    trainer, folder = run
    assert "WD-JT" in (folder / "checkpoints" / "README.md").read_text()
    trainer.save_model(str(tmp_path / "final"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert_equal(weights(loaded), weights(trainer.model.strong))
    assert not (tmp_path / "final" / "weak").exists()
    assert (tmp_path / "final" / "tokenizer.json").is_file()


@pytest.mark.parametrize("branch, other, max_grad_norm", [("strong", "weak", 1.0), ("weak", "strong", 0.0)])
def test_a_loss_that_is_nan_names_its_model_before_the_optimizer_moves(branch, other, max_grad_norm, tmp_path):
    trainer = joint(tmp_path / "run", max_grad_norm=max_grad_norm)
    with torch.no_grad():
        next(getattr(trainer.model, branch).parameters())[5] = math.nan
    before = both(trainer)
    message = (
        rf"at step 1: the {branch} model's cross-entropy is nan \({other}: \d\.\d+\).* Lower learning_rate.* bf16=False"
    )
    with pytest.raises(UserError, match=message):
        fit(trainer)
    assert all(torch.equal(before[name].nan_to_num(7), after.nan_to_num(7)) for name, after in both(trainer).items())


@pytest.mark.parametrize("branch, max_grad_norm", [("strong", 0.0), ("weak", 1.0)])
def test_a_gradient_that_is_not_finite_names_its_model_before_the_optimizer_moves(branch, max_grad_norm, tmp_path):
    trainer = joint(tmp_path / "run", max_grad_norm=max_grad_norm)
    weight = next(getattr(trainer.model, branch).parameters())
    weight.register_hook(lambda gradient: gradient * math.inf if trainer.state.global_step == 2 else gradient)
    kept = {}
    trainer.add_callback(Watch(lambda model: kept.update(both(trainer))))
    with pytest.raises(UserError, match=rf"at step 3: the {branch} model's gradient norm is nan"):
        fit(trainer)
    assert_equal(both(trainer), kept)


class Watch(TrainerCallback):
    """Calls a function with the model after each step."""

    def __init__(self, look):
        self.look = look

    def on_step_end(self, args, state, control, model, **kwargs):
        self.look(model)


class Poison(TrainerCallback):
    """Overwrites one weight of a model at the end of a step; `joint` gives it the pair."""

    def __init__(self, step, branch="strong", value=math.nan):
        self.step, self.branch, self.value = step, branch, value

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            next(getattr(self.pair, self.branch).parameters()).data[5] = self.value


def test_a_later_divergence_names_its_step(tmp_path):
    with pytest.raises(UserError, match="diverged at step 4: the strong model's cross-entropy is nan"):
        trained(tmp_path / "run", options={"callbacks": [Poison(3)]})
    assert last_complete_checkpoint(tmp_path / "run" / "checkpoints").name == "checkpoint-2"


@pytest.mark.parametrize("branch", ["strong", "weak"])
def test_a_weight_that_is_not_finite_after_the_last_step_is_an_error(branch, tmp_path):
    with pytest.raises(UserError, match=rf"diverged: at step {STEPS} a weight is not finite"):
        trained(tmp_path / "run", options={"callbacks": [Poison(STEPS, branch)]})


def test_a_checkpoint_with_a_weight_that_is_not_finite_is_never_complete(run, tmp_path):
    with pytest.raises(UserError, match=r"diverged: at step 4 a weight is not finite"):
        trained(tmp_path / "run", options={"callbacks": [Poison(4, "weak", math.inf)]})
    assert last_complete_checkpoint(tmp_path / "run" / "checkpoints").name == "checkpoint-2"
    assert_equal(both(trained(tmp_path / "run")), both(run[0]))


def test_the_mixture_follows_its_schedule_and_is_logged(tmp_path):
    trainer = trained(tmp_path / "run", strong_weight=0.4, strong_weight_end=1.0)
    logged = [entry["strong_weight"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx([0.4 + 0.6 * step / STEPS for step in range(STEPS)])


def test_the_weak_model_learns_at_its_own_rate_with_the_same_schedule(tmp_path):
    slow = joint(tmp_path / "slow", weak_learning_rate=2e-4, weight_decay=0.1)
    rates = []
    slow.add_callback(Rates(rates))
    fit(slow)
    held = {
        id(p): (group["initial_lr"], group["weight_decay"])
        for group in slow.optimizer.param_groups
        for p in group["params"]
    }
    assert len(held) == len(list(slow.model.parameters()))
    for branch, rate in ((slow.model.strong, 2e-3), (slow.model.weak, 2e-4)):
        for name, weight in branch.named_parameters():
            assert held[id(weight)] == (rate, 0.0 if "norm" in name else 0.1)
    assert all(rate[0] == pytest.approx(10 * rate[-1]) for rate in rates) and rates[0][0] > rates[-1][0]


class Rates(TrainerCallback):
    def __init__(self, rates):
        self.rates = rates

    def on_pre_optimizer_step(self, args, state, control, optimizer, **kwargs):
        self.rates.append([group["lr"] for group in optimizer.param_groups])


def test_an_anchor_is_part_of_the_loss_and_of_nothing_else(run, tmp_path):
    anchored = trained(tmp_path / "run", strong_anchor=0.5)
    first, plain = anchored.state.log_history[0], run[0].state.log_history[0]
    same = ("mixed_loss", "strong_loss", "weak_loss", "strong_gap")
    assert {key: first[key] for key in same} == pytest.approx({key: plain[key] for key in same}, abs=1e-6)
    assert first["loss"] == pytest.approx(plain["loss"] + 0.5 * plain["strong_loss"], abs=1e-5)
    found = anchored.evaluate(ROWS)
    assert found["eval_loss"] == pytest.approx(found["eval_mixed_loss"] + 0.5 * found["eval_strong_loss"], rel=1e-6)


def test_a_growing_gap_is_warned_of_on_the_main_process_only(monkeypatch, tmp_path):
    monkeypatch.setattr("weakdriven.wmss.gap.GapWatch.grows", lambda self, gap: gap != 0)
    with pytest.warns(UserWarning, match=r"falls behind the mixture.*strong_weight_end=1.0"):
        trained(tmp_path / "run", options={"callbacks": [StopAt(1)]})
    monkeypatch.setattr(WDJTTrainer, "is_world_process_zero", lambda self: False)
    with warnings.catch_warnings(record=True) as caught:
        trained(tmp_path / "other", options={"callbacks": [StopAt(1)]})
    assert not any("falls behind" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("loss, norm", [(math.inf, 1.0), (1.0, math.nan)])
def test_a_loss_or_gradient_that_is_not_finite_stops_training_and_is_logged(loss, norm, tmp_path):
    logs = {"loss": loss, "grad_norm": norm, "learning_rate": 0.1}
    callback = PhaseCallback(tmp_path, Progress(), "sft", TrainSettings(), RECIPE)
    with pytest.raises(UserError, match=f"at step 7 the loss is {loss} and the gradient norm {norm}"):
        callback.on_log(None, TrainerState(global_step=7), None, logs=logs)
    assert [row["step"] for row in read_jsonl(tmp_path / METRICS)] == [7]
