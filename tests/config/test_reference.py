"""The reference of settings: complete, as the page in the docs, and with the names that others give them."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import weakdriven
from weakdriven.commands.app import ORDER, app
from weakdriven.config.file import load_recipe
from weakdriven.config.recipe import Recipe
from weakdriven.config.reference import OTHER_NAMES, all_settings, explain_setting, settings_page
from weakdriven.config.settings import TrainSettings
from weakdriven.errors import UserError
from weakdriven.runs.yaml import load_yaml

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_the_page_is_what_the_command_prints():
    assert PAGE.read_text() == CliRunner().invoke(app, ["recipes", "explain"]).output == settings_page()


def test_every_setting_is_described():
    def keys(values, prefix=""):
        for name, value in values.items():
            yield prefix + name
            if isinstance(value, dict):
                yield from keys(value, f"{prefix}{name}.")

    recipe = Recipe.model_validate({"model": "m", "data": {"path": "d.jsonl"}, "lora": {}})
    found = {one.key: one for one in all_settings()}
    assert set(keys(recipe.model_dump(mode="json"))) <= found.keys()
    assert not [one.key for one in found.values() if not one.text and one.key.count(".") < 2]


def test_a_setting_is_explained_with_its_values_and_default():
    said = explain_setting("joint.strong_weight")
    assert "0.5" in said and "≥ 0 and ≤ 1" in said and "lambda" in said
    assert "joint.strong_weight:" in explain_setting("joint")


@pytest.mark.parametrize(
    "key, hint", [("strong_weight", "joint.strong_weight"), ("joint.strong_wait", "strong_weight")]
)
def test_an_unknown_name_is_answered_with_near_ones(key, hint):
    with pytest.raises(UserError, match=hint):
        explain_setting(key)


def test_every_other_name_leads_to_a_setting_and_is_none_itself():
    keys = {one.key for one in all_settings()}
    for name, (ours, _) in OTHER_NAMES.items():
        assert ours in keys or ours in TrainSettings.model_fields or ours.startswith("--"), ours
        assert name not in Recipe.model_fields and name not in TrainSettings.model_fields


@pytest.mark.parametrize(
    "override, ours",
    [
        ("lambda=0.3", "joint.strong_weight"),
        ("joint.lambda=0.3", "joint.strong_weight"),
        ("selection.alpha=0.3", "selection.consolidation"),
        ("lr=1e-5", "sft.learning_rate and joint.learning_rate"),
        ("joint.num_epochs=2", r"joint.epochs\."),
        ("sft.gradient_accumulation_steps=4", "sft.batch_size"),
        ("per_device_train_batch_size=4", "sft.micro_batch_size"),
    ],
)
def test_a_recipe_with_another_name_is_answered_with_ours(override, ours):
    with pytest.raises(UserError, match=ours):
        load_recipe("demo", [override])


def test_values_that_are_nearly_right_are_answered_with_the_right_ones():
    with pytest.raises(UserError, match=r"\[gsm8k\]"):
        load_recipe("demo", ["eval.benchmarks=gsm8k"])
    with pytest.raises(UserError, match=r"Did you mean gsm8k\?"):
        load_recipe("demo", ["eval.benchmarks=[gsm8]"])


def test_the_second_of_two_equal_keys_is_named_with_its_line():
    with pytest.raises(yaml.YAMLError, match=r"rank is given twice(.|\n)*line 4, column 3"):
        load_yaml("lora:\n  rank: 4\n  alpha: 8\n  rank: 5\n")


def test_the_version_is_printed():
    said = CliRunner().invoke(app, ["--version"])
    assert said.exit_code == 0 and weakdriven.__version__ in said.output


def test_help_lists_all_commands_in_the_order_of_use():
    assert set(ORDER) == {
        *(group.name for group in app.registered_groups),
        *(one.callback.__name__ for one in app.registered_commands if one.callback),
    }
    said = CliRunner().invoke(app, ["--help"]).output
    places = [said.index(f"│ {name} ") for name in ORDER]
    assert places == sorted(places)
