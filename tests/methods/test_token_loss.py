"""Training with another loss on SFT's tokens: against SFT where the two are one, and against dense logits."""

from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional as F
from trl.trainer.sft_trainer import SFTTrainer

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from weakdriven.config.recipe import DataSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.errors import UserError
from weakdriven.methods import token_loss
from weakdriven.methods.other_loss import AdjustedLogits, NoisedLogits, OtherLoss, ScaledLogits
from weakdriven.runs.directory import METRICS, Progress
from weakdriven.runs.files import read_jsonl
from weakdriven.training.phase import Phase
from weakdriven.training.sft import train_supervised
from weakdriven.training.variant import PLAIN

RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="fp32")
SMALL = {"batch_size": 4, "micro_batch_size": 2, "learning_rate": 2e-3, "gradient_checkpointing": False}
ROWS = token_rows(12)
NOISE = {"site": "target_logit", "sign": "signed", "seed": (42, 0)}


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains a fresh tiny model; gives its weights and what was logged at each step."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")

    def trained(loss=None, teacher=None, rows=ROWS, recipe=RECIPE, **changes):
        name = str(len(list(tmp_path.glob("run/.work/*"))))
        work = tmp_path / "run" / ".work" / name / "work"
        work.mkdir(parents=True)
        model, settings = tiny_model(), TrainSettings(**(SMALL | changes))
        phase = Phase("sft", 0, 1, work, Progress())
        variant = PLAIN if loss is None else OtherLoss(loss=loss)
        train_supervised(model, embedded_tokenizer(), rows, settings, recipe, phase, variant, teacher)
        return weights(model), list(read_jsonl(work / METRICS))

    return trained


def columns(rows, *names):
    return [[row[name] for name in names] for row in rows]


