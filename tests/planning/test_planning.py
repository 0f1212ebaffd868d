"""Plans of whole recipes: from a configuration alone, beside a real run, and what is advised where one does not fit."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from small_runs import small_recipe
from weakdriven.commands.app import app
from weakdriven.config.file import load_recipe, shipped_recipes
from weakdriven.config.recipe import LoraSettings, Recipe
from weakdriven.errors import UserError
from weakdriven.pipeline.run import all_stages
from weakdriven.planning import model_config
from weakdriven.planning import plan as planning
from weakdriven.planning.advice import candidates
from weakdriven.planning.costs import Cost
from weakdriven.planning.counted_shape import count_shape, load_config
from weakdriven.planning.devices import GIB
from weakdriven.planning.model_config import config_folder, read_config, shape_of
from weakdriven.planning.plan import plan_recipe
from weakdriven.planning.rows import known_rows
from weakdriven.runs import launcher
from weakdriven.stages.workload import Workload

PARAMETERS = {
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "SmolLM2-1.7B": 1_711_376_384,
    "SmolLM2-135M": 134_515_008,
    "SmolLM2-360M": 361_821_120,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-270m": 268_098_176,
    "gemma-3-4b": 3_880_263_168,
}
"""As published; of Gemma-3 its language model."""
QWEN3_4B = "Qwen/Qwen3-4B-Base"


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    """Whatever is in this computer's cache, shapes are those of the package."""
    monkeypatch.setattr(model_config, "try_to_load_from_cache", lambda *source: None)
    monkeypatch.setattr(model_config, "hf_hub_download", refuse_download)


def refuse_download(source: str, file: str) -> str:
    raise OSError("offline")


def planned(name: str, *overrides: str, gpus: str = "H200-141G", **options):
    return plan_recipe(load_recipe(name, list(overrides)), Path("nowhere"), all_stages, gpus=gpus, **options)


@pytest.mark.parametrize("asked, sharding", [("ACCELERATE_USE_FSDP", "fsdp"), ("UNASKED", "ddp")])
def test_this_machine_shards_weights_as_the_launcher_does(asked, sharding, monkeypatch):
    monkeypatch.setenv(asked, "true")
    monkeypatch.setattr(planning, "size", lambda: 2)
    assert planning.machine_at_hand().sharding == sharding


def test_parameters_of_backbones_are_the_published_ones_and_peft_counts_those_of_an_adapter():
    for name, parameters in PARAMETERS.items():
        assert shape_of(read_config(config_folder(f"maker/{name}"))).parameters == parameters
    shape = shape_of(read_config(config_folder(QWEN3_4B)), LoraSettings(rank=16))
    a_layer = 16 * (2 * (2560 + 4096) + 2 * (2560 + 1024) + 3 * (2560 + 9728))
    assert shape.adapter and shape.adapter.parameters == 36 * a_layer


def test_shipped_shapes_are_those_of_the_models_that_transformers_and_peft_build():
    shipped = [folder.name for folder in model_config.SHAPES.iterdir()]
    assert sorted(shipped) == sorted(PARAMETERS)
    for name in shipped:
        folder, lora = config_folder(f"maker/{name}"), LoraSettings(rank=8, target_modules=["q_proj", "down_proj"])
        assert shape_of(read_config(folder)) == count_shape(load_config(folder)), name
        assert shape_of(read_config(folder), lora) == count_shape(load_config(folder), lora), name
    everywhere = LoraSettings(rank=16, quantize="4bit")
    assert shape_of(read_config(folder), everywhere) == count_shape(load_config(folder), everywhere)
    with pytest.raises(UserError, match="Did you mean q_proj"):
        shape_of(read_config(folder), LoraSettings(target_modules=["q_pro"]))


def test_a_missing_configuration_is_an_error_that_names_it_once(tmp_path):
    with pytest.raises(UserError, match=r"^\S*config\.json cannot be read"):
        read_config(tmp_path)


