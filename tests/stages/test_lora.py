"""The pipeline with adapters: what is trained, held in memory, saved and refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe_cases import stage_keys as keys
from small_runs import Recorder, run_small, small_recipe
from weakdriven.errors import UserError
from weakdriven.models.load import fingerprint, load_model, locate_model
from weakdriven.pipeline.run import all_stages, run_recipe
from weakdriven.runs.directory import work_folder
from weakdriven.runs.executor import DryRun
from weakdriven.runs.files import read_jsonl
from weakdriven.runs.signals import Stopped
from weakdriven.stages.checks import check_recipe
from weakdriven.training.lora import name_base
from weakdriven.wmss import trainer as joint
from weakdriven.wmss.export import export_mix
from weakdriven.wmss.score_files import read_scores

BASE = locate_model("embedded:base")
IDS = torch.arange(3, 40)[None]
STEPS = [f"{phase}.{key}=2" for phase in ("sft", "joint") for key in ("batch_size", "micro_batch_size")]
TINY = ["data.limit=16", "eval.limit=1", "eval.max_new_tokens=2", "lora.rank=4", "lora.alpha=8", *STEPS]
SHORT = ["baselines=[]", "eval.benchmarks=[]"]
TWO_ROUNDS = [*TINY, "joint.rounds=2", "joint.save_weak=true", "lora.output=merged"]


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(input_ids=IDS.to(model.device)).logits.float()


def saved_logits(folder: Path) -> torch.Tensor:
    return logits(AutoModelForCausalLM.from_pretrained(folder))


def stop_tokens(folder: Path) -> list[str]:
    ids = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    return AutoTokenizer.from_pretrained(folder).convert_ids_to_tokens(ids)


def adapter(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def frozen(model) -> dict[str, torch.Tensor]:
    """The base's weights inside an adapted model, under their own names."""
    plain = {name: weight for name, weight in model.named_parameters() if "lora_" not in name}
    return {name.removeprefix("base_model.model.").replace(".base_layer", ""): w.data for name, w in plain.items()}


@pytest.fixture(scope="module")
def pairs():
    """What each joint phase of this module trained: its pair, and how it began."""
    seen = []

    def watch(trainer):
        pair = trainer.pair
        begin = {"strong": logits(pair.strong), "weak": logits(pair.weak)}
        counters = fit(trainer)
        seen.append(SimpleNamespace(pair=pair, begin=begin))
        return counters

    fit = joint.fit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "fit", watch)
        yield seen


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory, pairs):
    """A finished run of two rounds: its folder, its recorder and its two pairs."""
    root = tmp_path_factory.mktemp("lora") / "run"
    before = fingerprint(BASE)
    recorder = run_small(root, *TWO_ROUNDS)
    assert fingerprint(BASE) == before
    return SimpleNamespace(root=root, recorder=recorder, pairs=list(pairs))


def test_the_whole_pipeline_runs_and_merges_its_last_model(lora_run):
    stages = [stage for stage in lora_run.recorder.ran if not stage.startswith(("eval/", "entropy/"))]
    rounds = ["round-1/active", "round-1/strong", "round-2/active", "round-2/strong"]
    assert stages == ["data", "sft", *rounds, "merged", "baselines/sft"]
    evaluated = {path.parts[-3] for path in lora_run.root.glob("eval/*/*/scores.json")}
    assert evaluated == {"base", "sft", "round-1", "round-2", "baseline-sft"}
    assert (lora_run.root / "report.html").is_file()


MODELS = ["sft", "round-1/strong", "round-1/strong/weak", "round-2/strong", "round-2/strong/weak", "baselines/sft"]


def test_every_model_folder_is_a_trained_adapter_that_names_its_base(lora_run):
    for model in MODELS:
        folder = lora_run.root / model
        assert [path.name for path in folder.glob("*.safetensors")] == ["adapter_model.safetensors"]
        assert not (folder / "config.json").exists(), "transformers would look for the whole model here"
        config = json.loads((folder / "adapter_config.json").read_text())
        assert (config["base_model_name_or_path"], config["r"], config["lora_alpha"]) == (str(BASE), 4, 8)
        weights = adapter(folder)
        assert {weight.dtype for weight in weights.values()} == {torch.float32}
        assert all(weight.any() for weight in weights.values()), "the half that begins at zero has moved"
        assert stop_tokens(folder) == ["<|im_end|>"]


def test_the_joint_phase_holds_one_base_that_stays_as_it_was_and_two_adapters(lora_run):
    base = load_model(BASE, precision="fp32")

    def held(*models) -> int:
        storages = [weight.untyped_storage() for model in models for weight in model.parameters()]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    for one in lora_run.pairs:
        strong, weak = one.pair.strong, one.pair.weak
        trained = [w.nbytes for model in (strong, weak) for w in model.parameters() if w.requires_grad]
        assert held(strong, weak) == held(base) + sum(trained)
        assert 2 * len(adapter(lora_run.root / "sft")) == len(trained)
        assert all(equal(frozen(model), dict(base.named_parameters())) for model in (strong, weak))


def test_a_round_pairs_the_adapters_of_the_two_models_before_it_and_saves_both(lora_run):
    first, second = lora_run.pairs
    root = lora_run.root
    torch.testing.assert_close(first.begin["weak"], saved_logits(BASE))
    torch.testing.assert_close(first.begin["strong"], saved_logits(root / "sft"))
    torch.testing.assert_close(second.begin["weak"], saved_logits(root / "sft"))
    torch.testing.assert_close(second.begin["strong"], saved_logits(root / "round-1/strong"))
    for number, one in enumerate(lora_run.pairs, 1):
        strong, weak = (model.peft_config["default"] for model in (one.pair.strong, one.pair.weak))
        assert (weak.r, weak.lora_alpha, weak.target_modules) == (strong.r, strong.lora_alpha, strong.target_modules)
        folder = root / f"round-{number}/strong"
        torch.testing.assert_close(saved_logits(folder / "weak"), logits(one.pair.weak))
        torch.testing.assert_close(saved_logits(folder), logits(one.pair.strong))


def test_entropy_and_evaluation_load_the_adapted_model(lora_run):
    files = (lora_run.root / f"entropy/{name}/scores.parquet" for name in ("base", "sft", "round-1"))
    base, first, second = (read_scores(file)["nll"].to_pylist() for file in files)
    assert sum(first) < sum(base) and first != second
    models = all_stages(stages := check_recipe(small_recipe(*TWO_ROUNDS), DryRun(lora_run.root)))
    for model in models:
        torch.testing.assert_close(logits(stages.loader.load(model, train=False)), saved_logits(model.folder))


def test_an_adapter_over_the_same_base_can_be_given_as_m1_with_its_scores(lora_run, tmp_path):
    given = [f"sft.model={lora_run.root / 'sft'}", f"selection.reuse=[{lora_run.root}]"]
    recorder = run_small(tmp_path, *TINY, *SHORT, "joint.save_weak=true", *given)
    assert list(recorder.ran) == ["data", "entropy/base", "entropy/sft", "round-1/active", "round-1/strong"]
    for name in ("base", "sft"):
        taken = json.loads((tmp_path / f"entropy/{name}/manifest.json").read_text())["counters"]["reused_from"]
        assert taken == str(lora_run.root / f"entropy/{name}/scores.parquet")
    assert equal(adapter(tmp_path / "round-1/strong"), adapter(lora_run.root / "round-1/strong"))


def test_the_merged_model_is_an_ordinary_one_that_answers_as_the_adapter_does(lora_run):
    folder = lora_run.root / "merged"
    assert not (folder / "adapter_config.json").exists() and (folder / "config.json").is_file()
    adapted = saved_logits(lora_run.root / "round-2/strong")
    torch.testing.assert_close(saved_logits(folder), adapted, rtol=1e-4, atol=1e-4)
    assert (adapted - saved_logits(BASE)).abs().max() > 0.01
    shape = {name: weight.shape for name, weight in load_file(folder / "model.safetensors").items()}
    assert shape == {name: weight.shape for name, weight in load_file(BASE / "model.safetensors").items()}
    assert stop_tokens(folder) == ["<|im_end|>"]


def test_merging_or_not_retrains_nothing(lora_run):
    assert run_small(lora_run.root, *TWO_ROUNDS).ran == {}
    again = run_small(lora_run.root, *TWO_ROUNDS, "lora.output=adapter")
    assert again.ran == {} and "merged" not in again.skipped


def test_the_mixture_of_two_adapters_can_be_exported(lora_run, tmp_path):
    export_mix(str(lora_run.root / "round-1"), output=str(tmp_path / "mixture"))
    weak, strong = (saved_logits(lora_run.root / "round-1/strong" / name) for name in ("weak", ""))
    torch.testing.assert_close(saved_logits(tmp_path / "mixture"), (weak + strong) / 2, rtol=1e-3, atol=1e-3)


