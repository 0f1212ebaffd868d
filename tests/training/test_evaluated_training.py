"""The validation loss during training: it is right, changes no weight, and the best model can be kept by it."""

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from weakdriven.config.recipe import DataSettings, JointSettings, Recipe, SftSettings
from weakdriven.data.tokenize import IGNORE
from weakdriven.methods.token_loss import OtherLoss, ScaledLogits
from weakdriven.runs.directory import METRICS, VALIDATION_LOSS, Progress
from weakdriven.runs.files import read_jsonl
from weakdriven.training.best import BEST, BestCallback, publish_best, saved_models
from weakdriven.training.phase import Phase
from weakdriven.training.sft import PLAIN, save_model, train_supervised
from weakdriven.wmss.trainer import train_joint

RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="fp32")
ROWS, VALIDATION = token_rows(8), token_rows(5, seed=9)
SMALL = {"batch_size": 4, "micro_batch_size": 2, "learning_rate": 2e-3, "gradient_checkpointing": False}
RISING = {"learning_rate": 4e-2, "warmup_ratio": 0.0, "eval_steps": 1}
"""A rate with which the validation loss falls, then rises, over eight steps."""


@pytest.fixture(autouse=True)
def trackers(monkeypatch):
    """What a phase sets for trackers is undone."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")


def phase(root, model, progress=None):
    work = root / ".work" / "sft" / "work"
    work.mkdir(parents=True, exist_ok=True)

    def keep(folder):
        save_model(model, embedded_tokenizer(), folder, precision="fp32", stop_ids=[1])

    return Phase("sft", 0, 4, work, progress or Progress(), keep=keep, validation=VALIDATION)


def supervised(root, *, variant=PLAIN, progress=None, dropout=0.0, **changes):
    """Eight steps of plain SFT, or of another variant."""
    model = tiny_model(seed=1, attention_dropout=dropout)
    at = phase(root, model, progress)
    settings = SftSettings(**(SMALL | changes))
    found = train_supervised(model, embedded_tokenizer(), ROWS, settings, RECIPE, at, variant)
    return model, at.work, found


def joint(root, *, dropout=0.0, **changes):
    pair = [tiny_model(seed=seed, attention_dropout=dropout) for seed in (1, 2)]
    at = phase(root, pair[0])
    train_joint(*pair, embedded_tokenizer(), ROWS, JointSettings(**(SMALL | changes)), RECIPE, at)
    return pair, at.work


@torch.no_grad()
def dense_loss(model):
    """Mean over all supervised tokens of the validation rows, row by row."""
    model.eval()
    total, tokens = 0.0, 0
    for row in VALIDATION:
        target = torch.tensor(row["labels"])[1:]
        logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
        total += F.cross_entropy(logits, target, reduction="sum", ignore_index=IGNORE).item()
        tokens += int((target != IGNORE).sum())
    return total / tokens


def evaluations(work):
    return {row["step"]: row[VALIDATION_LOSS] for row in read_jsonl(work / METRICS) if VALIDATION_LOSS in row}


def same(one, other):
    return all(torch.equal(value, weights(other)[name]) for name, value in weights(one).items())


def test_evaluations_change_no_weight_though_dropout_draws_random_numbers(tmp_path):
    plain, _, _ = supervised(tmp_path / "plain", dropout=0.3)
    evaluated, work, _ = supervised(tmp_path / "evaluated", dropout=0.3, eval_steps=3)
    assert list(evaluations(work)) == [3, 6, 8] and same(plain, evaluated)
    plain, _ = joint(tmp_path / "joint", dropout=0.3)
    evaluated, work = joint(tmp_path / "evaluated-joint", dropout=0.3, eval_steps=0.5)
    assert list(evaluations(work)) == [4, 8] and all(map(same, plain, evaluated))
    other, _, _ = supervised(tmp_path / "other", dropout=0.0)
    assert not same(other, plain[0]), "dropout has to do something for this test to show anything"


@pytest.mark.parametrize(
    "variant, options",
    [(PLAIN, {}), (PLAIN, {"packing": True}), (OtherLoss(loss=ScaledLogits(0.3)), {})],
    ids=["plain", "packed", "other loss"],
)
def test_the_loss_is_that_of_the_model_over_all_tokens(variant, options, tmp_path):
    model, work, _ = supervised(tmp_path, variant=variant, eval_steps=5, **options)
    assert evaluations(work)[8] == pytest.approx(dense_loss(model), rel=1e-5)


def test_in_joint_training_it_is_the_loss_of_the_strong_model(tmp_path):
    (strong, weak), work = joint(tmp_path, eval_steps=5)
    found, one, other = evaluations(work)[8], dense_loss(strong), dense_loss(weak)
    assert found == pytest.approx(one, rel=1e-5) != pytest.approx(other, rel=1e-3)


class Notes(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_an_evaluation_is_shown_and_the_training_losses_are_logged_as_before(tmp_path):
    notes = Notes()
    _, work, _ = supervised(tmp_path, progress=notes, eval_steps=4)
    found = evaluations(work)
    assert notes.notes == [f"step {step} of 8: validation loss {loss:.4f}" for step, loss in found.items()]
    assert [row["step"] for row in read_jsonl(work / METRICS) if "loss" in row] == list(range(1, 9))


class Killed(Progress):
    """Training fails as soon as a step is logged, before its evaluation and its checkpoint."""

    def __init__(self, step):
        self.step = step

    def update(self, done, total, **facts):
        if done == self.step:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    """A training whose best model is neither the first nor the last: work folder, counters, weights of each step."""
    root = tmp_path_factory.mktemp("best")
    _, work, counted = supervised(root, keep="best", save_steps=2, **RISING)
    return work, counted


def published(work, out):
    """Step and model that a stage would publish."""
    found = publish_best(work, out)
    assert (out / METRICS).is_file() and (out / "tokenizer.json").is_file()
    return found["best_step"], AutoModelForCausalLM.from_pretrained(out)


def test_the_model_with_the_lowest_validation_loss_is_published(best, tmp_path):
    work, counted = best
    losses = evaluations(work)
    step, model = published(work, tmp_path / "out")
    assert losses[step] == min(losses.values()) and 1 < step < 8 == counted["steps"]
    assert dense_loss(model) == pytest.approx(losses[step], rel=1e-5)


def test_nothing_is_kept_unless_the_settings_ask_for_the_best(tmp_path):
    _, work, _ = supervised(tmp_path, **RISING)
    assert not (work / BEST).exists()


@pytest.mark.parametrize(
    "killed_at, save_steps",
    [(2, 3), (5, 3), (7, 3), (7, 0), *(pytest.param(step, 0, marks=pytest.mark.slow) for step in (2, 5))],
)
def test_a_training_that_was_killed_publishes_the_same_model(killed_at, save_steps, best, tmp_path):
    options = {"keep": "best", "save_steps": save_steps, **RISING}
    with pytest.raises(KeyboardInterrupt):
        supervised(tmp_path, progress=Killed(killed_at), **options)
    _, work, _ = supervised(tmp_path, **options)
    assert evaluations(work) == evaluations(best[0])
    (step, model), (expected, other) = published(work, tmp_path / "out"), published(best[0], tmp_path / "other")
    assert step == expected and same(model, other)


def test_patience_ends_training_and_a_killed_one_ends_at_the_same_step(best, tmp_path):
    losses = evaluations(best[0])
    lowest = min(losses, key=lambda step: losses[step])
    options = {"keep": "best", "patience": 2, "save_steps": 1, **RISING}
    _, work, counted = supervised(tmp_path, **options)
    assert counted["steps"] == max(evaluations(work)) == lowest + 2 < 8
    assert counted["rows"] == 4 * counted["steps"]
    checkpoints = sorted(path.name for path in (work / "checkpoints").glob("checkpoint-*"))
    assert f"checkpoint-{lowest + 2}" not in checkpoints, "training that resumed from it would take another step"
    _, work, again = supervised(tmp_path, **options)  # killed before the stage was published
    assert again == counted and evaluations(work) == {step: losses[step] for step in range(1, lowest + 3)}
    assert published(work, tmp_path / "out")[0] == lowest


def test_a_model_is_kept_while_training_may_resume_from_where_it_is_the_best(tmp_path):
    callback = BestCallback(tmp_path, lambda folder: None, patience=None)
    for step in (2, 4, 6, 7):
        (tmp_path / BEST / str(step)).mkdir(parents=True)
    callback._tidy([1, 3, 5])
    assert sorted(saved_models(tmp_path / BEST)) == [2, 4, 7]
    callback._tidy([])
    assert sorted(saved_models(tmp_path / BEST)) == [7]
