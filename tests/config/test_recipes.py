"""Recipes: those that ship, the defaults, and errors."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from recipe_cases import BACKBONES, PAPER, parse
from weakdriven.commands.app import app, main
from weakdriven.config.file import describe, load_recipe, parse_recipe, recipe_schema, shipped_recipes
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS

SHIPPED = shipped_recipes()


def test_the_demo_and_every_backbone_and_domain_of_the_paper_ship():
    assert sorted(SHIPPED) == sorted(["demo", *PAPER])


def test_a_shipped_recipe_loads_under_its_own_name_and_opens_with_the_schema_and_a_description():
    for name, path in SHIPPED.items():
        assert load_recipe(name).name == name
        assert load_recipe(str(path)) == load_recipe(name)
        first, second, *_ = path.read_text(encoding="utf-8").splitlines()
        assert first == "# yaml-language-server: $schema=schema.json"
        assert second == f"# {describe(path)}" and describe(path).endswith("."), name


def test_rows_are_trained_on_as_they_are_unless_a_style_is_asked_for():
    assert parse().data.style == "plain" and parse().data.system_prompt is None
    assert parse("data.system_prompt=Be kind.").data.system_prompt == "Be kind."
    with pytest.raises(UserError, match="data: system_prompt is set, and style tagged"):
        parse("data.system_prompt=Be kind.", "data.style=tagged")


def leaves(tree: dict[str, Any], *parents: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, *parents, key)
        else:
            yield (*parents, key), value


def test_a_paper_recipe_has_a_short_description_and_only_settings_that_differ_from_the_defaults():
    defaults = dict(leaves(parse().model_dump(mode="json")))
    for name in PAPER:
        text = SHIPPED[name].read_text(encoding="utf-8")
        assert len(describe(SHIPPED[name])) < 90 and "# Ours: " in text
        assert not [key for key, value in leaves(yaml.safe_load(text)) if value == defaults[key]], name


def test_a_paper_recipe_changes_only_backbone_domain_and_machine():
    default, machine = parse(), {"micro_batch_size": 1}
    for name in PAPER:
        recipe = load_recipe(name)
        assert recipe.sft.model_copy(update=machine) == default.sft
        assert recipe.joint.model_copy(update=machine) == default.joint
        assert recipe.selection == default.selection
        assert (recipe.method, recipe.baselines, recipe.seed) == ("wmss", ["sft"], 42)
        backbone, domain = name.rsplit("-", 1)
        gemma = backbone.startswith("gemma")
        assert recipe.model == BACKBONES[backbone]
        assert (recipe.data.path, recipe.data.domain, recipe.data.long_prompts) == (f"{domain}.jsonl", domain, "drop")
        assert recipe.data.style == ("tag-free" if gemma else "tagged")
        assert recipe.chat_template == ("gemma" if gemma else None)
        reported = [one for one, entry in BENCHMARKS.items() if entry.domain == domain and not entry.embedded]
        assert (recipe.eval.benchmarks, bool(recipe.eval.data_dir)) == (reported, domain != "code")


def test_the_shipped_schema_is_generated_from_the_settings():
    schema = next(iter(SHIPPED.values())).parent / "schema.json"
    assert json.loads(schema.read_text(encoding="utf-8")) == json.loads(recipe_schema())  # pydantic may write 0.0 as 0


def test_the_schema_explains_settings_and_allows_no_others():
    schema = json.loads(recipe_schema())
    assert schema["additionalProperties"] is False
    assert "Paper: lambda." in schema["$defs"]["JointSettings"]["properties"]["strong_weight"]["description"]


def test_the_schema_requires_a_model_and_data_only_if_no_recipe_is_extended():
    schema = json.loads(recipe_schema())
    assert schema["properties"]["extends"]["type"] == "string"
    assert schema["if"] == {"not": {"required": ["extends"]}}
    named = {"anyOf": [{"required": ["path"]}, {"required": ["sources"]}]}
    assert schema["then"] == {"required": ["model", "data"], "properties": {"data": named}}
    assert "required" not in schema
    entries_of_lists = {"TestSet", "SourceSettings"}  # which are never laid over another recipe's
    assert not [name for name, block in schema["$defs"].items() if "required" in block and name not in entries_of_lists]


@pytest.mark.parametrize("phase", ["sft", "joint"])
def test_each_phase_defaults_to_the_paper_and_to_our_choices_elsewhere(phase: str):
    paper = {"epochs": 1, "learning_rate": 1e-5, "batch_size": 512, "max_grad_norm": 1, "warmup_ratio": 0.1}
    ours = {"schedule": "linear", "adam_betas": (0.9, 0.999), "weight_decay": 0}
    ours |= {"optimizer": "adamw", "gradient_checkpointing": True}
    settings = getattr(parse(), phase)
    assert {key: getattr(settings, key) for key in paper | ours} == paper | ours


def test_the_method_defaults_to_the_paper():
    recipe = parse()
    assert recipe.method == "wmss"
    assert (recipe.joint.rounds, recipe.joint.strong_weight, recipe.joint.weak) == (1, 0.5, "joint")
    selection = recipe.selection
    assert (selection.consolidation, selection.difficulty, selection.repair) == (0.1, 0.8, 0.1)
    assert (selection.formula, selection.dedup, selection.multiplier) == ("paper", True, 1.0)
    assert (selection.match_steps, selection.reuse, recipe.data.empty_completions) == (False, [], "error")
    assert (recipe.data.max_length, recipe.seed, recipe.precision) == (4096, 42, "bf16-mixed")


@pytest.mark.parametrize("choice", ["liger", "off"])
def test_fast_layers_may_be_off_though_yaml_reads_off_as_false(choice: str):
    assert parse(f"fast_layers={choice}").fast_layers == choice
    assert parse().fast_layers == "auto"


def test_sft_gets_as_many_epochs_as_the_whole_of_wmss():
    assert parse().budget_epochs == 2
    assert parse("sft.epochs=2", "joint.rounds=3", "joint.epochs=4").budget_epochs == 14


@pytest.mark.parametrize(
    "override, answer",
    [
        ("selection.dificulty=1", "selection.dificulty is not a setting. Did you mean selection.difficulty?"),
        ("modle=x", "modle is not a setting. Did you mean model?"),
        ("selection.qqq=1", "selection.qqq is not a setting. Allowed here: enabled, consolidation,"),
    ],
)
def test_an_unknown_key_is_an_error_with_the_near_one_or_those_allowed(override: str, answer: str):
    with pytest.raises(UserError, match=f"^mine.yaml: {re.escape(answer)}"):
        parse(override)


@pytest.mark.parametrize(
    "override, answer",
    [
        ("joint.rounds=two", 'joint.rounds: Input should be a valid integer, found "two".'),
        ("joint.rounds=1.5", "joint.rounds: "),
        ("sft.save_steps=true", "sft.save_steps: "),
        ("sft.learning_rate=fast", "sft.learning_rate: "),
        ("selection.enabled=1", "selection.enabled: "),
        ("model=7", "model: "),
        ("eval.benchmarks=gsm8k", "eval.benchmarks: "),
        ("sft=3", "sft: "),
        ("data=", "data: "),
        ("sft.adam_betas=0.9", "sft.adam_betas: "),
        ("sft.adam_betas=[0.9]", "sft.adam_betas: expected two numbers"),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_with_its_key(override: str, answer: str):
    with pytest.raises(UserError, match=re.escape(f"mine.yaml: {answer}")):
        parse(override)


@pytest.mark.parametrize(
    "override, answer",
    [
        ("joint.rounds=0", "joint.rounds: Input should be greater than or equal to 1, found 0."),
        ("joint.strong_weight=1.5", "joint.strong_weight: "),
        ("joint.strong_weight=-0.1", "joint.strong_weight: "),
        ("sft.learning_rate=0", "sft.learning_rate: "),
        ("sft.learning_rate=.nan", "sft.learning_rate: "),
        ("sft.warmup_ratio=1.0", "sft.warmup_ratio: "),
        ("selection.repair=-1", "selection.repair: "),
        ("data.max_length=4", "data.max_length: "),
        ("seed=-1", "seed: "),
        ("seed=4294967296", "seed: "),
        ("data.domain=chess", "data.domain: Input should be 'math', 'code' or 'logic', found \"chess\"."),
        ("sft.gradient_checkpointing=some", "sft.gradient_checkpointing: Input should be True, False, 'keep_att"),
        ("sft.optimizer=sgd", "sft.optimizer: "),
        ("fast_layers=on", "fast_layers: Input should be 'auto', 'liger' or 'off', found true."),
        ("precision=fp8", "precision: "),
        ("eval.benchmarks=[aquarius]", "eval.benchmarks.0: "),
        ("baselines=[rlhf]", "baselines.0: "),
        ("method=rlhf", "method: "),
        ("neftune.alpha=-1", "neftune.alpha: "),
        ("neftune.length=false", "neftune.length: Input should be True or 'padded', found false."),
        ("undial.strength=-1", "undial.strength: "),
        ("undial.sigma=-0.5", "undial.sigma: "),
        ("undial.site=head", "undial.site: "),
    ],
)
def test_a_value_out_of_range_is_an_error_with_what_is_allowed(override: str, answer: str):
    with pytest.raises(UserError, match=re.escape(f"mine.yaml: {answer}")):
        parse(override)


@pytest.mark.parametrize("strong_weight", [0, 1.0])
def test_both_ends_of_the_mixture_are_allowed(strong_weight: float):
    assert parse(f"joint.strong_weight={strong_weight}").joint.strong_weight == strong_weight


@pytest.mark.parametrize(
    "overrides, answer",
    [
        (["sft.micro_batch_size=3"], "sft: batch_size 512 is not a multiple of micro_batch_size 3"),
        (["joint.batch_size=8", "joint.micro_batch_size=16"], "joint: batch_size 8 is not a multiple of"),
        (
            ["selection.consolidation=0", "selection.difficulty=0", "selection.repair=0"],
            "selection: consolidation, difficulty and repair are all 0",
        ),
        (
            ["selection.match_steps=true", "selection.enabled=false"],
            "selection.match_steps is set, but selection.enabled",
        ),
        (["selection.reuse=[a, b, a]"], "selection.reuse: "),
        (["selection.enabled=false", "joint.enabled=false"], "selection.enabled and joint.enabled are both false"),
        (
            ["joint.strong_weight=0", "joint.weak=frozen"],
            "joint.strong_weight is 0 and joint.weak is frozen",
        ),
        (
            ["joint.strong_weight=1", "joint.strong_anchor=0.1"],
            "joint.strong_anchor is set, but joint.strong_weight is 1, so no logits are mixed; remove one of them.",
        ),
        (["joint.enabled=false", "joint.strong_anchor=0.1"], "joint.strong_anchor is set, but joint.enabled is false,"),
        (["joint.enabled=false", "joint.strong_weight_end=0"], "joint.strong_weight_end is set, but joint.enabled is"),
        (["joint.enabled=false", "joint.weak_learning_rate=1e-4"], "joint.weak_learning_rate is set, but joint.enabl"),
        (["method=sft", "sft.model=ready"], "sft.model gives a ready M1, but method sft trains from the base"),
        (["sft.optimizer=adamw_bf16"], "sft.optimizer adamw_bf16 is for weights in bf16, but precision is bf16-mixed"),
        (["joint.optimizer=adamw_bf16", "precision=fp32"], "joint.optimizer adamw_bf16 is for weights in bf16, but"),
        (
            ["undial.mode=paper_noise", "undial.strength=2"],
            "undial: strength belongs to mode adjusted_logits, but mode is paper_noise; remove one of them",
        ),
        (
            ["undial.sigma=0"],
            "undial: sigma belongs to mode paper_noise, but mode is adjusted_logits; remove one of them",
        ),
        (
            ["undial={mode: paper_noise, site: embedding, sign: abs}"],
            "undial: sign abs lowers logits, but site is embedding; use sign: signed, or another site",
        ),
        (
            ["method=undial", "undial.mode=paper_noise", "sft.model=ready"],
            "sft.model gives a ready M1, but method undial trains from the base",
        ),
        (
            ["baselines=[sft_active]", "selection.enabled=false"],
            "sft_active needs the active set, but selection.enabled is false; remove one of them",
        ),
        (["method=scaled_ce", "joint.strong_weight=0"], "scaled_ce multiplies logits by joint.strong_weight, which is"),
        (["baselines=[scaled_ce]", "joint.strong_anchor=1"], "scaled_ce needs a constant joint.strong_weight, but"),
        (["baselines=[wmss_frozen]", "joint.strong_weight=0"], "wmss_frozen with joint.strong_weight 0 trains nothing"),
        (["method=sft", "baselines=[sft]"], "method sft is also in baselines; remove it there"),
        (
            ["method=spin", "eval.batching=continuous"],
            "eval.batching is continuous, which cannot seed the samples that spin draws",
        ),
    ],
)
def test_an_impossible_combination_is_an_error(overrides: list[str], answer: str):
    with pytest.raises(UserError, match=re.escape(f"mine.yaml: {answer}")):
        parse(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["precision=bf16", "sft.optimizer=adamw_bf16"],
        ["selection.enabled=false"],
        ["joint.enabled=false"],
        ["method=sft"],
        ["method=undial", "sft.model=ready"],
        ["method=neftune", "neftune.length=padded", "baselines=[sft]"],
        ["sft.model=ready", "baselines=[sft]"],
    ],
)
def test_each_switch_alone_is_allowed(overrides: list[str]):
    parse(*overrides)


def test_all_problems_are_reported_at_once():
    with pytest.raises(UserError) as caught:
        parse("joint.rounds=0", "sft.epochs=many", "selection.dificulty=1", "sft.micro_batch_size=1")
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("mine.yaml: ") for line in lines)
    assert {line.split()[1].rstrip(":") for line in lines} == {"joint.rounds", "sft.epochs", "selection.dificulty"}


def test_required_settings_are_all_named_when_missing():
    with pytest.raises(UserError, match=r"(?s)model is required but missing\..*data is required but missing\."):
        parse_recipe({})


def test_recipes_lists_each_shipped_recipe_with_its_description():
    result = CliRunner().invoke(app, ["recipes"])
    assert result.exit_code == 0
    lines = [line.split(maxsplit=1) for line in result.output.splitlines()]
    assert lines == [[name, describe(path)] for name, path in SHIPPED.items()] and len(lines) == 13


def test_recipes_show_prints_the_file_of_a_shipped_recipe():
    result = CliRunner().invoke(app, ["recipes", "show", "demo"])
    assert (result.exit_code, result.output) == (0, SHIPPED["demo"].read_text(encoding="utf-8"))


def test_recipes_show_whole_prints_every_setting_of_what_the_file_resolves_to():
    result = CliRunner().invoke(app, ["recipes", "show", "--whole", "qwen3-4b-math"])
    whole = load_recipe("qwen3-4b-math").model_dump(mode="json")
    assert (result.exit_code, yaml.safe_load(result.output)) == (0, whole)


def test_recipes_show_of_an_unknown_name_suggests_the_near_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["weakdriven", "recipes", "show", "dmo"])
    with pytest.raises(SystemExit) as stop:
        main()
    output, error = capsys.readouterr()
    assert (stop.value.code, output) == (2, "")
    assert error.startswith("Error: dmo is neither")
    assert "Did you mean demo?" in error and "Traceback" not in error


def test_help_lists_the_commands():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(command in result.output for command in ("run", "report", "recipes"))


def test_the_command_line_starts_without_torch():
    heavy = ("torch", "transformers", "trl", "datasets", "accelerate")
    code = f"import sys, weakdriven.commands.app; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr
