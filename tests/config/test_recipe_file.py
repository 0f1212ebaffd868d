"""Recipe files and overrides: how they are read, and errors."""

import re
from pathlib import Path

import pytest

from recipe_cases import MINIMAL, parse
from weakdriven.config.file import dump_recipe, load_recipe, shipped_recipes
from weakdriven.errors import UserError


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_name_of_a_recipe_is_that_of_its_file_by_default(tmp_path: Path):
    text = "model: m\ndata: {path: rows.jsonl}\n"
    assert load_recipe(write(tmp_path / "mine.yaml", text)).name == "mine"
    assert load_recipe(write(tmp_path / "mine.yml", text + "name: other\n")).name == "other"


@pytest.mark.parametrize("name, near", [("dmo", "demo"), ("qwen3-4b-maths", "qwen3-4b-math")])
def test_an_unknown_recipe_name_is_an_error_with_the_near_one(name: str, near: str):
    with pytest.raises(UserError, match=rf"^{name} is neither .* shipped recipe\. Did you mean {near}\?"):
        load_recipe(name)


def test_an_unknown_recipe_name_without_a_near_one_points_to_the_list():
    with pytest.raises(UserError, match=r"^zzzzz is neither .* shipped recipe\. `weakdriven recipes` lists"):
        load_recipe("zzzzz")


def test_a_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(UserError, match=r"nowhere\.yaml: the recipe file cannot be read .*No such file"):
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
def test_a_file_that_is_not_a_mapping_is_an_error(tmp_path: Path, text: str, found: str):
    with pytest.raises(UserError, match=rf"expected settings as `key: value` lines, found {found}\."):
        load_recipe(write(tmp_path / "shape.yaml", text))


def test_a_duplicate_key_is_an_error(tmp_path: Path):
    with pytest.raises(UserError, match="seed is given twice"):
        load_recipe(write(tmp_path / "twice.yaml", "model: m\ndata: {path: a}\nseed: 1\nseed: 2\n"))


@pytest.mark.parametrize(
    "override",
    ["sft.learning_rate=.inf", "sft.adam_betas=[2.0, 0.9]", "baselines=[sft, sft]", "name=a/../b", "joint..rounds=2"],
)
def test_values_that_would_fail_later_are_an_error(override: str):
    with pytest.raises(UserError):
        parse(override)


def test_a_number_without_a_dot_is_read_as_a_number(tmp_path: Path):
    text = "model: m\ndata: {path: rows.jsonl}\nsft: {learning_rate: 3e-6, adam_betas: [9e-1, 0.95]}\n"
    recipe = load_recipe(write(tmp_path / "mine.yaml", text))
    assert (recipe.sft.learning_rate, recipe.sft.adam_betas) == (3e-6, (0.9, 0.95))


def test_a_dumped_recipe_loads_as_the_same_recipe(tmp_path: Path):
    for name in shipped_recipes():
        recipe = load_recipe(name, ["sft.adam_betas=[0.9, 0.95]", "joint.learning_rate=3e-6"])
        assert load_recipe(write(tmp_path / "recipe.yaml", dump_recipe(recipe))) == recipe


def test_overrides_change_what_they_name_and_nothing_else():
    overrides = ["joint.rounds=2", "sft.learning_rate=1e-4", "selection.enabled=false", "eval.limit=null"]
    changed, demo = load_recipe("demo", overrides), load_recipe("demo")
    assert changed.joint == demo.joint.model_copy(update={"rounds": 2})
    assert changed.sft == demo.sft.model_copy(update={"learning_rate": 1e-4})
    assert changed.selection == demo.selection.model_copy(update={"enabled": False})
    assert changed.eval == demo.eval.model_copy(update={"limit": None})
    assert (changed.data, changed.name) == (demo.data, "demo")


def test_an_override_may_add_a_group_that_the_file_lacks():
    assert "eval" not in MINIMAL
    assert parse("eval.benchmarks=[gsm8k, svamp]").eval.benchmarks == ["gsm8k", "svamp"]


def test_an_override_may_hold_an_equals_sign_in_its_value():
    assert parse("data.path=a=b.jsonl").data.path == "a=b.jsonl"


def test_the_last_of_two_overrides_wins():
    assert parse("seed=1", "seed=2").seed == 2


@pytest.mark.parametrize("override", ["joint.rounds", "=3", ""])
def test_an_override_of_another_form_is_an_error(override: str):
    with pytest.raises(UserError, match=rf"^Override '{override}' is not of the form key\.sub=value\.$"):
        load_recipe("demo", [override])


@pytest.mark.parametrize("override, value", [("model.size=4b", "model"), ("data.path.x=1", "path")])
def test_an_override_into_a_value_is_an_error(override: str, value: str):
    with pytest.raises(UserError, match=f"^Override '{override}': {value} holds a value, not a group of settings"):
        load_recipe("demo", [override])


def test_an_override_with_a_broken_value_is_an_error():
    with pytest.raises(UserError, match=re.escape("Override 'joint.rounds=[1': the value is not valid YAML.")):
        load_recipe("demo", ["joint.rounds=[1"])


PARENT = """
name: the-parent
model: some/model
data: {path: rows.jsonl, limit: 100}
sft: {epochs: 2, learning_rate: 1e-4, adam_betas: [0.9, 0.95]}
lora: {rank: 8}
baselines: [sft, neftune]
"""


def test_a_recipe_that_extends_another_has_its_settings_and_a_name_of_its_own(tmp_path: Path):
    write(tmp_path / "parent.yaml", PARENT)
    child = load_recipe(write(tmp_path / "child.yaml", "extends: parent.yaml\n"))
    assert child.name == "child"
    assert child.model_copy(update={"name": "the-parent"}) == load_recipe(str(tmp_path / "parent.yaml"))
    assert load_recipe(write(tmp_path / "child.yaml", "extends: parent.yaml\nname: mine\n")).name == "mine"


def test_groups_are_merged_and_values_lists_and_null_replace(tmp_path: Path):
    write(tmp_path / "parent.yaml", PARENT)
    text = "extends: parent.yaml\nsft: {epochs: 3, adam_betas: [0.8, 0.9]}\nbaselines: [undial]\nlora: null\n"
    child = load_recipe(write(tmp_path / "child.yaml", text + "joint: {rounds: 2}\n"))
    assert (child.sft.epochs, child.sft.learning_rate, child.sft.adam_betas) == (3, 1e-4, (0.8, 0.9))
    assert (child.baselines, child.lora, child.joint.rounds) == (["undial"], None, 2)
    assert (child.data.path, child.data.limit) == ("rows.jsonl", 100)


def test_groups_are_merged_at_any_depth(tmp_path: Path):
    write(tmp_path / "parent.yaml", PARENT + "ssb: {epochs: 1, rollouts: {samples: 6, subsample: 10}}\n")
    text = "extends: parent.yaml\nssb: {rollouts: {subsample: null}}\n"
    ssb = load_recipe(write(tmp_path / "child.yaml", text)).ssb
    assert (ssb.epochs, ssb.rollouts.samples, ssb.rollouts.subsample) == (1, 6, None)


def test_the_command_line_overrides_the_file_and_the_file_what_it_extends(tmp_path: Path):
    write(tmp_path / "parent.yaml", PARENT)
    child = write(tmp_path / "child.yaml", "extends: parent.yaml\nsft: {epochs: 3}\n")
    changed = load_recipe(child, ["sft.epochs=4"])
    assert (changed.sft.epochs, changed.sft.learning_rate) == (4, 1e-4)


def test_extends_may_be_chained_and_paths_are_relative_to_each_file(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "middle.yaml", "extends: demo\nseed: 1\nsft: {epochs: 2}\n")
    child = load_recipe(write(tmp_path / "sub/child.yaml", "extends: ../middle.yaml\nseed: 2\n"))
    assert (child.name, child.seed, child.sft.epochs) == ("child", 2, 2)
    assert child.sft.learning_rate == load_recipe("demo").sft.learning_rate
    assert child.data.path == "embedded:arithmetic"


