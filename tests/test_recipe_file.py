"""Recipe files and overrides: what is read, and what a mistake in one is answered with."""

import re
from pathlib import Path

import pytest

from recipe_cases import MINIMAL, parse
from weakdriven.errors import UserError
from weakdriven.recipe_file import dump_recipe, load_recipe, shipped_recipes

SHIPPED = shipped_recipes()


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_recipe_file_is_named_after_itself_unless_it_says_otherwise(tmp_path: Path):
    text = "model: m\ndata: {path: rows.jsonl}\n"
    assert load_recipe(write(tmp_path / "mine.yaml", text)).name == "mine"
    assert load_recipe(write(tmp_path / "mine.yml", text + "name: other\n")).name == "other"


@pytest.mark.parametrize("name, near", [("dmo", "demo"), ("qwen3-4b-maths", "qwen3-4b-math")])
def test_an_unknown_recipe_name_is_answered_with_the_near_one(name: str, near: str):
    with pytest.raises(UserError, match=rf"^{name} is neither .* shipped recipe\. Did you mean {near}\?"):
        load_recipe(name)


def test_a_recipe_name_like_no_other_points_to_the_list():
    with pytest.raises(UserError, match=r"^zzzzz is neither .* shipped recipe\. `weakdriven recipes` lists"):
        load_recipe("zzzzz")


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path):
    with pytest.raises(UserError, match=r"nowhere\.yaml: there is no such recipe file"):
        load_recipe(str(tmp_path / "nowhere.yaml"))


def test_a_folder_or_binary_file_cannot_be_read(tmp_path: Path):
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("folder.yaml", "binary.yaml"):
        with pytest.raises(UserError, match=f"{name}: the recipe file cannot be read"):
            load_recipe(str(tmp_path / name))


@pytest.mark.parametrize("text", ["model: [1", "model: a: b", "\tmodel: m", "model: !!python/object:os.system x"])
def test_bad_yaml_is_reported_on_one_line_with_its_place(tmp_path: Path, text: str):
    with pytest.raises(UserError, match=r"bad\.yaml is not valid YAML: .*line 1, column \d+") as caught:
        load_recipe(write(tmp_path / "bad.yaml", text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text, found", [("- model\n- data\n", "a list"), ("model\n", "a str"), ("", "nothing")])
def test_a_file_that_is_not_a_mapping_is_refused(tmp_path: Path, text: str, found: str):
    with pytest.raises(UserError, match=rf"expected settings as `key: value` lines, found {found}\."):
        load_recipe(write(tmp_path / "shape.yaml", text))


def test_a_key_that_stands_twice_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="seed stands twice"):
        load_recipe(write(tmp_path / "twice.yaml", "model: m\ndata: {path: a}\nseed: 1\nseed: 2\n"))


@pytest.mark.parametrize(
    "override",
    ["sft.learning_rate=.inf", "sft.adam_betas=[2.0, 0.9]", "baselines=[sft, sft]", "name=a/../b", "joint..rounds=2"],
)
def test_values_that_would_only_fail_later_are_refused_at_once(override: str):
    with pytest.raises(UserError):
        parse(override)


def test_a_number_without_a_dot_is_read_as_a_number_in_a_file(tmp_path: Path):
    text = "model: m\ndata: {path: rows.jsonl}\nsft: {learning_rate: 3e-6, adam_betas: [9e-1, 0.95]}\n"
    recipe = load_recipe(write(tmp_path / "mine.yaml", text))
    assert (recipe.sft.learning_rate, recipe.sft.adam_betas) == (3e-6, (0.9, 0.95))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_dumped_recipe_loads_as_the_same_recipe(tmp_path: Path, name: str):
    recipe = load_recipe(name, ["sft.adam_betas=[0.9, 0.95]", "joint.learning_rate=3e-6"])
    assert load_recipe(write(tmp_path / "recipe.yaml", dump_recipe(recipe))) == recipe


def test_overrides_change_what_they_name_and_nothing_else():
    overrides = ["joint.rounds=2", "sft.learning_rate=1e-4", "selection.enabled=false", "eval.limit=null"]
    changed, demo = load_recipe("demo", overrides), load_recipe("demo")
    assert changed.joint == demo.joint.model_copy(update={"rounds": 2})
    assert changed.sft == demo.sft.model_copy(update={"learning_rate": 1e-4})
    assert changed.selection == demo.selection.model_copy(update={"enabled": False})
    assert (changed.data, changed.eval, changed.name) == (demo.data, demo.eval, "demo")


def test_an_override_opens_a_group_that_the_file_leaves_out():
    assert "eval" not in MINIMAL
    assert parse("eval.benchmarks=[gsm8k, svamp]").eval.benchmarks == ["gsm8k", "svamp"]


def test_an_override_may_hold_an_equals_sign_in_its_value():
    assert parse("data.path=a=b.jsonl").data.path == "a=b.jsonl"


def test_the_last_of_two_overrides_wins():
    assert parse("seed=1", "seed=2").seed == 2


@pytest.mark.parametrize("override", ["joint.rounds", "=3", ""])
def test_an_override_of_another_form_is_refused(override: str):
    with pytest.raises(UserError, match=rf"^Override '{override}' is not of the form key\.sub=value\.$"):
        load_recipe("demo", [override])


@pytest.mark.parametrize("override, value", [("model.size=4b", "model"), ("data.path.x=1", "path")])
def test_an_override_into_a_value_is_refused(override: str, value: str):
    with pytest.raises(UserError, match=f"^Override '{override}': {value} holds a value, not a group of settings"):
        load_recipe("demo", [override])


def test_an_override_with_a_broken_value_is_refused():
    with pytest.raises(UserError, match=re.escape("Override 'joint.rounds=[1': the value is not valid YAML.")):
        load_recipe("demo", ["joint.rounds=[1"])