class Interrupt(Recorder):
    """Stops the run at step 3 of a stage, after its checkpoint of step 2."""

    def __init__(self, stage: str):
        super().__init__()
        self.stage = stage

    def update(self, done, total, **facts):
        if list(self.ran)[-1] == self.stage and done == 3:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_that_is_stopped_twice_and_recomputes_activations_ends_as_one_that_does_neither(lora_run, tmp_path):
    recompute = [f"{phase}.gradient_checkpointing=true" for phase in ("sft", "joint")]
    root, overrides = tmp_path / "run", [*TINY, *SHORT, "joint.save_weak=true", *recompute]
    for stage in ("sft", "round-1/strong"):
        with pytest.raises(Stopped):
            run_recipe(small_recipe(*overrides), root, Interrupt(stage))
        work = work_folder(root, stage) / "work"
        assert (work / "checkpoints/checkpoint-2/complete").is_file()
    export_mix(str(work / "checkpoints/checkpoint-2"), output=str(tmp_path / "mixture"))  # each half names its base
    run_small(root, *overrides)
    for stage in ("sft", "round-1/strong"):
        assert json.loads((root / stage / "manifest.json").read_text())["resumed"] == 1
    for model in ("sft", "round-1/strong", "round-1/strong/weak"):
        assert equal(adapter(root / model), adapter(lora_run.root / model))
    rows = [list(read_jsonl(one / "round-1/strong/metrics.jsonl")) for one in (root, lora_run.root)]
    for row in (*rows[0], *rows[1]):
        row.pop("num_tokens")  # TRL counts them from where the process began
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_frozen_weak_adapter_stays_as_it_was(lora_run, tmp_path):
    settings = ["joint.weak=frozen", "joint.save_weak=true", "joint.rounds=2", "selection.enabled=false"]
    run_small(tmp_path, *TINY, *SHORT, *settings, f"sft.model={lora_run.root / 'sft'}")
    torch.testing.assert_close(saved_logits(tmp_path / "round-1/strong/weak"), saved_logits(BASE))
    assert equal(adapter(tmp_path / "round-2/strong/weak"), adapter(lora_run.root / "sft"))
    assert not equal(adapter(tmp_path / "round-2/strong"), adapter(tmp_path / "round-1/strong"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision, phase",
    [("bf16-mixed", "gradient_checkpointing=keep_products"), ("bf16", "optimizer=adamw")],
)
def test_in_bf16_the_base_is_held_in_bf16_and_the_adapters_in_fp32(precision, phase, pairs, tmp_path):
    overrides = [f"precision={precision}", "data.limit=2", "lora.output=merged", f"sft.{phase}", f"joint.{phase}"]
    run_small(tmp_path, *TINY, *SHORT, *overrides)
    pair = pairs[-1].pair
    for model in (pair.strong, pair.weak):
        assert {weight.dtype for weight in frozen(model).values()} == {torch.bfloat16}
        assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
    weights = adapter(tmp_path / "round-1/strong")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert all(weight.isfinite().all() and weight.any() for weight in weights.values())
    whole = load_file(tmp_path / "merged/model.safetensors")
    assert {weight.dtype for weight in whole.values()} == {torch.bfloat16}


def test_sft_alone_trains_and_merges_an_adapter(tmp_path):
    target = "lora.target_modules=[q_proj, model.layers.0.mlp.down_proj]"
    recorder = run_small(tmp_path, *TINY, *SHORT, "method=sft", "data.limit=4", "lora.output=merged", target)
    assert list(recorder.ran) == ["data", "baselines/sft", "merged"]
    names = adapter(tmp_path / "baselines/sft")
    assert {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in names} == {"q_proj", "down_proj"}
    assert sum("down_proj" in name for name in names) == 2
    torch.testing.assert_close(
        saved_logits(tmp_path / "merged"), saved_logits(tmp_path / "baselines/sft"), rtol=1e-4, atol=1e-4
    )


def test_the_shape_of_adapters_touches_training_and_merging_them_does_not():
    plain, lora = keys(), keys("lora={}")
    same = {name for name in plain if plain[name] == lora[name]}
    assert same == {"data", "entropy/base", "eval/base/arithmetic"}
    for change in ("rank=8", "alpha=8", "dropout=0.1", "target_modules=[q_proj]"):
        changed = keys("lora={}", f"lora.{change}")
        assert {name for name in lora if lora[name] == changed[name]} == same
    merged = keys("lora.output=merged")
    assert merged.pop("merged") and merged == lora


def test_a_given_adapter_and_not_the_settings_decides_what_the_rounds_train(given):
    before = keys("lora={}", source := given())
    for change in ("rank=8", "alpha=8", "dropout=0.1", "target_modules=[q_proj]"):
        after = keys("lora={}", source, f"lora.{change}")
        touched = {name for name in before if before[name] != after[name]}
        assert touched == {"baselines/sft", "eval/baseline-sft/arithmetic"}


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["lora.target_modules=q_proj"], "expected all-linear or a list of names"),
        (["lora.target_modules=[]"], "expected all-linear or a list of names"),
        (["lora.target_modules=[a, a]"], "twice: a, a"),
        (["lora.target_modules=[q_prj]"], "Did you mean q_proj?"),
        (["lora.target_modules=[q_proj, zzz]"], "zzz is not a linear layer"),
        (["lora.target_modules=[lm_head]"], "output head"),
        (["lora.quantize=4bit"], "lora.quantize 4bit computes in bf16"),
        (["lora={}", "sft.optimizer=adamw_bf16", "precision=bf16"], "adamw_bf16 is for weights in bf16"),
        (["lora={}", "sft.model=./nowhere"], "There is no model folder ./nowhere"),
        (["lora={}", f"sft.model={BASE}"], "has no adapter_config.json"),
    ],
)
def test_a_mistake_is_an_error_before_anything_is_computed(overrides, message, tmp_path):
    with pytest.raises(UserError) as caught:
        run_small(tmp_path / "run", *overrides)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_four_bits_need_cuda(no_gpu, monkeypatch):
    monkeypatch.setattr("weakdriven.training.lora.find_spec", lambda name: "here")
    with pytest.raises(UserError, match=r"lora.quantize: 4bit needs a CUDA device and bitsandbytes"):
        keys("lora.quantize=4bit", "precision=bf16-mixed")


