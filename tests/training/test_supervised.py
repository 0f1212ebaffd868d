"""What every phase gives its trainer and leaves behind."""

import errno
import json
import os
from collections import defaultdict
from threading import Event

import pytest
import torch

from helpers import embedded_tokenizer, tiny_model, token_rows, weights
from weakdriven.config.recipe import DataSettings, JointSettings, Recipe
from weakdriven.config.settings import TrainSettings
from weakdriven.errors import UserError
from weakdriven.runs.directory import METRICS, Progress
from weakdriven.runs.files import read_jsonl
from weakdriven.runs.signals import Stopped
from weakdriven.training import callbacks
from weakdriven.training.arguments import training_order
from weakdriven.training.callbacks import PhaseCallback
from weakdriven.training.checkpoints import seal, step_of, usable_checkpoint
from weakdriven.training.phase import Phase
from weakdriven.training.sft import save_model, train_supervised
from weakdriven.wmss.trainer import train_joint

RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic"), precision="fp32")
ROWS = token_rows(10)
SMALL = {"batch_size": 4, "micro_batch_size": 2, "learning_rate": 2e-3, "gradient_checkpointing": False}


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """Work folder of a stage of a run; what a phase sets for trackers is undone."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    folder = tmp_path / "run" / ".work" / "sft" / "work"
    folder.mkdir(parents=True)
    return folder


def phase(work, *, stage="sft", number=0, epochs=1):
    return Phase(stage, number, epochs, work, Progress())


@pytest.mark.parametrize("number", [0, 1])
def test_a_phase_gives_its_trainer_the_rows_in_its_own_order(number, work):
    given = phase(work, number=number, epochs=2).prepare(ROWS, TrainSettings(**SMALL), RECIPE)
    order = training_order(10, epochs=2, batch_size=4, seed=RECIPE.seed, phase=number).reshape(-1, 4)
    found = given["train_dataset"].to_list()
    assert len(found) == order.size
    for step, rows in enumerate(order):
        longest_first = sorted((ROWS[int(row)] for row in rows), key=lambda row: -len(row["input_ids"]))
        assert found[4 * step : 4 * step + 4] == longest_first
    assert given["args"].output_dir == str(work / "checkpoints") and given["args"].ddp_find_unused_parameters is False
    assert [type(callback) for callback in given["callbacks"]] == [PhaseCallback]


def test_a_trainer_sees_nothing_of_a_row_but_ids_and_labels(work):
    rows = ROWS.add_column("truncated", [False] * len(ROWS))
    given = phase(work).prepare(rows, TrainSettings(**SMALL), RECIPE)
    assert given["train_dataset"].column_names == ["input_ids", "labels"]


def test_trackers_write_to_the_folder_of_the_run(work):
    phase(work, stage="round-1/strong").prepare(ROWS, TrainSettings(**SMALL), RECIPE)
    run = work.parents[2]
    assert run.name == "run"
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(run / "trackers" / "round-1" / "strong")


@pytest.mark.parametrize("rows, epochs, steps", [(10, 2, 4), (3, 1, 1)])
def test_both_kinds_of_training_count_steps_rows_and_parameters(rows, epochs, steps, work):
    model, dataset = tiny_model(seed=1), token_rows(rows)
    size = sum(weight.numel() for weight in model.parameters())
    expected = {"steps": steps, "rows": steps * min(rows, 4)}
    settings = TrainSettings(**SMALL)
    counted = train_supervised(model, embedded_tokenizer(), dataset, settings, RECIPE, phase(work, epochs=epochs))
    logged = list(read_jsonl(work / METRICS))
    assert counted == {**expected, "parameters": size, "trained_tokens": logged[-1]["num_tokens"]}
    assert [row["step"] for row in logged] == list(range(1, steps + 1))
    other = work.with_name("other")
    other.mkdir()
    for weak, parts in (("joint", 2), ("frozen", 1)):
        strong, settings = tiny_model(seed=1), JointSettings(**SMALL, weak=weak)
        at = phase(other / weak, stage="round-1/strong", number=1, epochs=epochs)
        at.work.mkdir()
        counted = train_joint(strong, tiny_model(seed=2), embedded_tokenizer(), dataset, settings, RECIPE, at)
        tokens = parts * list(read_jsonl(at.work / METRICS))[-1]["num_tokens"]  # each model that learns reads each
        assert counted == {**expected, "parameters": parts * size, "trained_tokens": tokens}


def test_each_kind_of_checkpointing_gives_the_same_weights(work):
    trained = {}
    for kind in (False, True, "keep_products"):
        settings, at = TrainSettings(**(SMALL | {"gradient_checkpointing": kind})), phase(work.with_name(str(kind)))
        at.work.mkdir()
        model = tiny_model()
        train_supervised(model, embedded_tokenizer(), ROWS, settings, RECIPE, at)
        assert model.is_gradient_checkpointing is bool(kind)
        trained[kind] = weights(model)
    for name, value in trained[False].items():
        assert torch.equal(trained[True][name], value) and torch.equal(trained["keep_products"][name], value)


def test_a_phase_of_one_step_learns_at_the_full_rate(work):
    settings = TrainSettings(**SMALL, warmup_ratio=0.5)
    train_supervised(tiny_model(), embedded_tokenizer(), token_rows(3), settings, RECIPE, phase(work))
    assert [row["learning_rate"] for row in read_jsonl(work / METRICS)] == [SMALL["learning_rate"]]


@pytest.mark.parametrize("precision, dtype", [("fp32", torch.float32), ("bf16-mixed", torch.bfloat16)])
def test_a_saved_model_generates_with_a_cache_and_its_stop_ids(precision, dtype, work, tmp_path):
    model, tokenizer, out = tiny_model(), embedded_tokenizer(), tmp_path / "out"
    (work / METRICS).write_text("{}\n")
    model.config.use_cache = False  # as training leaves it
    save_model(model, tokenizer, out, work=work, precision=precision, stop_ids=[1, 2])
    config = json.loads((out / "config.json").read_text())
    assert config["use_cache"] is True
    loaded = type(model).from_pretrained(out)
    assert loaded.dtype == dtype
    assert loaded.generation_config.eos_token_id == [1, 2]
    assert model.dtype == torch.float32 and model.config.use_cache is False  # it may continue training
    assert all(torch.equal(value, weights(model)[name].to(dtype)) for name, value in weights(loaded).items())
    assert (out / METRICS).is_file() and (out / "tokenizer.json").is_file()


class Steps(Progress):
    """Announces each step that was logged; `fail` is a step at which training fails."""

    def __init__(self, fail=None, error=None):
        self.logged, self.fail, self.error = defaultdict(Event), fail, error

    def update(self, done, total, **facts):
        self.logged[done].set()
        if done == self.fail:
            raise self.error


def saved_every_second_step(work, steps):
    settings = TrainSettings(**SMALL, save_steps=2)
    at = Phase("sft", 0, 4, work, steps)  # eight steps; a whole model has no checkpoint at the last one
    return train_supervised(tiny_model(), embedded_tokenizer(), ROWS, settings, RECIPE, at)


def test_without_save_steps_no_checkpoint_is_written_not_even_on_a_signal(work, monkeypatch):
    settings = TrainSettings(**SMALL, save_steps=0)
    train_supervised(tiny_model(), embedded_tokenizer(), ROWS, settings, RECIPE, phase(work, epochs=2))
    assert not list((work / "checkpoints").iterdir())
    monkeypatch.setattr(callbacks, "stop_requested", lambda: "SIGTERM")
    with pytest.raises(Stopped):
        train_supervised(tiny_model(), embedded_tokenizer(), ROWS, settings, RECIPE, phase(work, epochs=2))
    assert not list((work / "checkpoints").iterdir())


def marked(folder):
    return sorted(path.parent.name for path in folder.glob("*/complete"))


def test_checkpoints_are_sealed_while_training_goes_on_and_one_before_the_next_is_written(work, monkeypatch):
    steps, folder, seen = Steps(), work / "checkpoints", []

    def slow(checkpoint):
        before = sorted(path.name for path in folder.glob("checkpoint-*")), marked(folder)
        seen.append((steps.logged[step_of(checkpoint) + 1].wait(20), *before))
        seal(checkpoint)

    monkeypatch.setattr(callbacks, "seal", slow)
    saved_every_second_step(work, steps)
    two, four, six = (f"checkpoint-{step}" for step in (2, 4, 6))
    assert seen == [(True, [two], []), (True, [two, four], [two]), (True, [two, four, six], [two, four])]
    assert marked(folder) == [four, six] and not (folder / two).exists()


@pytest.mark.parametrize("fault, sentence", [("torn", "right after it was written"), ("full", "The disk is full: sft")])
def test_a_checkpoint_that_cannot_be_sealed_ends_training_and_keeps_the_one_before(fault, sentence, work, monkeypatch):
    def fail(checkpoint):
        if step_of(checkpoint) == 4 and fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if step_of(checkpoint) == 4:
            os.truncate(checkpoint / "model.safetensors", 70)
        seal(checkpoint)

    monkeypatch.setattr(callbacks, "seal", fail)
    with pytest.raises(UserError, match=sentence):
        saved_every_second_step(work, Steps())
    assert usable_checkpoint(work / "checkpoints", Progress()) == work / "checkpoints/checkpoint-2"


@pytest.mark.parametrize("error", [UserError("the fault of this step"), KeyboardInterrupt])
def test_an_error_or_ctrl_c_in_training_leaves_the_checkpoint_before_it_sealed(error, work, monkeypatch):
    steps = Steps(fail=3, error=error)

    def slow(checkpoint):
        steps.logged[3].wait(20)
        seal(checkpoint)

    monkeypatch.setattr(callbacks, "seal", slow)
    with pytest.raises((UserError, KeyboardInterrupt)):
        saved_every_second_step(work, steps)
    assert marked(work / "checkpoints") == ["checkpoint-2"]