QUICK = {"demo", "gemma-3-4b-code"}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one in QUICK else pytest.mark.slow) for one in shipped_recipes()]
)
def test_every_shipped_recipe_can_be_planned_from_a_configuration_alone(name):
    plan = planned(name)
    low, about, high = plan.seconds
    assert 0 < low < about < high
    assert 0 < plan.disk[0] <= plan.disk[1]
    names = [cost.workload.name for cost in plan.costs]
    assert names[0] == "data" and len(names) == len(set(names))
    trained = [cost for cost in plan.costs if cost.workload.kind == "train"]
    assert trained and all(cost.memory and cost.steps > 0 and cost.trained > 0 for cost in trained)
    assert json.loads(json.dumps(plan.to_json()))["recipe"] == name


def test_a_plan_names_the_stages_that_a_run_has(two_round_run, tmp_path):
    _, recorder = two_round_run
    plan = plan_recipe(small_recipe("joint.rounds=2"), tmp_path, all_stages)
    assert [cost.workload.name for cost in plan.costs] == list(recorder.ran)


def test_steps_tokens_and_disk_of_a_finished_run_are_predicted(two_round_run):
    root, recorder = two_round_run
    recipe = small_recipe("joint.rounds=2")
    rows = known_rows(recipe, root)
    assert rows and rows.count == 48
    assert known_rows(small_recipe("data.max_length=128"), root) is None
    plan = plan_recipe(recipe, root, all_stages)
    real = sum(file.stat().st_size for stage in recorder.ran for file in (root / stage).iterdir() if file.is_file())
    assert plan.disk[0] == pytest.approx(real, rel=0.2)
    costs = {cost.workload.name: cost for cost in plan.costs}
    for stage in ("sft", "baselines/sft"):
        counters = json.loads((root / stage / "manifest.json").read_text())["counters"]
        assert costs[stage].steps == counters["steps"] and costs[stage].trained == counters["parameters"]
        assert costs[stage].tokens == pytest.approx(counters["trained_tokens"], rel=0.02)


def test_advice_for_a_run_that_does_not_fit_is_accepted_by_the_recipe():
    plan = planned("qwen3-4b-math", gpus="H100-80G")
    (advice,) = plan.advice
    assert advice.stage == "round-1/strong" and advice.needs > 79 * GIB and plan.micro[advice.stage] == 0
    found = {change.override: change for change in advice.changes}
    assert not found["joint.optimizer=adamw_8bit"].fits and found["joint.optimizer=adamw_8bit"].saves_bytes > 40 * GIB
    assert found["precision=bf16 joint.optimizer=adamw_bf16"].fits
    assert "joint.optimizer=adamw_bf16" not in found  # needs precision: bf16
    for change in advice.changes[::2]:
        accepted = planned("qwen3-4b-math", *change_words(change.override), gpus="H100-80G")
        assert (not accepted.advice) == change.fits
    together = planned("qwen3-4b-math", *advice.together, gpus="H100-80G")
    assert advice.together and together.fits


def change_words(override: str) -> list[str]:
    return [override] if "{" in override else override.split()


def test_the_largest_micro_batch_fits_and_the_next_does_not():
    plan = planned("qwen3-4b-math", "precision=bf16")
    largest = plan.micro["round-1/strong"]
    assert largest > 2
    for micro, fits in ((largest, True), (2 * largest, False)):
        changed = planned("qwen3-4b-math", "precision=bf16", f"joint.micro_batch_size={micro}")
        (cost,) = (cost for cost in changed.costs if cost.workload.name == "round-1/strong")
        assert (cost.memory.total <= 139.8 * GIB) == fits


def test_a_packed_micro_batch_is_as_large_in_tokens_and_holds_more_rows():
    (plain, packed) = (
        next(cost for cost in planned("qwen3-4b-math", *words).costs if cost.workload.name == "sft")
        for words in (["sft.packing=false"], [])
    )
    assert packed.micro_batch > plain.micro_batch and packed.steps == plain.steps
    assert packed.memory.total == pytest.approx(plain.memory.total, rel=0.02)


