"""DPO and SPIN through a recipe: rollouts once, pairs with a funnel, a model; and what leaves nothing to train on."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import rollout_cases
from helpers import demo_examples, embedded_tokenizer
from recipe_cases import parse
from small_runs import run_small, small_recipe
from weakdriven.data.prompts import Renderer
from weakdriven.data.tokenize import load_tokens
from weakdriven.errors import UserError
from weakdriven.eval.generate.requests import request_seed
from weakdriven.methods.dpo_spin import stage as preferences
from weakdriven.runs.files import read_json, read_jsonl

learner, says = rollout_cases.learner, rollout_cases.says
TRAIN = ["batch_size=2", "micro_batch_size=2", "learning_rate=1e-3", "gradient_checkpointing=false"]


def run(root, learner, method, *overrides, siblings=()):
    settings = [f"{method}.{one}" for one in TRAIN] + [f"method={method}", "baselines=[]", "eval.benchmarks=[]"]
    small = [f"{method}.rollouts.max_new_tokens=64", "data.limit=8", f"sft.model={learner}"]
    return run_small(root, *settings, *small, *overrides, siblings=siblings)


def counters(root, stage):
    return read_json(root / stage / "manifest.json")["counters"]


def moved(root, learner, stage):
    ours, theirs = load_file(root / stage / "model.safetensors"), load_file(learner / "model.safetensors")
    return any(not torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="session")
def dpo_run(learner, once):
    return once("dpo", lambda root: run(root, learner, "dpo", "dpo.rollouts.temperature=1.0"))


def test_dpo_runs_from_rollouts_over_pairs_to_a_model(dpo_run, learner):
    root, recorder = dpo_run
    assert list(recorder.ran) == ["data", "rollouts/sft/dpo", "pairs/dpo", "baselines/dpo"]
    found = counters(root, "rollouts/sft/dpo")
    assert (found["prompts"], found["samples"]) == (8, 32) and found["right"] and found["wrong"]
    assert found["right"] + found["wrong"] + found["undecided"] == 32
    rows = list(read_jsonl(root / "rollouts/sft/dpo/rollouts.jsonl"))
    assert found["tokens"] == sum(row["tokens"] for row in rows) and len(rows) == 32
    labels = {(row["id"], row["sample"]): row["correct"] for row in read_jsonl(root / "rollouts/sft/dpo/labels.jsonl")}
    pairs, funnel = list(read_jsonl(root / "pairs/dpo/pairs.jsonl")), read_json(root / "pairs/dpo/funnel.json")
    assert funnel["in"] == 8 and funnel["kept"] == len(pairs) == counters(root, "pairs/dpo")["pairs"] > 1
    for pair in pairs:
        assert labels[pair["id"], pair["chosen_sample"]] and not labels[pair["id"], pair["rejected_sample"]]
    assert counters(root, "baselines/dpo")["steps"] == len(pairs) // 2 and moved(root, learner, "baselines/dpo")
    assert read_json(root / "baselines/dpo/manifest.json")["settings"]["beta"] == 0.1
    files = {path.name for path in (root / "pairs/dpo").iterdir()}
    assert files == {"pairs.jsonl", "pairs.arrow", "funnel.json", "manifest.json"}, "training leaves nothing there"


def test_a_training_setting_generates_no_new_rollouts(dpo_run, learner, tmp_path, says):
    engine, same = says(lambda request: ""), "dpo.rollouts.temperature=1.0"
    assert run(dpo_run[0], learner, "dpo", same).ran == {}
    shutil.copytree(dpo_run[0], tmp_path / "run")
    assert run(tmp_path / "run", learner, "dpo", same, "dpo.beta=0.3").ran == {"baselines/dpo": "beta 0.1 -> 0.3"}
    assert not engine.asked


def test_spin_prefers_the_data_and_starts_each_iteration_from_the_last(learner, tmp_path, says):
    says(lambda request: f"no {request.seed % 1000}")
    root = tmp_path / "run"
    recorder = run(root, learner, "spin", "spin.iterations=2")
    assert list(recorder.ran) == [
        "data",
        *("rollouts/sft/spin", "pairs/spin", "baselines/spin"),
        *("rollouts/baseline-spin/spin-2", "pairs/spin-2", "baselines/spin-2"),
    ]
    assert counters(root, "rollouts/sft/spin")["undecided"] == 8, "SPIN verifies nothing"
    pairs = list(read_jsonl(root / "pairs/spin/pairs.jsonl"))
    assert pairs and {(pair["chosen_sample"], pair["rejected_sample"]) for pair in pairs} == {(None, 0)}
    inputs = read_json(root / "baselines/spin-2/manifest.json")["inputs"]
    assert inputs["start"] == read_json(root / "baselines/spin/manifest.json")["key"]
    first = next(read_jsonl(root / "baselines/spin-2/metrics.jsonl"))
    assert first["loss"] == pytest.approx(0.693147, abs=1e-5), "its reference is where it starts"
    assert moved(root, root / "baselines/spin", "baselines/spin-2")


@pytest.mark.slow
def test_spin_may_also_train_on_the_pairs_of_the_previous_iteration(learner, tmp_path, says):
    says(lambda request: f"no {request.seed % 1000}")
    root, rates = tmp_path / "run", ["spin.learning_rate=1e-5", "spin.optimizer=rmsprop"]
    run(root, learner, "spin", *rates, "spin.iterations=3", "spin.mix_previous=true")
    assert [counters(root, f"baselines/{name}")["rows"] for name in ("spin", "spin-2", "spin-3")] == [8, 16, 16]
    manifests = {name: read_json(root / name / "manifest.json") for name in ("baselines/spin-3", "pairs/spin-2")}
    inputs = manifests["baselines/spin-3"]["inputs"]
    assert inputs["previous_pairs"] == manifests["pairs/spin-2"]["key"] != inputs["pairs"]
    assert manifests["baselines/spin-3"]["settings"]["optimizer"] == "rmsprop"
    first = next(read_jsonl(root / "baselines/spin-3/metrics.jsonl"))
    assert first["loss"] == pytest.approx(0.693147, abs=1e-5), "all pairs have the start of the iteration as reference"
    plain = run(root, learner, "spin", *rates, "spin.iterations=2")
    assert list(plain.ran) == ["baselines/spin-2"], "the first iteration has no other before it"
    assert counters(root, "baselines/spin-2")["rows"] == 8


def test_the_list_of_pairs_is_what_is_trained_on_when_written_in_batches(learner, tmp_path, says, monkeypatch):
    renderer, examples = Renderer(embedded_tokenizer(), "math", "plain"), demo_examples(8)
    longest = max(len(renderer.tokenizer(renderer.prompt(one.prompt))["input_ids"]) for one in examples) + 4
    late = {request_seed(42, one.id, 0): one.completion + " indeed" for one in examples[::2]}
    says(lambda request: late.get(request.seed, "no"))
    monkeypatch.setattr(preferences, "BATCH", 3)
    run(tmp_path, learner, "spin", f"data.max_length={longest}", "spin.rollouts.max_new_tokens=4")
    tokens = load_tokens(tmp_path / "pairs/spin/pairs.arrow").to_list()
    listed = list(read_jsonl(tmp_path / "pairs/spin/pairs.jsonl"))
    assert [row["id"] for row in tokens] == [row["id"] for row in listed] == [one.id for one in examples[1::2]]
    funnel = read_json(tmp_path / "pairs/spin/funnel.json")
    assert (funnel["kept"], funnel["dropped"]["no different tokens"]["rows"]) == (4, 4)
    sizes = {f"{side}_tokens": sum(len(row[f"{side}_ids"]) for row in tokens) for side in ("chosen", "rejected")}
    expected = {"prompts": 8, "pairs": 4, "dropped": 4, "truncated": 4, "rollouts": 8, "cut": 0, **sizes}
    assert counters(tmp_path, "pairs/spin") == expected


def test_an_interrupted_rollout_stage_generates_only_the_rest(learner, tmp_path, says):
    by_seed = {request_seed(42, one.id, sample): (one, sample) for one in demo_examples(8) for sample in range(4)}

    def text(request):
        one, sample = by_seed[request.seed]
        return f"\\boxed{{{one.gold if sample == 1 else 'x'}}}"

    engine, root = says(text, limit=10), tmp_path / "run"
    with pytest.raises(UserError, match="22 of 32 requests got no completion"):
        run(root, learner, "dpo")
    engine.limit, engine.asked = None, 0
    recorder = run(root, learner, "dpo")
    assert engine.asked == 22 and "rollouts/sft/dpo" in recorder.ran
    assert counters(root, "rollouts/sft/dpo") | {"right": 8, "wrong": 24} == counters(root, "rollouts/sft/dpo")
    rows = [(row["id"], row["sample"]) for row in read_jsonl(root / "rollouts/sft/dpo/rollouts.jsonl")]
    assert rows == [(one.id, sample) for one in demo_examples(8) for sample in range(4)]
    [pair, *_] = read_jsonl(root / "pairs/dpo/pairs.jsonl")
    assert (pair["chosen_sample"], pair["rejected_sample"]) == (1, 0)


def test_no_prompt_with_right_and_wrong_samples_is_an_error_before_training(learner, tmp_path, says):
    says(lambda request: "\\boxed{-1}")
    root = tmp_path / "run"
    with pytest.raises(UserError, match=r"Nothing is left of 8 prompts; no right rollout: 8 .*more rollouts"):
        run(root, learner, "dpo")
    assert (root / "rollouts/sft/dpo/manifest.json").is_file() and not (root / "baselines").exists()


def test_prompts_are_drawn_with_a_seed_and_samples_equal_to_the_data_are_an_error(learner, tmp_path, says):
    by_seed = {request_seed(42, one.id, 0): one.completion for one in demo_examples(8)}
    drawn = []
    for root in (tmp_path / "a", tmp_path / "b"):
        engine = says(lambda request: by_seed[request.seed])
        with pytest.raises(UserError, match=r"the sample is the data's completion: 3"):
            run(root, learner, "spin", "spin.rollouts.subsample=3")
        assert engine.asked == 3 and not (root / "pairs").exists() and not (root / "baselines").exists()
        drawn.append([row["id"] for row in read_jsonl(root / "rollouts/sft/spin/rollouts.jsonl")])
    ids = [one.id for one in demo_examples(8)]
    assert drawn[0] == drawn[1] == sorted(drawn[0], key=ids.index) and len(set(drawn[0])) == 3


def test_rows_without_answers_are_an_error_for_dpo_and_not_for_spin(learner, tmp_path, says):
    rows = [{"id": str(n), "prompt": f"{n}?", "completion": f"It is {n}."} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    says(lambda request: "no")
    with pytest.raises(UserError, match="None of the 4 examples can be verified"):
        run(tmp_path / "dpo", learner, "dpo", f"data.path={tmp_path / 'rows.jsonl'}")
    run(tmp_path / "spin", learner, "spin", f"data.path={tmp_path / 'rows.jsonl'}")
    assert counters(tmp_path / "spin", "pairs/spin")["pairs"] == 4


@pytest.mark.slow
def test_baselines_of_wmss_start_from_its_m1_and_are_evaluated_like_its_models(learner, tmp_path):
    root, small = tmp_path / "run", ["data.limit=8", f"sft.model={learner}", "eval.limit=1"]
    spin = [f"spin.{one}" for one in TRAIN] + ["spin.rollouts.max_new_tokens=48"]
    recorder = run_small(root, *small, *spin, "baselines=[spin]")
    assert [entry.name for entry in recorder.planned] == list(recorder.ran)
    assert "sft" not in recorder.ran and "eval/baseline-spin/arithmetic" in recorder.ran
    begun = list(recorder.ran)
    assert begun.index("round-1/strong") < begun.index("rollouts/sft/spin") < begun.index("baselines/spin")
    assert (root / "report.html").is_file()


@pytest.mark.slow
def test_with_lora_dpo_continues_from_the_adapter_of_m1(tmp_path, says):
    by_seed = {request_seed(42, one.id, 0): one.gold for one in demo_examples(8)}
    says(lambda request: f"\\boxed{{{by_seed.get(request.seed, '-1')}}}")
    root, phase = tmp_path / "run", ["sft.batch_size=8", "sft.micro_batch_size=8"]
    run(root, "", "dpo", "lora.rank=2", *phase, "sft.model=null")
    assert read_json(root / "baselines/dpo/adapter_config.json")["r"] == 2
    ours, theirs = (load_file(root / name / "adapter_model.safetensors") for name in ("baselines/dpo", "sft"))
    assert ours.keys() == theirs.keys() and any(not torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_server_that_cannot_be_started_is_an_error_before_anything_runs(learner, tmp_path):
    with pytest.raises(UserError, match=r"needs eval\.vllm_python"):
        run(tmp_path / "run", learner, "dpo", "eval.engine=vllm")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "override, message",
    [
        ("dpo.rollouts.temperature=0", "all 4 samples would be the same"),
        ("dpo.beta=-0.1", r"dpo\.beta: .*greater than 0"),
        ("dpo.rollouts.top_k=0", "top_k"),
        ("baselines=[dpo]", "is also in baselines"),
    ],
)
def test_wrong_settings_are_an_error(override, message):
    with pytest.raises(UserError, match=message):
        small_recipe("method=dpo", "baselines=[]", override)


def test_defaults_are_those_of_the_methods():
    recipe = parse()
    shared = {"top_p": 1.0, "max_new_tokens": None, "subsample": None}
    assert recipe.spin.rollouts.model_dump() == shared | {"samples": 1, "temperature": 1.0, "top_k": None}
    assert recipe.dpo.rollouts.model_dump() == shared | {"samples": 4, "temperature": 0.8, "top_k": None}
    for settings in (recipe.spin, recipe.dpo):
        found = settings.model_dump(include={"beta", "learning_rate", "epochs", "max_grad_norm", "warmup_ratio"})
        rates = {"learning_rate": 5e-7, "max_grad_norm": 0.5, "warmup_ratio": 0.1}
        assert found == {"beta": 0.1, "epochs": 1, **rates}
