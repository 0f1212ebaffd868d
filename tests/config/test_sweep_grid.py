"""Grids, the paper's sweeps as shipped, and errors in a grid."""

import pytest
import yaml

from weakdriven.config.file import describe, load_recipe
from weakdriven.config.sweep import MOST_POINTS, as_overrides, axes_of, points_of, shipped_sweeps
from weakdriven.errors import UserError

LAMBDAS = [0.1, 0.2, 0.3, 0.4, 0.42, 0.44, 0.46, 0.48, 0.5, 0.52, 0.54, 0.56, 0.58, 0.6, 0.7, 0.8, 0.9]
LATER = {"weak-checkpoint", "steps", "frozen-weak"}


def points(*words):
    return points_of(axes_of(list(words)))


def test_a_range_is_spaced_evenly_and_prints_cleanly():
    found = points("joint.strong_weight=0.1..0.9:9")
    assert [one.values["joint.strong_weight"] for one in found] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert found[2].name == "joint.strong_weight-0.3"
    assert as_overrides(found[2].overrides) == ["joint.strong_weight=0.3"]


def test_whole_ends_give_whole_numbers_if_the_steps_are_whole():
    assert [one.values["sft.epochs"] for one in points("sft.epochs=1..4:4")] == [1, 2, 3, 4]
    assert [one.values["x"] for one in points("x=0..1:3")] == [0.0, 0.5, 1.0]


def test_rates_may_be_spaced_by_even_ratios():
    found = points("joint.learning_rate=1e-6..1e-4:5log")
    rates = [one.values["joint.learning_rate"] for one in found]
    assert rates == pytest.approx([1e-6, 10**-5.5, 1e-5, 10**-4.5, 1e-4]) and rates[2] == 1e-5
    recipe = load_recipe("demo", as_overrides(found[0].overrides))
    assert recipe.joint.learning_rate == 1e-6


def test_a_list_holds_any_value_a_recipe_may_have():
    assert [one.overrides["joint.weak"] for one in points("joint.weak=joint,frozen")] == ["joint", "frozen"]
    assert [one.overrides["x"] for one in points("x=1e-5,true,null,[1, 2]")] == [1e-5, True, None, [1, 2]]


def test_several_grids_make_a_product_with_the_last_one_fastest():
    found = points("joint.strong_weight=0.3,0.5", "selection.enabled=true,false")
    assert [tuple(one.values.values()) for one in found] == [(0.3, True), (0.3, False), (0.5, True), (0.5, False)]
    assert found[1].name == "joint.strong_weight-0.3__selection.enabled-false"
    assert as_overrides(found[1].overrides) == ["joint.strong_weight=0.3", "selection.enabled=false"]


def test_folder_names_are_safe_and_differ_on_case_insensitive_disks():
    found = points("model=org/Name,org/name,../up")
    names = [one.name for one in found]
    assert len({name.casefold() for name in names}) == 3 and not any("/" in name for name in names)
    assert all(not name.startswith(".") for name in names)
    long = points(f"data.path={'a' * 300},b")
    assert all(len(one.name) <= 80 for one in long)


@pytest.mark.parametrize(
    "words, answer",
    [
        (
            ["joint.strong_weight=0.9..0.1:9"],
            "is not a range; write low..high:count.* with low below high and a count from 2 to 1,000",
        ),
        (["joint.strong_weight=0.1..0.9:1"], "is not a range"),
        (["joint.strong_weight=0.1..0.9"], "is not a range; write low..high:count"),
        (["joint.strong_weight=0.1..high:3"], "is not a range"),
        (["joint.learning_rate=0..1:3log"], "Logarithmic spacing.* needs a low end above 0"),
        (["joint.strong_weight="], "has no values"),
        (["joint.strong_weight=0.5,0.5"], "0.5 is given twice"),
        (["joint.strong_weight=0.5,{"], "is not a list of values"),
        (["x=1..2:600", "y=1,2"], f"make 1,200 points, but a sweep can have at most {MOST_POINTS:,}"),
        (["x=0..1:" + "9" * 5000], "is not a range"),
        (["x=1,2", "x=3,4"], "key x is in two grids"),
        (["lambda", "joint.strong_weight=0.1,0.2"], "key joint.strong_weight is in two grids"),
        (["lamda"], "neither KEY=VALUES nor a shipped sweep. Did you mean lambda?"),
        (["seed=1,2"], "use --seeds"),
        (["joint..weak=1,2"], "does not name a setting"),
        (["nowhere.yaml"], "the sweep file cannot be read"),
        ([], "A sweep needs something to vary"),
    ],
)
def test_a_wrong_grid_is_an_error(words, answer):
    with pytest.raises(UserError, match=answer):
        points(*words)


@pytest.mark.parametrize(
    "text, answer",
    [
        ("points: {figures: {a: 1}}", "cannot be named figures"),
        ("points: {}", "points: expected `key: value` lines"),
        ("points: {a: 3}", "points.a: expected `key: value` lines, found 3"),
        ("grid: {a: 3}", "grid.a: expected a list of values"),
        ("grid: {a: [1]}\npoints: {b: {}}", "expected `grid`, or `axis` and `points`"),
        ("grid: {a: [1]}\npoint: {}", "expected `grid`, or `axis` and `points`"),
        ("- 1", "expected settings as `key: value` lines, found a list"),
        ("grid: [", "is not valid YAML"),
    ],
)
def test_a_wrong_sweep_file_is_an_error(tmp_path, text, answer):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=answer):
        axes_of([str(path)])


def test_a_yaml_file_is_a_sweep(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("grid: {joint.strong_weight: 0.3..0.5:3, joint.weak: [joint, frozen]}\nsettings: {data.limit: 8}\n")
    axes = axes_of([str(path)])
    assert [axis.label for axis in axes] == ["joint.strong_weight", "joint.weak"] and len(points_of(axes)) == 6
    assert axes[0].settings == {"data.limit": 8}


def test_the_papers_sweeps_are_shipped_and_say_what_they_are():
    shipped = shipped_sweeps()
    assert set(shipped) == {"lambda", "selection", "epochs", *LATER}
    for path in shipped.values():
        assert describe(path).endswith(".") and "Paper" in path.read_text()


def test_lambda_has_the_papers_seventeen_values():
    assert [one.values["joint.strong_weight"] for one in points("lambda")] == LAMBDAS


def test_selection_has_the_papers_six_setups():
    keys = ("selection.consolidation", "selection.difficulty", "selection.repair")
    found = {one.name: tuple(one.overrides[key] for key in keys) for one in points("selection")}
    assert found == {
        "default": (0.1, 0.8, 0.1),
        "A": (0.2, 0.7, 0.1),
        "B": (0.2, 0.6, 0.2),
        "C": (0.1, 0.9, 0.0),
        "D": (0.0, 1.0, 0.0),
        "E": (0.05, 0.85, 0.1),
    }
    assert all(sum(weights) == pytest.approx(1) for weights in found.values())


def test_epochs_are_m1_and_a_round_each():
    (axis,) = axes_of(["epochs"])
    assert axis.start == 1 and axis.settings["baselines"] == ["sft"]
    for one in points_of([axis]):
        recipe = load_recipe("demo", as_overrides(axis.settings | one.overrides))
        assert recipe.budget_epochs == one.values["epochs"], "SFT is trained for as many epochs"


def test_weak_checkpoints_are_the_base_and_every_snapshot_that_sft_keeps():
    (axis,) = axes_of(["weak-checkpoint"])
    kept = axis.settings["sft.snapshots"]
    assert [one.overrides["joint.weak_snapshot"] for one in axis.choices] == [None, *kept]
    assert [one.value for one in axis.choices] == [0, *kept]


def test_trainings_over_steps_keep_the_same_shares_and_start_from_m1():
    for name, keys in {"steps": ["selection.enabled"], "frozen-weak": ["joint.weak"]}.items():
        (axis,) = axes_of([name])
        assert axis.keys == keys and len(axis.choices) == 2
        assert axis.settings["joint.snapshots"] == [0.25, 0.5, 0.75] and axis.settings["eval.snapshots"] is True
        assert axis.settings["baselines"] == ["sft_restart"]


def test_every_shipped_sweep_is_a_valid_recipe_at_each_point():
    for name in shipped_sweeps():
        axes = axes_of([name])
        common = [word for axis in axes for word in as_overrides(axis.settings)]
        for one in points_of(axes):
            load_recipe("demo", [*common, *as_overrides(one.overrides)])


def test_no_sweep_file_has_a_duplicate_key():
    for path in shipped_sweeps().values():
        nodes = [yaml.compose(path.read_text())]
        while nodes:
            node = nodes.pop()
            if isinstance(node, yaml.MappingNode):
                keys = [key.value for key, _ in node.value]
                assert len(set(keys)) == len(keys), f"{path.name}: {keys}"
                nodes += [value for _, value in node.value]
