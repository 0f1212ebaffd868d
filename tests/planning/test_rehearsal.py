"""Two steps of every training stage before the first long one: what they find, and that they change nothing."""

import hashlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets.arrow_writer import ArrowWriter

from small_runs import Recorder, small_recipe
from weakdriven.errors import UserError
from weakdriven.models.load import EMBEDDED, load_model, locate_model
from weakdriven.pipeline.run import RunOptions, all_stages, carry_out, select_recipe
from weakdriven.planning.rehearsal import Rehearsal, resumes
from weakdriven.runs.directory import TOKENS, WORK
from weakdriven.runs.files import write_json
from weakdriven.runs.stage import Stage
from weakdriven.stages.model_loader import Model
from weakdriven.stages.workload import Workload
from weakdriven.training.evaluation import same_random_numbers

SHORT = ("eval.benchmarks=[]", "data.limit=16", "sft.save_steps=50", "joint.save_steps=50")


class Notes(Recorder):
    @property
    def rehearsed(self) -> list[str]:
        return [text.split()[1] for text in self.notes if text.startswith("rehearsed")]


def compute(work: Path, out: Path) -> dict:
    return {}


def run_short(root: Path, *overrides: str, rehearsal: bool = True, work=all_stages) -> Notes:
    """Without a report, which is not what is looked at here."""
    notes = Notes()
    carry_out(small_recipe(*SHORT, *overrides), root, notes, work, options=RunOptions(rehearsal=rehearsal))
    return notes


def weights(root: Path) -> dict[str, str]:
    files = sorted([*root.glob("**/*.safetensors"), *root.glob("**/*.parquet")])
    return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_rehearsal_changes_no_bit_of_the_results(tmp_path):
    notes = run_short(tmp_path / "with")
    run_short(tmp_path / "without", rehearsal=False)
    found = weights(tmp_path / "with")
    assert found == weights(tmp_path / "without") and "round-1/strong/model.safetensors" in found
    assert notes.rehearsed == ["entropy/base", "sft", "round-1/strong"]  # the SFT baseline is like sft
    assert [path.name for path in (tmp_path / "with" / WORK).iterdir()] == ["lock"]
    assert run_short(tmp_path / "with").rehearsed == []  # all is done