@pytest.fixture
def given(tmp_path):
    """Save an adapter over a model, and change its configuration."""

    def save(base: Path = BASE, **changes) -> str:
        model = get_peft_model(load_model(base, precision="fp32"), LoraConfig(r=2, target_modules=["q_proj"]))
        model.save_pretrained(str(tmp_path / "adapter"))
        file = tmp_path / "adapter/adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
        return f"sft.model={tmp_path / 'adapter'}"

    return save


def other_base(folder: Path) -> Path:
    model = load_model(BASE, precision="fp32")
    model.get_input_embeddings().weight.data[0] += 1
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(folder)
    return folder


def test_an_adapter_over_another_base_is_an_error_as_m1(given, tmp_path):
    source = given(other_base(tmp_path / "other"))
    with pytest.raises(UserError, match=r"is an adapter over .*other, but"):
        keys("lora={}", source)
    with pytest.raises(UserError, match=r"is an adapter over some/model, but"):
        keys("lora={}", given(base_model_name_or_path="some/model"))


def test_an_adapter_over_a_copy_of_the_base_is_accepted_and_the_base_is_part_of_its_key(given, tmp_path):
    source = given()
    on_base = keys("lora={}", source)
    other = other_base(tmp_path / "other")
    on_other = keys("lora={}", given(base_model_name_or_path=str(other)), f"model={other}")
    assert on_base["entropy/sft"] != on_other["entropy/sft"]
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in BASE.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert keys("lora={}", given(base_model_name_or_path=str(copy)))["entropy/base"] == on_base["entropy/base"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"init_lora_weights": "pissa"}, "init_lora_weights pissa"),
        ({"target_modules": ["lm_head"]}, "adapter is LORA on lm_head"),
        ({"peft_type": "NONSENSE"}, "adapter_config.json cannot be read"),
    ],
)
def test_an_adapter_that_does_not_fit_the_method_is_an_error_as_m1(given, changes, message):
    with pytest.raises(UserError, match=message):
        keys("lora={}", given(**changes))


def test_an_adapter_needs_the_setting(given):
    with pytest.raises(UserError, match="is an adapter; set lora"):
        keys(given())


def test_an_adapter_names_a_hub_model_by_its_id_and_commit_and_a_folder_by_its_whole_path(monkeypatch, tmp_path):
    config = SimpleNamespace()
    model: PeftModel = SimpleNamespace(peft_config={"default": config})  # pyright: ignore[reportAssignmentType]
    snapshot = tmp_path / "models--some--model/snapshots/abc"
    name_base(model, "some/model", snapshot)
    assert (config.base_model_name_or_path, config.revision) == ("some/model", "abc")
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    name_base(model, "mine", Path("mine"))
    assert (config.base_model_name_or_path, config.revision) == (str(tmp_path / "mine"), None)
    snapshot.mkdir(parents=True)
    name_base(model, str(snapshot), snapshot)
    assert config.base_model_name_or_path == str(snapshot)
