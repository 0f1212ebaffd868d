"""Scores from training: those of a scan if the weights stand still, for any batches, through a kill and a resume."""

import numpy as np
import pytest

from helpers import embedded_tokenizer, tiny_model, token_rows
from weakdriven.config.recipe import DataSettings, Recipe, SftSettings
from weakdriven.runs.directory import Progress
from weakdriven.training.phase import Phase
from weakdriven.training.sft import train_supervised
from weakdriven.wmss.entropy import score_dataset
from weakdriven.wmss.training_scores import TrainingScores

COUNT, EPOCHS = 26, 2
ROWS = token_rows(COUNT).add_column("id", [f"row-{i}" for i in range(COUNT)]).add_column("truncated", [False] * COUNT)
SETTINGS = {"batch_size": 8, "micro_batch_size": 4, "gradient_checkpointing": False}
RECIPE = Recipe(model="embedded:base", data=DataSettings(path="embedded:arithmetic", max_length=16), precision="fp32")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")

    def train(name="run", model=None, **changes):
        work = tmp_path / name / ".work" / "sft" / "work"
        work.mkdir(parents=True, exist_ok=True)
        scores = TrainingScores(work, ROWS, EPOCHS)
        phase = Phase("sft", 0, EPOCHS, work, Progress(), watchers=(scores,))
        settings = SftSettings(**SETTINGS | changes)
        train_supervised(model or tiny_model("llama"), embedded_tokenizer(), ROWS, settings, RECIPE, phase)
        return scores.table()

    return train


@pytest.mark.parametrize("packing", [False, True])
def test_weights_that_stand_still_give_the_scores_of_a_scan(trained, packing):
    found = trained(learning_rate=1e-12, packing=packing)
    scan = score_dataset(tiny_model("llama"), ROWS)
    rows = found["row"].to_numpy()
    assert len(set(rows)) == len(rows) == COUNT // 8 * 8, "an epoch has whole steps; what it leaves out has no scores"
    for name in ("id", "tokens", "truncated"):
        assert found[name].to_pylist() == scan[name].take(rows).to_pylist()
    for name in ("entropy", "nll", "target_probability"):
        assert found[name].to_numpy() == pytest.approx(scan[name].to_numpy()[rows], abs=1e-5)


def test_rows_have_the_scores_of_their_last_step(trained):
    """At a high rate the first epoch's entropies are far from the second's, which are near the trained model's."""
    model = tiny_model("llama")
    before = score_dataset(model, ROWS)["entropy"].to_numpy()
    found = trained(model=model, learning_rate=1e-2)
    after, rows = score_dataset(model, ROWS)["entropy"].to_numpy(), found["row"].to_numpy()
    moved = np.abs(after - before)[rows].mean()
    assert np.abs(found["entropy"].to_numpy() - after[rows]).mean() < 0.5 * moved


class Killed(Exception):
    pass


@pytest.mark.parametrize("step", [4, 5])
def test_a_killed_training_resumes_to_the_same_scores(trained, step, monkeypatch):
    whole = trained("whole", save_steps=2, learning_rate=1e-3)
    monkeypatch.setattr(TrainingScores, "on_step_begin", ends_at(step, TrainingScores.on_step_begin))
    with pytest.raises(Killed):
        trained("killed", save_steps=2, learning_rate=1e-3)
    monkeypatch.undo()
    assert trained("killed", save_steps=2, learning_rate=1e-3).equals(whole)


def ends_at(step, original):
    def begin(self, args, state, control, **kwargs):
        if state.global_step == step:
            raise Killed
        return original(self, args, state, control, **kwargs)

    return begin