def test_more_devices_split_the_weights_and_the_batch():
    one = {cost.workload.name: cost for cost in planned("qwen3-8b-math").costs}
    eight = {cost.workload.name: cost for cost in planned("qwen3-8b-math", gpus="8xH200").costs}
    name = "round-1/strong"
    assert eight[name].memory.optimizer == pytest.approx(one[name].memory.optimizer / 8)
    assert eight[name].steps == one[name].steps and eight[name].tokens == pytest.approx(one[name].tokens)
    assert one[name].seconds / 8 <= eight[name].seconds < one[name].seconds / 4
    ddp = {cost.workload.name: cost for cost in planned("qwen3-8b-math", gpus="8xH200", sharding="ddp").costs}
    assert ddp[name].memory.optimizer == one[name].memory.optimizer


@pytest.mark.parametrize(
    "overrides, options, sentence",
    [
        (["lora={}"], {"gpus": "8xH200", "sharding": "fsdp"}, "FSDP2 with LoRA is not supported"),
        (["baselines=[undial]"], {"gpus": "8xH200"}, "undial trains in one process, found 8"),
        (
            ["baselines=[dpo]"],
            {"gpus": "8xH200", "sharding": "fsdp"},
            "dpo trains in one process or with DDP",
        ),
        (["baselines=[]"], {"gpus": "7xH200"}, "is not divisible by 7 processes"),
    ],
)
def test_what_is_not_supported_on_several_devices_is_not_planned(overrides, options, sentence):
    with pytest.raises(UserError, match=sentence):
        planned("qwen3-8b-math", *overrides, **options)


def test_adapters_are_planned_with_ddp_and_advised_only_where_they_are_supported():
    settings = ("lora={}", "baselines=[]")
    assert planned("qwen3-8b-math", *settings, gpus="2xH200").machine.sharding == "ddp"
    assert planned("qwen3-8b-math", "baselines=[spin]", gpus="2xH200").machine.sharding == "ddp"
    assert planned("qwen3-8b-math", *settings).machine.sharding == "none"
    recipe = load_recipe("qwen3-4b-math")
    given = load_recipe("qwen3-4b-math", ["sft.model=somewhere"])
    workload = Workload("round-1/strong", "train", recipe.joint)

    def adapters(asked: Recipe, sharding: str) -> bool:
        found = candidates(workload, asked, 2, on_cpu=False, sharding=sharding)
        return any(text.startswith("lora") for overrides, _ in found for text in overrides)

    assert adapters(recipe, "none") and adapters(recipe, "ddp")
    assert not adapters(recipe, "fsdp") and not adapters(given, "none")


def test_the_network_between_machines_is_an_assumption():
    told = [planned("qwen3-8b-math", "baselines=[]", gpus=gpus).assumptions for gpus in ("8xH200", "16xH200")]
    assert [any("InfiniBand" in line for line in lines) for lines in told] == [False, True]


def test_a_subsample_and_the_forward_pass_of_the_reference_are_counted():
    def costs(method: str, rows: int) -> dict[str, Cost]:
        overrides = (f"method={method}", "baselines=[]", f"{method}.rollouts.subsample=1000")
        return {cost.workload.name: cost for cost in planned("qwen3-4b-math", *overrides, rows=rows).costs}

    few, many = costs("ssb", 500), costs("ssb", 100_000)
    for name in ("hints/ssb", "targets/ssb"):
        assert many[name].kept == pytest.approx(2 * few[name].kept)
    assert many["targets/ssb"].seconds == pytest.approx(2 * few["targets/ssb"].seconds)
    dpo = costs("dpo", 100_000)
    scan = costs("ssb", 100_000)["targets/ssb"]  # of as many rows, of one side
    tuned = dpo["baselines/dpo"]
    plain = 3 * tuned.tokens / (2 * scan.tokens) * 2 * scan.flops
    assert tuned.flops == pytest.approx(plain + 2 * scan.flops, rel=0.01)


def test_unknown_facts_are_assumptions_or_guesses():
    plan = planned("qwen3-4b-math", "lora={quantize: 4bit}", gpus="A100-80G")
    assert any("math.jsonl is not on this machine: 100,000 rows" in line for line in plan.assumptions)
    assert any("QLoRA" in line for line in plan.guesses) and any("A100-80G" in line for line in plan.guesses)
    assert not any("is not on this machine" in line for line in planned("qwen3-4b-math", rows=111_657).assumptions)