@pytest.mark.parametrize(
    "loss",
    [ScaledLogits(1.0), NoisedLogits(1e-9, **NOISE)],
    ids=["scale-1", "sigma-tiny"],
)
def test_a_loss_that_is_cross_entropy_trains_as_sft_does(train, loss):
    (_, plain), (_, own) = train(), train(loss)
    for ours, theirs in zip(columns(own, "loss", "grad_norm"), columns(plain, "loss", "grad_norm"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert columns(own, "num_tokens") == columns(plain, "num_tokens")


def test_a_loss_is_scaled_once_whatever_trl_declares(train, monkeypatch):
    _, plain = train()
    monkeypatch.setattr(SFTTrainer, "loss_is_scaled_for_ga", False, raising=False)
    _, own = train(ScaledLogits(1.0))
    assert columns(own, "loss") == [pytest.approx(row, rel=1e-4) for row in columns(plain, "loss")]


def test_a_step_whose_tokens_were_not_counted_raises(train, monkeypatch):
    uncounted = lambda self, *args: (SFTTrainer.get_batch_samples(self, *args)[0], None)  # noqa: E731
    monkeypatch.setattr(token_loss.TokenLossTrainer, "get_batch_samples", uncounted)
    with pytest.raises(UserError, match=r"did not call Trainer.get_batch_samples"):
        train(ScaledLogits(1.0))


def test_a_model_that_is_its_own_teacher_with_strength_zero_does_not_move(train):
    trained, rows = train(AdjustedLogits(strength=0.0, ce_weight=0.0), teacher=tiny_model())
    assert [row["grad_norm"] for row in rows] == [0, 0, 0]
    assert all(row["teacher_probability"] == pytest.approx(row["adjusted_probability"]) for row in rows)
    assert all(torch.equal(value, trained[name]) for name, value in weights(tiny_model()).items())


def test_a_teacher_runs_in_the_attention_of_training(train, monkeypatch):
    teacher, within = tiny_model(), []

    @contextmanager
    def watched(model):
        within.append(model)
        yield
        within.append(None)

    monkeypatch.setattr(token_loss, "trained_attention", watched)
    teacher.register_forward_pre_hook(lambda *_: within.append("asked"))
    teacher.model.register_forward_pre_hook(lambda *_: within.append("asked"))
    train(AdjustedLogits(strength=1.0, ce_weight=0.5), teacher=teacher)
    *_, asked_before, entered = within[: within.index(teacher) + 1]
    assert asked_before == "asked", "when its head was looked at"
    assert entered is teacher and within[-1] is None and within[within.index(teacher) + 1 : -1] == ["asked"] * 6


def test_the_first_gradient_of_undial_is_that_of_dense_logits(train):
    teacher = tiny_model(seed=5)
    _, rows = train(AdjustedLogits(strength=3.0, ce_weight=0.5), teacher, rows=token_rows(4), max_grad_norm=1e9)
    model, losses, tokens = tiny_model(), [], 0
    for row in token_rows(4):
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])[1:]
        kept = labels != -100
        own, target = model(ids).logits[0, :-1][kept], labels[kept]
        with torch.no_grad():
            lowered = teacher(ids).logits[0, :-1][kept] - 3.0 * F.one_hot(target, own.shape[1])
        losses.append(
            -(lowered.softmax(-1) * own.log_softmax(-1)).sum() + 0.5 * F.cross_entropy(own, target, reduction="sum")
        )
        tokens += len(target)
    loss = torch.stack(losses).sum() / tokens
    loss.backward()
    norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
    assert rows[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert rows[0]["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert all(weight.grad is None for weight in teacher.parameters())


@pytest.mark.parametrize("site", ["target_logit", pytest.param("logits", marks=pytest.mark.slow)])
def test_noise_depends_on_the_seed_and_not_on_micro_batches(train, site):
    loss = NoisedLogits(20.0, **NOISE | {"site": site})
    (_, ones), (_, fours) = train(loss, micro_batch_size=1), train(loss, micro_batch_size=4)
    for one, four in zip(columns(ones, "loss", "clean_loss"), columns(fours, "loss", "clean_loss"), strict=True):
        assert one == pytest.approx(four, rel=1e-4)
    _, other = train(NoisedLogits(20.0, **NOISE | {"site": site, "seed": (43, 0)}))
    assert other[0]["loss"] != ones[0]["loss"] and other[0]["clean_loss"] == pytest.approx(ones[0]["clean_loss"])


def test_noise_changes_from_step_to_step(train):
    twice = token_rows(1).select([0, 0])
    _, rows = train(NoisedLogits(20.0, **NOISE), rows=twice, learning_rate=1e-12, batch_size=1, micro_batch_size=1)
    assert rows[0]["clean_loss"] == pytest.approx(rows[1]["clean_loss"])
    assert rows[0]["noised_loss"] != pytest.approx(rows[1]["noised_loss"], rel=1e-3)


@pytest.mark.parametrize("loss", [ScaledLogits(0.5), AdjustedLogits(1.0, 0.0)], ids=["scaled", "undial"])
def test_our_losses_run_under_mixed_precision_and_with_checkpointing(train, loss):
    mixed = RECIPE.model_copy(update={"precision": "bf16-mixed"})
    teacher = tiny_model(seed=5)
    (_, wide), (_, narrow) = (
        train(loss, teacher),
        train(loss, teacher, recipe=mixed, gradient_checkpointing=True),
    )
    assert narrow[0]["loss"] == pytest.approx(wide[0]["loss"], rel=0.05)


def test_a_resumed_training_has_the_noise_of_an_uninterrupted_one(train, tmp_path, monkeypatch):
    loss, rows = NoisedLogits(20.0, **NOISE), token_rows(32)
    whole, logged = train(loss, rows=rows, save_steps=3)
    work = tmp_path / "run" / ".work" / "killed" / "work"
    work.mkdir(parents=True)
    phase, settings = Phase("sft", 0, 1, work, Progress()), TrainSettings(**SMALL, save_steps=3)

    def kill(done, total, **values):
        if done == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(phase.progress, "update", kill)
        train_supervised(tiny_model(), embedded_tokenizer(), rows, settings, RECIPE, phase, OtherLoss(loss=loss))
    model = tiny_model()
    train_supervised(model, embedded_tokenizer(), rows, settings, RECIPE, phase, OtherLoss(loss=loss))
    assert all(torch.equal(value, whole[name]) for name, value in weights(model).items())
    resumed = list(read_jsonl(work / METRICS))
    assert columns(resumed, "loss", "noised_loss") == columns(logged, "loss", "noised_loss") and len(resumed) == 8
