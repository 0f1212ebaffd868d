"""The pipeline on the embedded model: order, pairing, reuse, ablations, files on disk."""

import json
import shutil
from importlib import metadata
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig

from helpers import embedded_tokenizer
from run_files import put
from small_runs import run_small, small_recipe
from weakdriven.models.load import locate_model
from weakdriven.pipeline.run import hub_models
from weakdriven.runs.files import read_jsonl
from weakdriven.wmss.score_files import read_scores


def manifest(root: Path, stage: str) -> dict:
    return json.loads((root / stage / "manifest.json").read_text())


def test_stages_run_once_in_the_order_of_the_algorithm(two_round_run):
    root, recorder = two_round_run
    trained = [stage for stage in recorder.ran if not stage.startswith("eval/")]
    first = ["data", "entropy/base", "sft", "entropy/sft", "round-1/active", "round-1/strong"]
    assert trained == [*first, "entropy/round-1", "round-2/active", "round-2/strong", "baselines/sft"]
    assert [entry.name for entry in recorder.planned] == list(recorder.ran)
    again = run_small(root, "joint.rounds=2")
    assert (again.ran, again.skipped) == ({}, list(recorder.ran))


def test_round_two_pairs_m1_with_m2_and_reuses_the_entropies_of_m1(two_round_run):
    root, _ = two_round_run
    inputs = manifest(root, "round-2/strong")["inputs"]
    assert inputs["weak"] == manifest(root, "sft")["key"]
    assert inputs["strong"] == manifest(root, "round-1/strong")["key"]
    chosen = manifest(root, "round-2/active")["inputs"]
    assert chosen["weak_scores"] == manifest(root, "entropy/sft")["key"]
    assert chosen["weak_scores"] == manifest(root, "round-1/active")["inputs"]["strong_scores"]
    assert chosen["strong_scores"] == manifest(root, "entropy/round-1")["key"]


def test_a_run_records_which_of_its_models_came_from_the_hub(two_round_run, tmp_path, monkeypatch):
    assert json.loads((two_round_run[0] / "run.json").read_text())["hub_models"] == []
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "models/tiny/config.json", {})
    for model, expected in (("models/tiny", []), ("owner/name", ["owner/name"]), ("embedded:base", [])):
        assert hub_models(small_recipe(f"model={model}")) == expected


def test_the_strong_folder_loads_and_generates_like_any_other(two_round_run):
    root, _ = two_round_run
    folder = root / "round-1" / "strong"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "Tom has 5 pens. Tom buys 3 more. How many pens does Tom have now?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    text = tokenizer.decode(model.generate(**inputs, max_new_tokens=32)[0])
    assert text.startswith("<|im_start|>user\nTom has 5 pens.") and len(text) > 100
    assert model.config.tie_word_embeddings and "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert not (folder / "weak").exists()