def test_existing_rows_are_sampled_and_a_missing_tokenizer_is_an_assumption(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [{"question": f"What is {i}?" * 20, "solution": "It is. " * 100} for i in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = planned("qwen3-4b-math", f"data.path={file}")
    (data,) = (cost for cost in plan.costs if cost.workload.name == "data")
    characters = len(rows[-1]["question"]) + len("It is. " * 100)
    assert data.tokens == pytest.approx(30 * characters / 3.5, rel=0.05)
    assert any("tokenizer is not on this machine" in line for line in plan.assumptions)
    assert any("data.max_length tokens" in line for line in plan.assumptions)


def command(*words: str) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["plan", *words])
    return done.exit_code, done.output


def test_the_command_says_first_whether_a_run_fits_and_its_exit_status_too():
    code, shown = command("qwen3-4b-math", "--gpus", "H100-80G")
    assert code == 1 and re.match(r".* does not fit .*: round-1/strong needs [\d.]+ GiB more", shown)
    assert "With all of these it fits" in shown and "GPU hours" in shown
    code, shown = command("qwen3-4b-math", "--gpus", "H100-80G:8")
    assert code == 0 and re.match(r"qwen3-4b-math fits on 8xH100-80G", shown)


def test_all_shows_every_stage_and_what_is_assumed_in_80_columns():
    words = ["qwen3-4b-math", "--gpus", "8xH100"]
    few, every = command(*words)[1], command(*words, "--all")[1]
    assert "eval/*/gsm8k" in every and "eval/" not in few
    assert "Assumed:" in every and "Guessed:" in every
    tables = [line for line in every.split("Assumed:")[0].splitlines()[2:]]
    assert max(map(len, tables)) <= 80 and "…" not in every


def test_as_json_a_plan_is_one_object():
    assert json.loads(command("qwen3-4b-math", "--gpus", "2xH200", "--json")[1])["machine"]["sharding"] == "fsdp"


def test_runs_of_a_comparison_and_of_a_sweep_share_stages():
    def counted(*words: str) -> Counter:
        code, shown = command("demo", "--json", *words)
        assert code == 0
        return Counter(stage["stage"] for stage in json.loads(shown)["stages"])

    compared = counted("--methods", "sft,wmss", "--seeds", "2")
    assert compared["data"] == compared["entropy/base"] == compared["eval/base/arithmetic"] == 1
    assert compared["sft"] == compared["round-1/strong"] == compared["baselines/sft"] == 2
    swept = counted("--grid", "joint.strong_weight=0.3,0.5,0.7", "--seeds", "2")
    assert swept["data"] == 1 and swept["sft"] == swept["round-1/active"] == 2 and swept["round-1/strong"] == 6
    sampled = counted("--grid", "eval.temperature=0.5,0.7", "--seeds", "1")
    assert sampled["sft"] == sampled["round-1/strong"] == 1 and sampled["eval/sft/arithmetic"] == 2


def test_a_model_that_is_unknown_here_and_on_the_hub_is_an_error():
    with pytest.raises(UserError, match=r"config\.json"):
        planned("demo", "model=nobody/nothing")


def test_a_launch_configuration_is_read_as_strictly_as_a_recipe(tmp_path):
    file = tmp_path / "launch.yaml"
    file.write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nnum_processes: 8\n")
    with pytest.raises(UserError, match="num_processes is given twice"):
        launcher.read_config(file)


def test_evaluations_take_the_time_of_their_forward_passes_and_best_models_need_disk():
    def sft(*overrides: str) -> Cost:
        costs = planned("qwen3-4b-math", "data.validation_share=0.05", *overrides).costs
        return next(cost for cost in costs if cost.workload.name == "sft")

    plain, ten, five = sft(), sft("sft.eval_steps=0.1"), sft("sft.eval_steps=0.2")
    assert 0 < five.seconds - plain.seconds == pytest.approx((ten.seconds - plain.seconds) / 2, rel=0.1)
    best = sft("sft.eval_steps=0.1", "sft.keep=best", "sft.save_steps=0")
    assert (best.seconds, best.kept, best.work) == (ten.seconds, ten.kept, ten.kept)
