"""Which stages a change touches, read from the keys of dry runs; everything else is reused."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import write_rows
from recipe_cases import stage_keys as keys
from weakdriven.data.demo import demo_rows
from weakdriven.models.load import locate_model

BASE = locate_model("embedded:base")
TRAINED = {"sft", "entropy/sft", "round-1/active", "round-1/strong", "baselines/sft"}
TRAINED |= {f"eval/{model}/arithmetic" for model in ("sft", "round-1", "baseline-sft")}
ALL = TRAINED | {"data", "entropy/base", "eval/base/arithmetic"}
EVALUATIONS = {name for name in ALL if name.startswith("eval/")}
ROUND = {"round-1/active", "round-1/strong", "eval/round-1/arithmetic"}
JOINT = ["optimizer=adamw_8bit", "strong_weight=0.3", "strong_weight_end=1", "weak_learning_rate=1e-6", "weak=frozen"]
JOINT += ["save_weak=true", "snapshots=[0.5]"]
SELECTION = ["consolidation=0.2", "difficulty=0.7", "repair=0.2", "formula=official", "multiplier=2", "dedup=false"]


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


def change_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] += 1e-3
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.fixture
def model(tmp_path) -> Path:
    """A copy of the embedded model that a test may change."""
    return Path(shutil.copytree(BASE, tmp_path / "model"))


@pytest.fixture
def rows(tmp_path) -> Path:
    return Path(write_rows(tmp_path / "rows.jsonl", demo_rows("train")[:8]))


@pytest.mark.parametrize(
    "overrides, touched",
    [
        (
            ["data.limit=95", "data.max_length=255", "data.split=test", "data.empty_completions=drop"],
            ALL - {"eval/base/arithmetic"},
        ),
        (["data.style=tagged", "data.system_prompt=Be kind."], ALL),
        (["precision=bf16"], ALL - {"data"}),
        (["attention=eager"], ALL - {"data", "entropy/base"}),
        (
            ["seed=43", "sft.learning_rate=1e-4", "sft.epochs=2", "sft.optimizer=adamw_8bit", "sft.snapshots=[0.5]"],
            TRAINED,
        ),
        ([f"joint.{one}" for one in JOINT] + ["selection.match_steps=true"], ROUND - {"round-1/active"}),
        ([f"selection.{one}" for one in SELECTION], ROUND),
        ([f"eval.{one}" for one in ("max_new_tokens=47", "limit=23", "temperature=0.5")], EVALUATIONS),
    ],
    ids=["data", "style", "precision", "attention", "sft", "joint", "selection", "eval"],
)
def test_a_setting_touches_its_stages_and_the_later_ones(overrides, touched):
    for override in overrides:
        assert changed(keys(), keys(override)) == touched, override


def test_another_weak_model_touches_only_the_round_and_its_own_entropies():
    before = keys("sft.snapshots=[0.25, 0.5]")
    after = keys("sft.snapshots=[0.25, 0.5]", "joint.weak_snapshot=0.25")
    assert changed(before, after) == ROUND | {"entropy/base", "entropy/sft-at-25"}


def test_no_snapshots_leave_the_keys_of_older_runs_alone():
    assert keys() == keys("sft.snapshots=[]", "joint.snapshots=[]")


def test_what_changes_speed_or_memory_changes_no_key():
    free = ["eval.batch_size=7", "eval.batching=static", "eval.max_prompt_tokens=400", "selection.batch_tokens=1024"]
    free += [
        f"{phase}.{one}" for phase in ("sft", "joint") for one in ("micro_batch_size=4", "save_steps=9", "packing=true")
    ]
    free += ["sft.logging_steps=3", "sft.gradient_checkpointing=true", "fast_layers=off"]
    for checkpointing in ("true", "keep_products"):
        assert keys(*free, f"joint.gradient_checkpointing={checkpointing}") == keys()


def test_a_setting_at_the_value_it_has_anyway_changes_no_key():
    fixed = ["joint.strong_weight=0.5", "joint.learning_rate=1e-3"]
    same = ["strong_weight_schedule=cosine", "strong_weight_end=0.5", "weak_learning_rate=1e-3"]
    assert keys(*fixed) == keys(*fixed, *(f"joint.{one}" for one in same))


def test_the_source_of_reused_scores_changes_no_key(two_round_run):
    assert keys() == keys(f"selection.reuse=[{two_round_run[0]}]")


def test_what_needs_a_gpu_and_changes_speed_or_memory_changes_no_key(monkeypatch):
    before = keys()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert keys("joint.activation_offloading=true", "fast_layers=liger") == before


def test_a_second_round_leaves_the_first_as_it_was():
    added = {"entropy/round-1", "round-2/active", "round-2/strong", "eval/round-2/arithmetic"}
    longer_control = {"baselines/sft", "eval/baseline-sft/arithmetic"}
    assert changed(keys(), keys("joint.rounds=2")) == added | longer_control
    mixed = changed(keys("joint.rounds=2"), keys("joint.rounds=2", "joint.strong_weight=0.3"))
    assert mixed == added | {"round-1/strong", "eval/round-1/arithmetic"}


def test_the_content_of_the_data_file_touches_all_but_the_evaluation_of_the_base(rows):
    before = keys(f"data.path={rows}")
    rows.write_text(rows.read_text().replace("\n", " \n", 1))
    assert changed(before, keys(f"data.path={rows}")) == ALL - {"eval/base/arithmetic"}


def test_the_spelling_of_a_path_touches_nothing(rows, tmp_path, monkeypatch):
    before = keys(f"data.path={rows}")
    copy = shutil.copy(rows, tmp_path / "copy.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for spelling in ("rows.jsonl", "./rows.jsonl", "~/rows.jsonl", os.path.relpath(rows), copy):
        assert keys(f"data.path={spelling}") == before
    assert keys(f"data.path={rows}", "data.split=other") == before  # a file has no splits


def test_the_chat_template_touches_everything_and_only_by_its_text(tmp_path):
    template = tmp_path / "template.jinja"
    shutil.copy(BASE / "chat_template.jinja", template)
    before = keys(f"chat_template={template}")
    assert before == keys()
    template.write_text(template.read_text().replace("assistant\n", "assistant:\n"))
    assert changed(before, keys(f"chat_template={template}")) == ALL


def test_a_benchmarks_questions_touch_its_evaluations_and_its_golds_only_their_grades(tmp_path):
    items = [{"id": str(i), "question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(1319)]
    overrides = ["eval.benchmarks=[arithmetic, gsm8k]", f"eval.data_dir={tmp_path}"]
    write_rows(tmp_path / "gsm8k.jsonl", items)
    before = keys(*overrides)
    assert before.keys() - ALL == {f"eval/{model}/gsm8k" for model in ("base", "sft", "round-1", "baseline-sft")}
    write_rows(tmp_path / "gsm8k.jsonl", [items[0] | {"answer": "0"}, *items[1:]])
    assert changed(before, keys(*overrides)) == set()
    write_rows(tmp_path / "gsm8k.jsonl", [items[0] | {"question": "What is 1 + 1?"}, *items[1:]])
    assert changed(before, keys(*overrides)) == before.keys() - ALL


def test_the_weights_of_the_base_touch_everything_and_its_path_nothing(model):
    before = keys(f"model={model}")
    assert before == keys()
    change_a_weight(model)
    assert changed(before, keys(f"model={model}")) == ALL


def test_the_weights_of_a_given_m1_touch_what_comes_from_it(model):
    before = keys(f"sft.model={model}")
    assert before.keys() == ALL - {"sft"}
    assert changed(keys(), before) & {"data", "entropy/base", "eval/base/arithmetic", "baselines/sft"} == set()
    change_a_weight(model)
    later = {"entropy/sft", "round-1/active", "round-1/strong", "eval/sft/arithmetic", "eval/round-1/arithmetic"}
    assert changed(before, keys(f"sft.model={model}")) == later


def test_a_given_m1_that_is_the_base_gives_a_warning(model, caplog):
    keys(f"sft.model={model}")
    assert "mixes a model with itself" in caplog.text
    caplog.clear()
    change_a_weight(model)
    keys(f"sft.model={model}")
    assert "mixes a model with itself" not in caplog.text


def test_other_files_in_a_model_folder_change_no_key(model):
    before = keys(f"sft.model={model}")
    (model / "README.md").write_text("A model.")
    (model / "manifest.json").write_text(json.dumps({"stage": "sft"}))
    (model / "built.json").unlink()
    torch.save({}, model / "optimizer.pt")
    assert keys(f"sft.model={model}") == before


BASELINES = "baselines=[sft,neftune,dpo,spin,ssb,sft_compute]"


def test_a_baselines_setting_touches_its_own_stages_alone():
    before = keys(BASELINES)
    for override, touched in {
        "dpo.beta=0.2": {"baselines/dpo"},
        "dpo.rollouts.top_k=5": {"rollouts/sft/dpo", "pairs/dpo", "baselines/dpo"},
        "ssb.temperature=2.0": {"targets/ssb", "baselines/ssb"},
        "ssb.kd_weight=0.7": {"baselines/ssb"},
        "neftune.alpha=1.0": {"baselines/neftune"},
        "neftune.length=padded": {"baselines/neftune"},
        "spin.micro_batch_size=8": set(),
        "sft.micro_batch_size=8": set(),
    }.items():
        found = changed(before, keys(BASELINES, override))
        assert {name for name in found if not name.startswith("eval/")} == touched, override


def test_running_programs_without_the_sandbox_touches_labels_and_what_is_trained_on_them():
    found = changed(keys(BASELINES), keys(BASELINES, "eval.unsafe=true"))
    asked = {name for name in found if name.startswith("rollouts/")}
    assert asked == {"rollouts/sft/dpo", "rollouts/sft/ssb", "rollouts/sft/ssb-hinted"}, "SPIN verifies nothing"
    assert {"baselines/dpo", "baselines/ssb"} < found and "baselines/spin" not in found


def test_noise_by_the_padded_length_depends_on_the_micro_batch():
    padded = [BASELINES, "neftune.length=padded"]
    found = changed(keys(*padded), keys(*padded, "sft.micro_batch_size=8"))
    assert {name for name in found if not name.startswith("eval/")} == {"baselines/neftune"}