def test_the_manifest_holds_what_a_reader_needs_to_trust_a_stage(two_round_run):
    root, _ = two_round_run
    record = manifest(root, "round-1/strong")
    assert record["settings"]["strong_weight"] == 0.5 and record["settings"]["weak"] == "joint"
    assert record["seed"] == 42 and record["versions"]["torch"] == metadata.version("torch")
    assert record["wall_seconds"] > 0 and record["peak_memory_bytes"] > 1e8
    active = manifest(root, "round-1/active")["counters"]
    assert record["counters"]["steps"] == max(active["active"] // 16, 1)
    assert {"term_shares", "p_cv", "effective_sample_size", "expected_unique", "falling", "rising"} <= active.keys()
    data = manifest(root, "data")["counters"]
    assert data["examples"] == 48 and data["truncated"] == 0


def test_every_step_of_joint_training_logs_its_metrics(two_round_run):
    root, _ = two_round_run
    rows = list(read_jsonl(root / "round-1/strong/metrics.jsonl"))
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    wanted = {"loss", "strong_loss", "weak_loss", "mixed_probability", "strong_probability", "margin_share"}
    wanted |= {"strong_grad_norm", "weak_grad_norm", "grad_norm", "learning_rate", "tokens"}
    assert all(wanted <= row.keys() for row in rows)
    assert all(row["loss"] <= 0.5 * row["strong_loss"] + 0.5 * row["weak_loss"] + 1e-6 for row in rows)  # convexity


def test_every_example_is_scored_once_and_the_drawn_rows_are_the_active_set(two_round_run):
    root, _ = two_round_run
    ids = [row["id"] for row in read_jsonl(root / "data/examples.jsonl")]
    for model in ("base", "sft", "round-1"):
        assert read_scores(root / f"entropy/{model}/scores.parquet")["id"].to_pylist() == ids
    active = pq.read_table(root / "round-1/active/active.parquet").to_pylist()
    assert [row["id"] for row in active] == ids
    assert sum(row["draws"] for row in active) == manifest(root, "round-1/active")["counters"]["active"]
    assert sum(row["probability"] for row in active) == pytest.approx(1)


def test_a_changed_setting_runs_the_stages_it_touches_with_the_reason(two_round_run, tmp_path):
    root = Path(shutil.copytree(two_round_run[0], tmp_path / "run"))
    changes = ["selection.repair=0.2", "eval.batch_size=7", "sft.micro_batch_size=8", "eval.benchmarks=[]"]
    again = run_small(root, "joint.rounds=2", *changes)
    assert again.ran["round-1/active"] == "repair 0.1 -> 0.2"
    assert again.ran["round-1/strong"] == "input active changed"
    assert again.ran["entropy/round-1"] == "input model changed"
    assert {"data", "sft", "entropy/base", "entropy/sft", "baselines/sft"} <= set(again.skipped)
    assert not list((root / ".work").glob("*--*"))


FEW = ["data.limit=16", "baselines=[]", "eval.benchmarks=[]"]
FEW += [f"{phase}.{name}=8" for phase in ("sft", "joint") for name in ("batch_size", "micro_batch_size")]


@pytest.fixture(scope="session")
def small_run(once) -> Path:
    """A run on few examples whose stages the ablations reuse."""
    return once("few-examples", lambda root: run_small(root, *FEW))[0]


@pytest.mark.parametrize(
    "override, stages",
    [
        ("selection.enabled=false", ["data", "sft", "round-1/strong"]),
        ("joint.enabled=false", ["data", "entropy/base", "sft", "entropy/sft", "round-1/active", "round-1/strong"]),
        ("method=sft", ["data", "baselines/sft"]),
    ],
)
def test_ablations_leave_out_their_stages(tmp_path, small_run, override, stages):
    assert list(run_small(tmp_path / "run", *FEW, override, siblings=[small_run]).ran) == stages


def test_a_frozen_weak_model_stays_as_it_was_and_can_be_saved(tmp_path, small_run):
    root = tmp_path / "run"
    run_small(root, *FEW, "joint.weak=frozen", "joint.save_weak=true", siblings=[small_run])
    kept = load_file(root / "round-1/strong/weak/model.safetensors")
    base = load_file(locate_model("embedded:base") / "model.safetensors")
    assert all(torch.equal(kept[name], base[name]) for name in base)


def strong_weights(root: Path) -> dict[str, torch.Tensor]:
    return load_file(root / "round-1/strong/model.safetensors")


def test_a_given_m1_skips_phase_one(tmp_path, small_run):
    recorder = run_small(tmp_path / "run", *FEW, f"sft.model={small_run / 'sft'}", siblings=[small_run])
    assert list(recorder.ran) == ["data", "entropy/base", "entropy/sft", "round-1/active", "round-1/strong"]
    ours, theirs = strong_weights(tmp_path / "run"), strong_weights(small_run)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_all_weight_on_the_strong_logits_is_sft_on_the_active_set(tmp_path, small_run):
    for name, override in {"one": "joint.strong_weight=1", "off": "joint.enabled=false"}.items():
        run_small(tmp_path / name, *FEW, override, siblings=[small_run])
    one, off = strong_weights(tmp_path / "one"), strong_weights(tmp_path / "off")
    assert all(torch.equal(one[name], off[name]) for name in one)


@pytest.fixture
def experts(tmp_path) -> str:
    """A folder with a mixture of experts that asks for a load-balancing loss."""
    sizes = {"vocab_size": 448, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "moe_intermediate_size": 8, "num_experts": 4}
    options = {"num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**sizes, **options))
    model.save_pretrained(tmp_path / "experts")
    embedded_tokenizer().save_pretrained(tmp_path / "experts")
    return str(tmp_path / "experts")


def test_a_mixture_of_experts_trains_without_its_load_balancing_loss_in_every_phase(experts, caplog, tmp_path):
    short = ["data.limit=8", "baselines=[sft_restart]", "eval.benchmarks=[]"]
    recorder = run_small(tmp_path / "run", f"model={experts}", *short)
    assert {"sft", "round-1/strong", "baselines/sft_restart"} < recorder.ran.keys()
    assert "No phase trains with its load-balancing loss" in caplog.text
    for stage in ("sft", "round-1/strong", "baselines/sft_restart"):
        logged = read_jsonl(tmp_path / "run" / stage / "metrics.jsonl")
        assert logged and not any("aux_loss" in line for line in logged)
        assert json.loads((tmp_path / "run" / stage / "config.json").read_text())["router_aux_loss_coef"] == 0
        assert manifest(tmp_path / "run", stage)["settings"]["router_aux_loss_coef"] == 0