def test_a_fault_that_only_long_rows_have_is_found_before_the_first_stage(tmp_path, monkeypatch):
    decoder = type(load_model(locate_model(EMBEDDED), precision="fp32").base_model)
    forward = decoder.forward

    def faulty(self, input_ids=None, **kwargs):
        if self.training and input_ids.shape[1] > 110:
            raise UserError(f"a row of {input_ids.shape[1]} tokens is too long")
        return forward(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(decoder, "forward", faulty)
    notes, recipe = Notes(), small_recipe(*SHORT, "data.limit=32")
    with pytest.raises(UserError, match="too long"):
        carry_out(recipe, tmp_path / "run", notes, all_stages, options=RunOptions(rehearsal=True))
    assert list(notes.ran) == ["data"]
    assert not (tmp_path / "run/sft").exists() and not (tmp_path / "run/entropy").exists()
    assert [path.name for path in (tmp_path / "run" / WORK).iterdir()] == ["lock"]


class Enough(Exception):
    """Raised where the first stage would be trained: what comes after a rehearsal is not looked at."""


def only_rehearsed(root: Path, monkeypatch, *overrides: str) -> list[str]:
    notes = Notes()

    def work(stages):
        if stages.run.computes:
            raise Enough
        all_stages(stages)

    with pytest.raises(Enough):
        carry_out(
            small_recipe(*SHORT, "baselines=[]", *overrides), root, notes, work, options=RunOptions(rehearsal=True)
        )
    return notes.rehearsed


@pytest.mark.parametrize(
    "overrides, stages",
    [
        (["lora={rank: 4}", "joint.rounds=2"], ["entropy/base", "sft", "round-1/strong"]),
        pytest.param(["method=undial"], ["sft", "baselines/undial"], marks=pytest.mark.slow),
        pytest.param(["method=dpo"], ["sft", "baselines/dpo"], marks=pytest.mark.slow),
        pytest.param(["method=ssb"], ["sft", "baselines/ssb"], marks=pytest.mark.slow),
    ],
    ids=["adapters", "a teacher", "pairs", "stored logits"],
)
def test_a_model_that_is_not_trained_yet_is_rehearsed_with_a_stand_in(tmp_path, monkeypatch, overrides, stages):
    assert only_rehearsed(tmp_path / "run", monkeypatch, *overrides) == stages


def test_on_a_cpu_a_rehearsal_is_opt_in(tmp_path, no_gpu, monkeypatch):
    def refused(*_):
        raise AssertionError("rehearsed")

    monkeypatch.setattr("weakdriven.pipeline.run.rehearse", refused)
    recipe = small_recipe(*SHORT, "sft.model=embedded:base")
    assert select_recipe(recipe, tmp_path / "run", Notes())
    with pytest.raises(AssertionError, match="rehearsed"):
        carry_out(recipe, tmp_path / "run", Notes(), all_stages, options=RunOptions(rehearsal=True))


def test_a_stage_that_resumes_from_a_checkpoint_is_not_rehearsed(tmp_path):
    checkpoint = tmp_path / WORK / "round-1--strong/work/checkpoints/checkpoint-2"
    checkpoint.mkdir(parents=True)
    resumed = partial(resumes, tmp_path)
    assert not resumed(Workload("round-1/strong", "train"), "key")
    (checkpoint / "complete").write_text("2\n")
    assert not resumed(Workload("round-1/strong", "train"), "key")
    write_json(checkpoint.parents[2] / "state.json", {"key": "key"})
    assert resumed(Workload("round-1/strong", "train"), "key") and not resumed(Workload("sft", "train"), "key")
    assert not resumed(Workload("round-1/strong", "train"), "another key")


@pytest.mark.parametrize("running, stays", [({"sft"}, False), ({"round-1/strong", "sf"}, True)])
def test_a_model_whose_stage_runs_again_is_rehearsed_with_a_stand_in(tmp_path, running, stays):
    """As when a finished run of whole models gets `lora`: there is no adapter in their folders."""
    base = Model("base", tmp_path / "elsewhere", "base")
    stages: Any = SimpleNamespace(run=SimpleNamespace(root=tmp_path), base=base, recipe=small_recipe())
    rehearsal = Rehearsal(stages, Stage("data", tmp_path, compute), tmp_path / "folder", running)
    model = Model("sft", tmp_path / "sft", "old")
    for one in (model, model.at(50)):
        one.folder.mkdir(parents=True)
        (one.folder / "model.safetensors").touch()
        assert rehearsal.present(one) == (one if stays else base)


@pytest.mark.parametrize("batch, micro", [(16, 8), (32, 1)])
def test_micro_batches_of_a_drawn_set_below_a_batch_have_one_row(tmp_path, batch, micro):
    """Of 32 rows some 20 are drawn: a whole batch of 16, or less than one of 32."""
    recipe = small_recipe(f"joint.batch_size={batch}", "joint.micro_batch_size=8")
    rows = {"input_ids": [[1] * (i + 2) for i in range(32)], "labels": [[1] * (i + 2) for i in range(32)]}
    with ArrowWriter(path=str(tmp_path / TOKENS)) as writer:
        writer.write_batch(rows)
        writer.finalize()
    stages: Any = SimpleNamespace(recipe=recipe)
    rehearsal = Rehearsal(stages, Stage(".", tmp_path, compute), tmp_path / "folder", set())
    settings, longest = rehearsal.shortened(
        Workload("round-1/strong", "train", recipe.joint, active=True), recipe.joint
    )
    assert (settings.micro_batch_size, settings.batch_size, len(longest)) == (micro, 2 * micro, 2 * micro)
    assert len(longest[0]["input_ids"]) == 33


def test_a_rehearsal_restores_the_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with same_random_numbers():
        torch.rand(7)
        torch.manual_seed(9)
    assert torch.equal(torch.rand(2), expected)
