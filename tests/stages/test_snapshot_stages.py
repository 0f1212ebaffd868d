"""Snapshots in a run: saved, evaluated, made again when lost, and used as the weak model of the first round."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from recipe_cases import parse
from run_files import put, put_active, put_scores
from small_runs import Recorder, run_small, small_recipe
from weakdriven.diagnose.diagnose import diagnose_run, read_diagnosis
from weakdriven.errors import UserError
from weakdriven.models.load import fingerprint
from weakdriven.pipeline.run import run_recipe
from weakdriven.report import accuracy_rows, load_run
from weakdriven.report.selection_explained import load_selection
from weakdriven.runs.directory import Progress
from weakdriven.runs.files import digest, read_json
from weakdriven.wmss import trainer as joint

SIZES = [f"{phase}.{name}=4" for phase in ("sft", "joint") for name in ("batch_size", "micro_batch_size")]
TINY = ["data.limit=16", "eval.limit=1", "eval.max_new_tokens=2", *SIZES]
KEPT = [*TINY, "sft.snapshots=[0.25, 0.75]", "joint.snapshots=[0.5]", "joint.rounds=2", "selection.match_steps=true"]
WEAK = [*KEPT, "joint.weak_snapshot=0.25", "eval.snapshots=true", "baselines=[]"]


@pytest.fixture(scope="module")
def weak_run(tmp_path_factory):
    """A run of two rounds whose first weak model is a snapshot, its recorder, and the weak weights of each round."""
    begun, fit = [], joint.fit

    def watch(trainer):
        begun.append({name: weight.detach().clone() for name, weight in trainer.pair.weak.state_dict().items()})
        return fit(trainer)

    root = tmp_path_factory.mktemp("runs") / "weak"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "fit", watch)
        return root, run_small(root, *WEAK), begun


def test_round_one_trains_with_the_snapshot_as_weak_model_and_round_two_with_m1(weak_run):
    root, recorder, begun = weak_run
    trained = [stage for stage in recorder.ran if not stage.startswith("eval/")]
    before = ["data", "sft", "entropy/sft-at-25", "entropy/sft", "round-1/active", "round-1/strong"]
    assert trained == [*before, "entropy/round-1", "round-2/active", "round-2/strong"]
    for weak, folder in zip(begun, (root / "sft/snapshots/25", root / "sft"), strict=True):
        saved = load_file(folder / "model.safetensors")
        assert all(torch.equal(weak[name], saved[name]) for name in saved)
    first, second = (read_json(root / f"round-{turn}/strong/manifest.json") for turn in (1, 2))
    assert first["settings"]["weak_model"] == "sft-at-25" and "weak_model" not in second["settings"]
    key = read_json(root / "sft/manifest.json")["key"]
    assert (first["inputs"]["weak"], second["inputs"]["weak"]) == (digest([key, 25]), key)
    chosen = read_json(root / "round-1/active/manifest.json")
    assert chosen["inputs"]["weak_scores"] == read_json(root / "entropy/sft-at-25/manifest.json")["key"]


def test_snapshots_are_evaluated_in_the_order_of_training(weak_run):
    root, recorder, _ = weak_run
    asked = [stage.split("/")[1] for stage in recorder.ran if stage.startswith("eval/")]
    order = ["base", "sft-at-25", "sft-at-75", "sft", "round-1-at-50", "round-1", "round-2-at-50", "round-2"]
    assert asked == order
    rows = accuracy_rows(root)
    assert [row["model"] for row in rows] == order
    assert "round 1, after 50%" in rows[4]["name"]


def test_a_snapshot_loads_like_any_other_model(weak_run):
    root, _, _ = weak_run
    for folder in (root / "sft/snapshots/75", root / "round-1/strong/snapshots/50"):
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.use_cache and (folder / "tokenizer.json").is_file()
        assert fingerprint(folder) != fingerprint(folder.parents[1])


def test_report_and_diagnosis_name_the_snapshot_as_weak_model(weak_run):
    root, _, _ = weak_run
    assert load_selection(root, 1).models == ("sft-at-25", "sft")
    assert load_selection(root, 2).models == ("sft", "round-1")
    rounds = load_run(root)["rounds"]
    assert [(one["weak"], one["strong"]) for one in rounds] == [("sft-at-25", "sft"), ("sft", "round-1")]
    assert all(one["points"] for one in rounds)
    found = read_diagnosis(diagnose_run(root, Progress(), examples=4, round_number=1))
    assert found["logits"]["facts"]["roles"]["weak"] == "sft-at-25"
    assert found["gradients"]["pairs"]["before"]["weak"] == "sft-at-25"
    assert [one["weak"] for one in found["drift"]["rounds"]] == ["sft-at-25", "sft", "round-1"]
    assert [one["model"] for one in found["drift"]["models"]] == ["base", "sft", "round-1", "round-2"]


def test_a_deleted_snapshot_is_made_again_identically(weak_run, tmp_path):
    root = Path(shutil.copytree(weak_run[0], tmp_path / "run"))
    before = load_file(root / "sft/snapshots/75/model.safetensors")
    shutil.rmtree(root / "sft/snapshots/75")
    assert run_small(root, *WEAK).ran == {"sft": "snapshots/75 is missing"}
    after = load_file(root / "sft/snapshots/75/model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_a_run_without_snapshots_has_the_same_m1(weak_run, tmp_path):
    root = tmp_path / "plain"
    run_small(root, *TINY, "selection.enabled=false", "eval.benchmarks=[]", "baselines=[]")
    one, other = (load_file(run / "sft/model.safetensors") for run in (root, weak_run[0]))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (root / "sft/snapshots").exists()


@pytest.mark.slow
def test_snapshots_of_adapters_are_adapters_over_one_base(tmp_path):
    options = ["lora.rank=4", "eval.benchmarks=[]", "baselines=[]", "joint.rounds=1", "joint.weak=frozen"]
    run_small(tmp_path / "run", *KEPT, "joint.weak_snapshot=0.25", *options)
    for folder in ("sft/snapshots/25", "round-1/strong/snapshots/50"):
        config = read_json(tmp_path / "run" / folder / "adapter_config.json")
        assert config["base_model_name_or_path"].startswith("/") and config["inference_mode"] is True
        assert not (tmp_path / "run" / folder / "model.safetensors").exists()
    weak = read_json(tmp_path / "run/round-1/strong/manifest.json")["settings"]
    assert (weak["weak_model"], weak["weak"]) == ("sft-at-25", "frozen")


@pytest.mark.slow
def test_controls_keep_their_own_snapshots_and_share_the_weak_model(tmp_path):
    recorder = Recorder()
    recipe = small_recipe(*WEAK, "method=wdjt_only", "baselines=[sft]", "joint.rounds=1", "eval.benchmarks=[]")
    run_recipe(recipe, tmp_path / "run", recorder)
    for stage, kept in (("sft", ["25", "75"]), ("wdjt_only", ["50"])):
        folders = sorted(path.name for path in (tmp_path / "run/baselines" / stage / "snapshots").iterdir())
        assert folders == kept
    assert read_json(tmp_path / "run/baselines/wdjt_only/manifest.json")["settings"]["weak_model"] == "sft-at-25"


def test_two_snapshots_on_one_step_are_an_error_before_training(tmp_path):
    for override, answer in {
        "sft.snapshots=[0.25, 0.3]": "sft: the snapshot at 0.3 falls on step 1 of 4",
        "joint.snapshots=[0.95]": "joint: the snapshot at 0.95 falls on step 4 of 4, as does the end",
    }.items():
        with pytest.raises(UserError, match=answer):
            run_small(tmp_path / "run", *KEPT, override)
        assert not (tmp_path / "run/sft").exists()


@pytest.mark.parametrize(
    "overrides, answer",
    [
        (["joint.weak_snapshot=0.5"], "joint.weak_snapshot is 0.5, which is not in sft.snapshots"),
        (
            ["joint.weak_snapshot=0.5", "sft.snapshots=[0.5]", "sft.model=some/m1"],
            "joint.weak_snapshot is a snapshot of phase 1, which sft.model skips",
        ),
        (["eval.snapshots=true"], "eval.snapshots is set"),
        (["sft.snapshots=[0.5, 0.5]"], "sft.snapshots: expected fractions in ascending order"),
        (["joint.snapshots=[0.333]"], "joint.snapshots: expected fractions between 0 and 1"),
    ],
)
def test_a_recipe_with_snapshots_that_it_does_not_save_is_an_error(overrides, answer):
    with pytest.raises(UserError) as caught:
        parse(*overrides)
    assert answer in str(caught.value)


def test_a_selection_is_explained_by_the_weak_model_in_its_manifest(tmp_path):
    put(tmp_path / "run.json", {"recipe": "r"})
    settings = {"consolidation": 0.0, "difficulty": 1.0, "repair": 0.0, "formula": "paper", "multiplier": 1.0}
    manifest = {"key": "k", "settings": settings | {"weak_model": "sft-at-50"}, "counters": {}}
    put(tmp_path / "round-1/active/manifest.json", manifest)
    put_scores(tmp_path, "sft-at-50", ["a", "b"], [0.9, 0.1])
    put_scores(tmp_path, "sft", ["a", "b"], [0.75, 0.25])
    put_active(tmp_path, 1, ["a", "b"], [0.75, 0.25], [1, 0])
    selection = load_selection(tmp_path)
    assert selection.models == ("sft-at-50", "sft") and selection.entropies[0].tolist() == [0.9, 0.1]
    assert selection.note == ""
