"""Baselines on the embedded model: start, training rows, number of steps, manifest."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from small_runs import run_small

ALL = (
    "sft,sft_restart,sft_active,sft_compute,uniform_active,scaled_ce,neftune,undial,wdjt_only,wdds_only,wmss_frozen,"
    "wmss_annealed"
)
ROWS, BATCH = 8, 2
SIZES = [f"{phase}.{name}={BATCH}" for phase in ("sft", "joint") for name in ("batch_size", "micro_batch_size")]
QUICK = ["eval.benchmarks=[]", f"data.limit={ROWS}", *SIZES]


def manifest(root: Path, stage: str) -> dict:
    return json.loads((root / stage / "manifest.json").read_text())


def same(one: Path, other: Path) -> bool:
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """WMSS with all baselines, and their recorder."""
    root = tmp_path_factory.mktemp("runs") / "all"
    return root, run_small(root, *QUICK, f"baselines=[{ALL}]")


def test_each_baseline_is_one_stage_and_shared_stages_run_once(everything):
    root, recorder = everything
    names = [name for name in recorder.ran if name.startswith("baselines/") and name.count("-") == 0]
    assert names == [f"baselines/{name}" for name in ALL.split(",")]
    others = [name for name in recorder.ran if name not in names]
    assert others == [
        *("data", "entropy/base", "sft", "entropy/sft", "round-1/active", "round-1/strong"),
        *("baselines/sft_compute-budget", "baselines/uniform_active-active-1"),
    ]
    assert run_small(root, *QUICK, f"baselines=[{ALL}]").ran == {}


def test_the_restart_continues_from_m1_and_differs_from_two_epochs_in_one(everything):
    root, _ = everything
    restart = manifest(root, "baselines/sft_restart")
    assert restart["inputs"]["start"] == manifest(root, "sft")["key"]
    assert (
        restart["counters"]["steps"] + manifest(root, "sft")["counters"]["steps"]
        == (manifest(root, "baselines/sft")["counters"]["steps"])
    )
    assert not same(root / "baselines/sft_restart", root / "baselines/sft")
    assert not same(root / "baselines/sft_restart", root / "sft")


def test_controls_of_the_joint_phase_take_matched_steps(everything):
    root, _ = everything
    theirs = manifest(root, "round-1/strong")
    for name in ("sft_active", "uniform_active", "scaled_ce", "wdds_only", "wmss_frozen", "wmss_annealed"):
        ours = manifest(root, f"baselines/{name}")
        assert ours["counters"]["steps"] == theirs["counters"]["steps"]
        assert ours["counters"]["rows"] == theirs["counters"]["rows"]
        start = "strong" if "strong" in ours["inputs"] else "start"
        assert ours["inputs"][start] == manifest(root, "sft")["key"]
        if name != "uniform_active":
            assert ours["inputs"]["active"] == theirs["inputs"]["active"]


def test_sft_on_the_active_set_is_wmss_without_joint_training_in_one_round(everything):
    root, _ = everything
    assert same(root / "baselines/sft_active", root / "baselines/wdds_only")
    assert not same(root / "baselines/sft_active", root / "baselines/scaled_ce")


def test_a_uniform_draw_has_as_many_rows_as_the_active_set_and_other_ones(everything):
    root, _ = everything
    stages = "round-1/active", "baselines/uniform_active-active-1"
    ours, theirs = (pq.read_table(root / stage / "active.parquet").to_pydict() for stage in stages)
    assert ours["id"] == theirs["id"] and ours["draws"] != theirs["draws"]
    assert sum(ours["draws"]) == sum(theirs["draws"]) == manifest(root, stages[1])["counters"]["active"]
    assert max(theirs["draws"]) == 1
    assert manifest(root, "baselines/uniform_active")["settings"]["strong_weight"] == 0.5


def test_sft_gets_matched_compute(everything):
    root, _ = everything
    tokens = manifest(root, "data")["counters"]["tokens"]
    budget, trained = (manifest(root, f"baselines/sft_compute{part}")["counters"] for part in ("-budget", ""))
    spent = budget["forward_tokens"]
    assert spent["phase_1"] == 3 * tokens and spent["scans"] == 2 * tokens
    seen = [json.loads(line) for line in (root / "round-1/strong/metrics.jsonl").read_text().splitlines()]
    assert spent["rounds"] == 6 * seen[-1]["num_tokens"]
    assert budget["rows"] == round(sum(spent.values()) / (3 * tokens / ROWS))
    assert trained["steps"] == budget["steps"] == budget["rows"] // BATCH


def test_manifests_say_which_variant_ran(everything):
    root, _ = everything
    settings = {name: manifest(root, f"baselines/{name}")["settings"] for name in ALL.split(",")}
    assert settings["neftune"]["neftune"] == {"alpha": 5.0, "length": True}
    assert settings["undial"]["undial"] == {"mode": "adjusted_logits", "strength": 1.0, "ce_weight": 0.0}
    assert settings["scaled_ce"]["strong_weight"] == 0.5
    assert settings["wmss_frozen"]["weak"] == "frozen" and settings["wdjt_only"]["weak"] == "joint"
    ends = {name: settings[name]["strong_weight_end"] for name in ("wmss_annealed", "wmss_frozen")}
    assert ends == {"wmss_annealed": 1.0, "wmss_frozen": None}
    inputs = manifest(root, "baselines/undial")["inputs"]
    assert inputs["teacher"] == inputs["start"] == manifest(root, "sft")["key"]
    assert "active" not in manifest(root, "baselines/wdjt_only")["inputs"]


@pytest.mark.slow
@pytest.mark.parametrize("site", ["", ", site: embedding"])
def test_the_papers_undial_without_noise_is_sft_to_the_last_bit(tmp_path, everything, site):
    root, _ = everything
    run_small(tmp_path, *QUICK, "method=undial", "baselines=[]", f"undial={{mode: paper_noise, sigma: 0{site}}}")
    assert same(tmp_path / "baselines/undial", root / "baselines/sft")


@pytest.mark.parametrize(
    "undial",
    [
        {"site": "target_logit", "sign": "abs"},
        pytest.param({"site": "logits"}, marks=pytest.mark.slow),
        pytest.param({"site": "embedding"}, marks=pytest.mark.slow),
    ],
)
def test_the_papers_noise_trains_from_the_base_at_any_site(tmp_path, everything, undial):
    root, _ = everything
    settings = json.dumps({"mode": "paper_noise", "sigma": 2.0, **undial})
    recorder = run_small(tmp_path / "run", *QUICK, "method=undial", "baselines=[]", f"undial={settings}")
    assert list(recorder.ran) == ["data", "baselines/undial"]
    found = manifest(tmp_path / "run", "baselines/undial")
    assert found["settings"]["undial"] == {"mode": "paper_noise", "sigma": 2.0, "sign": "signed", **undial}
    assert found["counters"]["steps"] == manifest(root, "baselines/sft")["counters"]["steps"]
    assert not same(tmp_path / "run/baselines/undial", root / "baselines/sft")


@pytest.mark.slow
def test_later_rounds_of_a_baseline_select_with_its_own_models(tmp_path, everything):
    root, _ = everything
    changes = [f"sft.model={root / 'sft'}", "joint.rounds=2", "baselines=[wdds_only, sft_active]"]
    recorder = run_small(tmp_path / "run", *QUICK, *changes, siblings=[root])
    assert [name for name in recorder.ran if "base" not in name] == [
        *("data", "entropy/sft", "round-1/active", "round-1/strong"),
        *("entropy/round-1", "round-2/active", "round-2/strong"),
    ]
    inputs = {name: manifest(tmp_path / "run", f"baselines/{name}")["inputs"] for name in ("wdds_only", "sft_active")}
    assert inputs["sft_active"]["active"] == manifest(tmp_path / "run", "round-2/active")["key"]
    assert inputs["wdds_only"]["active"] == manifest(tmp_path / "run", "baselines/wdds_only-active-2")["key"]
    assert inputs["wdds_only"]["start"] == manifest(tmp_path / "run", "baselines/wdds_only-round-1")["key"]


@pytest.mark.slow
def test_a_baseline_is_evaluated_under_its_name(tmp_path):
    changes = ["data.limit=4", "eval.limit=1", "eval.max_new_tokens=2", "method=sft_restart", "baselines=[neftune]"]
    recorder = run_small(tmp_path / "run", *changes)
    asked = [name for name in recorder.ran if name.startswith("eval/")]
    assert asked == [f"eval/{name}/arithmetic" for name in ("base", "sft", "baseline-sft_restart", "baseline-neftune")]
    assert (tmp_path / "run/report.html").is_file()


@pytest.mark.slow
def test_adapters_train_with_every_loss(tmp_path):
    adapters = ["lora.rank=4", "sft.gradient_checkpointing=true", "joint.gradient_checkpointing=true"]
    names = ["scaled_ce", "undial", "sft_compute", "uniform_active"]
    run_small(tmp_path / "run", *QUICK, *adapters, f"baselines=[{', '.join(names)}]")
    first = load_file(tmp_path / "run/sft/adapter_model.safetensors")
    for name in names:
        trained = load_file(tmp_path / f"run/baselines/{name}/adapter_model.safetensors")
        assert trained.keys() == first.keys() and any(not torch.equal(first[key], trained[key]) for key in first)
    spent = manifest(tmp_path / "run", "baselines/sft_compute-budget")["counters"]["forward_tokens"]
    assert spent["phase_1"] == spent["scans"]  # a frozen base needs no gradient of its weights: 2 a token, and 1 twice