def test_a_data_path_is_not_relative_to_the_recipe(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub/parent.yaml", PARENT)
    assert load_recipe(write(tmp_path / "child.yaml", "extends: sub/parent.yaml\n")).data.path == "rows.jsonl"


def test_a_file_may_extend_the_shipped_recipe_of_its_own_name(tmp_path: Path):
    assert load_recipe(write(tmp_path / "demo.yaml", "extends: demo\nseed: 7\n")).seed == 7


def test_recipes_that_extend_each_other_are_an_error(tmp_path: Path):
    first = write(tmp_path / "first.yaml", "extends: second.yaml\n")
    write(tmp_path / "second.yaml", "extends: ./third.yaml\n")
    write(tmp_path / "third.yaml", "extends: second.yaml\n")
    message = (
        r"first\.yaml: .*in a circle \(.*second\.yaml extends \./third\.yaml extends second\.yaml\); remove extends"
    )
    with pytest.raises(UserError, match=message):
        load_recipe(first)
    with pytest.raises(UserError, match=r"in a circle \(.*self\.yaml extends self\.yaml\)"):
        load_recipe(write(tmp_path / "self.yaml", "extends: self.yaml\n"))


def test_an_unknown_recipe_to_extend_is_an_error_with_the_near_one(tmp_path: Path):
    message = r"^qwen3-4b-mth \(which \S+child\.yaml extends\) is neither .* Did you mean qwen3-4b-math\?"
    with pytest.raises(UserError, match=message):
        load_recipe(write(tmp_path / "child.yaml", "extends: qwen3-4b-mth\n"))


@pytest.mark.parametrize(
    "parent, answer",
    [
        (None, ": the recipe file cannot be read"),
        ("model: [1", " is not valid YAML: "),
        ("- model\n", ": expected settings as `key: value` lines, found a list"),
    ],
)
def test_a_broken_file_to_extend_is_reported_with_the_one_that_extends_it(
    tmp_path: Path, parent: str | None, answer: str
):
    if parent:
        write(tmp_path / "parent.yaml", parent)
    with pytest.raises(
        UserError, match=rf"^parent\.yaml \(which \S+child\.yaml extends\){re.escape(answer)}"
    ) as caught:
        load_recipe(write(tmp_path / "child.yaml", "extends: parent.yaml\n"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value, found", [("[demo]", '["demo"]'), ("7", "7"), ("", "null"), ("''", '""')])
def test_extends_takes_one_name(tmp_path: Path, value: str, found: str):
    message = f"child.yaml: extends: expected the name of a shipped recipe or a .yaml file, found {found}."
    with pytest.raises(UserError, match=re.escape(message)):
        load_recipe(write(tmp_path / "child.yaml", f"extends: {value}\n"))


def test_a_wrong_setting_is_reported_with_every_file_it_may_come_from(tmp_path: Path):
    write(tmp_path / "parent.yaml", "extends: demo\nsft: {epoch: 2}\n")
    message = (
        r"child\.yaml \(which extends parent\.yaml, which extends demo\): sft\.epoch is not a setting\. Did you mean"
    )
    with pytest.raises(UserError, match=message):
        load_recipe(write(tmp_path / "child.yaml", "extends: parent.yaml\n"))


def test_extends_cannot_be_an_override_and_a_misspelt_one_gets_a_suggestion(tmp_path: Path):
    with pytest.raises(UserError, match=r"^demo with your overrides: extends is allowed only in recipe files"):
        load_recipe("demo", ["extends=qwen3-4b-math"])
    with pytest.raises(UserError, match=r"extend is not a setting\. Did you mean extends\?"):
        load_recipe(write(tmp_path / "child.yaml", "extend: demo\n"))


def test_an_override_of_a_yaml_alias_changes_one_place(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: m\ndata: {path: rows.jsonl}\nspin: &pairs {rollouts: {top_p: 0.9}}\ndpo: *pairs\n")
    recipe = load_recipe(str(file), ["spin.iterations=2", "spin.rollouts.top_p=0.8"])
    assert (recipe.spin.iterations, recipe.spin.rollouts.top_p, recipe.dpo.rollouts.top_p) == (2, 0.8, 0.9)
