"""Recipes: what ships, what the defaults are, and what a mistake in one is answered with."""

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
from weakdriven.commands.app import app
from weakdriven.config.file import describe, load_recipe, parse_recipe, recipe_schema, shipped_recipes
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import BENCHMARKS

SHIPPED = shipped_recipes()


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def weakdriven(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("from weakdriven.commands.app import main; main()", *arguments)


def test_the_demo_and_every_backbone_and_domain_of_the_paper_ship():
    assert sorted(SHIPPED) == sorted(["demo", *PAPER])


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_loads_under_its_own_name(name: str):
    assert load_recipe(name).name == name
    assert load_recipe(str(SHIPPED[name])) == load_recipe(name)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_opens_with_the_schema_and_a_description(name: str):
    first, second, *_ = SHIPPED[name].read_text(encoding="utf-8").splitlines()
    assert first == "# yaml-language-server: $schema=schema.json"
    assert second == f"# {describe(SHIPPED[name])}"
    assert describe(SHIPPED[name]).endswith(".")


def leaves(tree: dict[str, Any], *parents: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, *parents, key)
        else:
            yield (*parents, key), value


@pytest.mark.parametrize("name", PAPER)
def test_a_paper_recipe_is_described_in_one_short_line_and_writes_only_what_differs_from_the_defaults(name: str):
    assert len(describe(SHIPPED[name])) < 90 and "# Ours: " in SHIPPED[name].read_text(encoding="utf-8")
    written = yaml.safe_load(SHIPPED[name].read_text(encoding="utf-8"))
    defaults = dict(leaves(parse().model_dump(mode="json")))
    assert not [key for key, value in leaves(written) if value == defaults[key]]


@pytest.mark.parametrize("name", PAPER)
def test_a_paper_recipe_changes_nothing_that_the_paper_fixes(name: str):
    recipe, default = load_recipe(name), parse()
    machine = {"micro_batch_size": 1}
    assert recipe.sft.model_copy(update=machine) == default.sft
    assert recipe.joint.model_copy(update=machine) == default.joint
    assert recipe.selection == default.selection
    assert (recipe.method, recipe.baselines, recipe.seed) == ("wmss", ["sft"], 42)


@pytest.mark.parametrize("name", PAPER)
def test_a_paper_recipe_matches_the_backbone_and_domain_in_its_name(name: str):
    recipe = load_recipe(name)
    backbone, domain = name.rsplit("-", 1)
    gemma = backbone.startswith("gemma")
    assert recipe.model == BACKBONES[backbone]
    assert (recipe.data.path, recipe.data.domain, recipe.data.long_prompts) == (f"{domain}.jsonl", domain, "drop")
    assert recipe.data.style == ("tag-free" if gemma else "tagged")
    assert recipe.chat_template == ("gemma" if gemma else None)
    reported = [name for name, entry in BENCHMARKS.items() if entry.domain == domain and not entry.embedded]
    assert (recipe.eval.benchmarks, bool(recipe.eval.data_dir)) == (reported, domain != "code")


def test_the_shipped_schema_is_the_one_the_settings_give():
    schema = next(iter(SHIPPED.values())).parent / "schema.json"
    assert schema.read_text(encoding="utf-8") == recipe_schema()


def test_the_schema_explains_settings_and_forbids_others():
    schema = json.loads(recipe_schema())
    assert schema["additionalProperties"] is False
    assert "Paper: lambda." in schema["$defs"]["JointSettings"]["properties"]["strong_weight"]["description"]


def test_the_schema_requires_a_model_and_data_only_where_no_recipe_is_extended():
    schema = json.loads(recipe_schema())
    assert schema["properties"]["extends"]["type"] == "string"
    assert schema["if"] == {"not": {"required": ["extends"]}}
    assert schema["then"] == {"required": ["model", "data"], "properties": {"data": {"required": ["path"]}}}
    assert "required" not in schema
    assert not [name for name, block in schema["$defs"].items() if "required" in block]


@pytest.mark.parametrize("phase", ["sft", "joint"])
def test_each_phase_defaults_to_the_paper_and_to_our_choices_where_it_is_silent(phase: str):
    settings = getattr(parse(), phase)
    assert settings.epochs == 1
    assert settings.learning_rate == 1e-5
    assert settings.batch_size == 512
    assert settings.max_grad_norm == 1
    assert settings.warmup_ratio == 0.1
    assert settings.schedule == "linear"
    assert settings.adam_betas == (0.9, 0.999)
    assert settings.weight_decay == 0
    assert (settings.optimizer, settings.gradient_checkpointing) == ("adamw", True)


def test_the_method_defaults_to_the_paper():
    recipe = parse()
    assert recipe.method == "wmss"
    assert (recipe.joint.rounds, recipe.joint.strong_weight, recipe.joint.weak) == (1, 0.5, "joint")
    selection = recipe.selection
    assert (selection.consolidation, selection.difficulty, selection.repair) == (0.1, 0.8, 0.1)
    assert (selection.formula, selection.dedup, selection.multiplier) == ("paper", True, 1.0)
    assert (selection.match_steps, selection.reuse, recipe.data.empty_completions) == (False, [], "error")
    assert (recipe.data.max_length, recipe.seed, recipe.precision) == (4096, 42, "bf16-mixed")


@pytest.mark.parametrize("choice", ["auto", "liger", "off"])
def test_fast_layers_are_chosen_by_a_word_though_yaml_reads_off_as_false(choice: str):
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
        ("selecton.enabled=true", "selecton is not a setting. Did you mean selection?"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_near_one(override: str, answer: str):
    with pytest.raises(UserError, match=f"^mine.yaml: {re.escape(answer)}$"):
        parse(override)


def test_a_key_like_no_other_is_answered_with_what_is_allowed_there():
    with pytest.raises(UserError, match=r"selection\.qqq is not a setting\. Allowed here: enabled, consolidation,"):
        parse("selection.qqq=1")


@pytest.mark.parametrize(
    "override, answer",
    [
        ("joint.rounds=two", 'joint.rounds: Input should be a valid integer, found "two".'),
        ("joint.rounds=1.5", "joint.rounds: Input should be a valid integer, found 1.5."),
        ("sft.save_steps=true", "sft.save_steps: Input should be a valid integer, found true."),
        ("sft.learning_rate=fast", 'sft.learning_rate: Input should be a valid number, found "fast".'),
        ("selection.enabled=1", "selection.enabled: Input should be a valid boolean, found 1."),
        ("model=7", "model: Input should be a valid string, found 7."),
        ("eval.benchmarks=gsm8k", 'eval.benchmarks: Input should be a valid list, found "gsm8k".'),
        ("sft=3", "sft: "),
        ("data=", "data: "),
        ("sft.adam_betas=0.9", "sft.adam_betas: "),
        ("sft.adam_betas=[0.9]", "sft.adam_betas: expected two numbers"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_key(override: str, answer: str):
    with pytest.raises(UserError, match=re.escape(f"mine.yaml: {answer}")):
        parse(override)


@pytest.mark.parametrize(
    "override, answer",
    [
        ("joint.rounds=0", "joint.rounds: Input should be greater than or equal to 1, found 0."),
        ("joint.strong_weight=1.5", "joint.strong_weight: Input should be less than or equal to 1, found 1.5."),
        ("joint.strong_weight=-0.1", "joint.strong_weight: Input should be greater than or equal to 0, found -0.1."),
        ("sft.learning_rate=0", "sft.learning_rate: Input should be greater than 0, found 0."),
        ("sft.learning_rate=.nan", "sft.learning_rate: "),
        ("sft.warmup_ratio=1.0", "sft.warmup_ratio: Input should be less than 1, found 1.0."),
        ("selection.repair=-1", "selection.repair: Input should be greater than or equal to 0, found -1."),
        ("data.max_length=4", "data.max_length: Input should be greater than or equal to 8, found 4."),
        ("seed=-1", "seed: Input should be greater than or equal to 0, found -1."),
        ("seed=4294967296", "seed: Input should be less than 4294967296, found 4294967296."),
        ("data.domain=chess", "data.domain: Input should be 'math', 'code' or 'logic', found \"chess\"."),
        (
            "sft.gradient_checkpointing=some",
            "sft.gradient_checkpointing: Input should be True, False, 'keep_attention' or 'keep_products', "
            'found "some".',
        ),
        (
            "sft.optimizer=sgd",
            "sft.optimizer: Input should be 'adamw', 'adamw_bf16', 'adamw_8bit', 'adamw_fp8' or 'rmsprop', ",
        ),
        ("fast_layers=on", "fast_layers: Input should be 'auto', 'liger' or 'off', found true."),
        ("precision=fp16", "precision: Input should be 'bf16-mixed', 'bf16' or 'fp32', found \"fp16\"."),
        ("eval.benchmarks=[aquarius]", "eval.benchmarks.0: Input should be 'arithmetic', 'aime2025',"),
        ("baselines=[rlhf]", "baselines.0: Input should be 'sft', 'sft_restart', "),
        ("method=rlhf", "method: Input should be 'wmss', 'sft', "),
        ("neftune.alpha=-1", "neftune.alpha: Input should be greater than or equal to 0, found -1."),
        ("neftune.length=false", "neftune.length: Input should be True or 'padded', found false."),
        ("undial.strength=-1", "undial.strength: Input should be greater than or equal to 0, found -1."),
        ("undial.sigma=-0.5", "undial.sigma: Input should be greater than or equal to 0, found -0.5."),
        ("undial.site=head", "undial.site: Input should be 'target_logit', 'logits' or 'embedding', found \"head\"."),
    ],
)
def test_a_value_out_of_range_is_answered_with_what_is_allowed(override: str, answer: str):
    with pytest.raises(UserError, match=re.escape(f"mine.yaml: {answer}")):
        parse(override)


@pytest.mark.parametrize("strong_weight", [0, 0.0, 1, 1.0])
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
            "joint.strong_weight 0 with a frozen weak model trains nothing",
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
            "undial: strength is of mode adjusted_logits, but mode is paper_noise; remove one of them",
        ),
        (["undial.sigma=0"], "undial: sigma is of mode paper_noise, but mode is adjusted_logits; remove one of them"),
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
        (["baselines=[scaled_ce]", "joint.strong_anchor=1"], "scaled_ce has one constant joint.strong_weight, but"),
        (["baselines=[wmss_frozen]", "joint.strong_weight=0"], "wmss_frozen with joint.strong_weight 0 trains nothing"),
        (["method=sft", "baselines=[sft]"], "method sft stands in baselines too; remove it there"),
        (
            ["method=spin", "eval.batching=continuous"],
            "eval.batching is continuous, which cannot seed each sample, and",
        ),
    ],
)
def test_an_impossible_combination_is_refused(overrides: list[str], answer: str):
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


def test_recipes_show_of_an_unknown_name_suggests_the_near_one():
    result = weakdriven("recipes", "show", "dmo")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: dmo is neither")
    assert "Did you mean demo?" in result.stderr
    assert "Traceback" not in result.stderr


def test_recipes_schema_prints_the_schema():
    result = CliRunner().invoke(app, ["recipes", "schema"])
    assert (result.exit_code, result.output) == (0, recipe_schema())


def test_help_answers():
    result = weakdriven("--help")
    assert result.returncode == 0
    assert all(command in result.stdout for command in ("run", "report", "recipes"))


def test_the_command_line_starts_without_torch():
    heavy = ("torch", "transformers", "trl", "datasets", "accelerate")
    code = f"import sys, weakdriven.commands.app; print([name for name in {heavy} if name in sys.modules])"
    result = python(code)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr
