"""`data` as one path, as a list of sources, and as both one after the other."""

import pytest
import yaml

from recipe_cases import MINIMAL, parse
from weakdriven.config.file import dump_recipe, load_recipe, parse_recipe
from weakdriven.errors import UserError

TWO = [{"path": "a.jsonl", "weight": 3}, {"path": "b.csv", "weight": 1, "fields": {"prompt": "input"}}]


def recipe(data):
    return parse_recipe(MINIMAL | {"data": data}, "mine.yaml").data


def test_a_list_is_the_sources_and_settings_for_all_stand_next_to_them():
    assert recipe(TWO) == recipe({"sources": TWO})
    assert [one.path for one in recipe(TWO).each] == ["a.jsonl", "b.csv"]
    assert recipe({"sources": TWO, "max_length": 99}).max_length == 99
    assert [one.model_dump(exclude_defaults=True) for one in recipe({"path": "a", "limit": 3}).each] == [
        {"path": "a", "limit": 3}
    ]


def test_a_recipe_with_sources_is_the_same_after_it_is_written(tmp_path):
    whole = parse_recipe(MINIMAL | {"data": TWO})
    (tmp_path / "r.yaml").write_text(dump_recipe(whole))
    assert load_recipe(str(tmp_path / "r.yaml")) == whole


def test_an_extending_recipe_and_an_override_replace_the_rows_and_keep_the_other_settings(tmp_path):
    base = MINIMAL | {"data": {"path": "old.jsonl", "split": "test", "limit": 5, "max_length": 99}}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"extends": "base.yaml", "data": TWO}))
    mine = load_recipe(str(tmp_path / "mine.yaml")).data
    assert (mine.path, mine.max_length, mine.limit, len(mine.sources)) == (None, 99, None, 2)
    for overrides in (["data.path=new.jsonl"], ["data.limit=null", "data.path=new.jsonl"]):
        again = load_recipe(str(tmp_path / "mine.yaml"), overrides).data
        assert (again.path, again.sources, again.max_length) == ("new.jsonl", [], 99)
    for key in ("data", "data.sources"):
        listed = load_recipe(str(tmp_path / "base.yaml"), [f"{key}=[{{path: a}}, {{path: b}}]"]).data
        assert ([one.path for one in listed.each], listed.max_length, listed.split) == (["a", "b"], 99, "train")


def test_other_rows_are_not_cut_at_the_limit_that_was_chosen_for_a_recipes_own(tmp_path):
    assert load_recipe("demo").data.limit and load_recipe("demo", ["data.path=mine.jsonl"]).data.limit is None
    assert load_recipe("demo", ["data.path=embedded:arithmetic"]) == load_recipe("demo")
    for overrides in (["data.path=mine.jsonl", "data.limit=7"], ["data.limit=7", "data.path=mine.jsonl"]):
        assert load_recipe("demo", overrides).data.limit == 7
    assert load_recipe("demo", ["data.limit=7"], varied=["data.path=mine.jsonl"]).data.limit == 7
    for written, limit in (({"path": "mine.jsonl"}, None), ({"path": "mine.jsonl", "limit": 7}, 7)):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"extends": "demo", "data": written}))
        assert load_recipe(str(tmp_path / "mine.yaml")).data.limit == limit


@pytest.mark.parametrize(
    "data, words",
    [
        ([], "path is required but missing"),
        ({"path": "a", "sources": TWO}, "path and sources are both set"),
        ({"sources": TWO, "limit": 3}, "limit is set together with sources"),
        ({"sources": TWO, "fields": {"prompt": "x"}}, "fields is set together with sources"),
        ([{"path": "a", "weight": 0}, {"path": "b", "weight": 1}], r"data.sources.0.weight: .*greater than 0"),
        ([{"path": "a", "weight": -1}, {"path": "b", "weight": 1}], r"data.sources.0.weight: .*greater than 0"),
        ([{"path": "a", "weight": 1}, {"path": "b"}], "1 of 2 sources have a weight, and b has none"),
        ([{"path": "a", "weight": 1, "limit": 3}, {"path": "b"}], "a has a limit and a weight"),
        ([{"path": "a"}, {"path": "./a"}], r"sources name ./a twice"),
        ([{"path": "a"}, {"limit": 3}], "data.sources.1.path is required but missing"),
        ([{"path": "a", "wieght": 3}], "data.sources.0.wieght is not a setting. Did you mean data.sources.0.weight"),
    ],
)
def test_sources_that_cannot_be_meant_are_an_error_naming_the_setting(data, words):
    with pytest.raises(UserError, match=words):
        recipe(data)


def test_two_splits_of_one_dataset_are_two_sources():
    assert len(recipe([{"path": "o/n", "split": "train"}, {"path": "o/n", "split": "extra"}]).each) == 2


def test_a_single_path_is_written_as_before():
    assert parse("data.limit=3").data.each[0].limit == 3
