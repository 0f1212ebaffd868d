"""The study runs what its protocol says, with the choices of earlier parts."""

import json
import sys
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import pytest
from evidence_cases import result

from research.evidence import run as running
from research.evidence.collect import packed
from weakdriven.config.sweep import axes_of, points_of
from weakdriven.methods.table import BASELINES
from weakdriven.pipeline.sweep import recipes_of

ROOT = Path(__file__).parents[2]
STUDENT = "smollm2-135m"


@pytest.fixture
def results(tmp_path):
    """Results of the rates and epochs, of which 1e-4 and three are best."""
    for rate, right in {1e-5: 0.2, 3e-5: 0.3, 1e-4: 0.5, 3e-4: 0.4}.items():
        put_result(tmp_path, "rate", right, learning_rate=rate)
    for epochs, right in {1: 0.2, 2: 0.3, 3: 0.5, 4: 0.5, 6: 0.6}.items():
        put_result(tmp_path, "epochs", right, epochs=epochs, learning_rate=1e-4)
    return tmp_path


def put_result(folder, study, right, **settings):
    """A file in which the reference and M1 have so large a share of the answers right."""
    found = result(STUDENT, study, seeds=[42])
    found["recipe"]["sft"] |= settings
    for method in ("sft_restart", "m1"):
        for name, fact in found["items"].items():
            count = fact["count"]
            right_P = packed([place < right * count for place in range(count)])
            found["methods"][method]["seeds"]["42"][name]["right"] = right_P
    place = f"{study}-{'-'.join(map(str, settings.values()))}.json"
    (folder / place).write_text(json.dumps(found), encoding="utf-8")


def arguments(results, **options):
    settled = {
        "student": STUDENT,
        "set": [],
        "rate": None,
        "first": 42,
        "seeds": None,
        "only": [],
        "jobs": 5,
        "commit": "",
        "output": Path("runs"),
    }
    return SimpleNamespace(**settled | {"results": results} | options)


def commands(study, args):
    return [command for command, _ in running.commands(study, args)]


def test_every_command_of_a_study_is_one_that_the_package_takes(results):
    args = arguments(results, set=["trust_remote_code=false"])
    for study, (kind, recipe, *rest) in [(x, words) for x in running.STUDIES for words in commands(x, args)]:
        settings = [word for word in takewhile(lambda word: not word.startswith("--"), rest) if "/" not in word]
        axes = axes_of([rest[rest.index("--grid") + 1]]) if "--grid" in rest else []
        recipes_of(recipe, settings, axes, points_of(axes))
        assert kind == ("compare" if study in ("core", "alone") else "sweep")
        if kind == "compare":
            assert set(rest[rest.index("--methods") + 1].split(",")) - {"wmss"} <= set(BASELINES)


def test_runs_of_an_earlier_session_are_reused(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(running, "run", lambda words: asked.append(words))
    words = ["smollm2-135m", "core", "--rate", "1e-4", "--take-from", "earlier", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["run", *words, "--results", str(tmp_path)])
    running.main()
    assert asked[0][asked[0].index("--take-from") + 1] == "earlier" and "--take-from" not in asked[1]
    monkeypatch.setattr(sys, "argv", ["run", "smollm2-135m", "alone", *words[2:]])
    with pytest.raises(SystemExit):
        running.main()


def test_the_rate_is_the_best_on_validation_and_the_smaller_of_two(results):
    assert running.best_rate(results, STUDENT) == 1e-4
    put_result(results, "rate", 0.5, learning_rate=3e-4)
    assert running.best_rate(results, STUDENT) == 1e-4


@pytest.mark.parametrize("rate, more", [(1e-5, "3e-06"), (1e-4, None), (3e-4, "0.001")])
def test_a_best_rate_at_an_end_of_the_grid_asks_for_one_more(results, rate, more):
    put_result(results, "rate", 0.9, learning_rate=rate)
    first, *others = commands("rate", arguments(results))
    assert "--grid" in first and [words[-1] for words in others] == ([f"joint.learning_rate={more}"] if more else [])


def test_the_rate_of_joint_training_is_tried_around_that_of_sft(results):
    (command,) = commands("wmss_rate", arguments(results))
    assert "sft.learning_rate=0.0001" in command and "joint.learning_rate=0.0001" not in command
    assert "joint.learning_rate=1e-05,3e-05,0.0001,0.0003" in command


def test_epochs_are_enough_where_the_next_gains_less_than_half_a_point(results):
    assert running.enough_epochs(results, STUDENT, 1e-4) == 3
    put_result(results, "epochs", 0.56, epochs=4, learning_rate=1e-4)
    assert running.enough_epochs(results, STUDENT, 1e-4) == 6
    assert "sft.epochs=6" in commands("saturated", arguments(results))[0]
    (results / "epochs-6-0.0001.json").unlink()
    with pytest.raises(SystemExit, match="e6 was not tried; run `epochs --only e6`"):
        running.enough_epochs(results, STUDENT, 1e-4)
    put_result(results, "epochs", 0.3, epochs=3, learning_rate=1e-4)  # no more than two: nothing hangs on six
    assert running.enough_epochs(results, STUDENT, 1e-4) == 2
    with pytest.raises(SystemExit, match=r"were tried at a rate of 0.0001, not 0.0003; run `epochs` again"):
        commands("saturated", arguments(results, rate=3e-4))


def test_a_study_that_needs_an_earlier_one_names_it(tmp_path):
    with pytest.raises(SystemExit, match="no results of the study rate on smollm2-135m; run that first"):
        commands("core", arguments(tmp_path))


def test_other_seeds_go_to_other_folders_and_files(results):
    (command, folder), (_, other) = (
        next(running.commands("core", arguments(results, first=first, seeds=2))) for first in (45, 42)
    )
    assert "seed=45" in command and folder != other
    assert running.collected_as("core", arguments(results, first=45))[-1] == "s45"


def test_costs_are_measured_one_run_at_a_time_on_the_smallest_benchmark(results):
    (command,) = commands("alone", arguments(results))
    assert command[command.index("--jobs") + 1] == "1" and "eval.benchmarks=[mawps]" in command
    assert command[command.index("--methods") + 1] == "sft_restart,sft,wmss"
    assert running.collected_as("alone", arguments(results, only=["wmss"]))[-1] == "s42-wmss"
    put_result(results, "alone", 0.5)
    with pytest.raises(SystemExit, match="has sft of seed 42 already"):
        running.refuse_known("alone", arguments(results), Path("runs/new"))


def test_controls_are_variants_in_files_of_their_own(results):
    options = running.collected_as("controls", arguments(results))
    assert options[:2] == ["--study", "variants"] and options[-1] == "s42"
    points = [
        {point.name for point in points_of(axes_of([str(running.sweep_of(name))]))} for name in ("controls", "variants")
    ]
    assert not points[0] & points[1]


def test_an_interrupted_study_is_resumed_by_its_points(results, tmp_path):
    args = arguments(results, only=["uniform_active", "sft_compute"], first=45, seeds=2, output=tmp_path / "runs")
    ((command, folder),) = running.commands("controls", args)
    (axis,) = axes_of([command[command.index("--grid") + 1]])
    assert [choice.name for choice in axis.choices] == args.only and "sft_restart" in axis.settings["baselines"]
    whole = next(running.commands("controls", arguments(results, first=45)))[1]
    assert folder != whole  # a sweep is resumed only in a folder of its own points
    with pytest.raises(SystemExit, match=r"controls has no wmss; it has scaled_ce, sft_compute, uniform"):
        commands("controls", arguments(results, only=["wmss"]))


def test_runs_with_results_raise_an_error_before_they_begin(results, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(running, "run", lambda words: asked.append(words[0]))
    words = ["run", STUDENT, "controls", "--results", str(results), "--output", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", words)
    running.main()
    assert asked == ["-m", "-m"]
    found = result(STUDENT, "variants", scaled_ce=0.1)
    (results / "s42.json").write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"s42.json has scaled_ce of seed 42 already; give other seeds"):
        running.main()
    new = tmp_path / "runs/new"
    with pytest.raises(SystemExit, match="scaled_ce of seed 44 already"):
        running.refuse_known("controls", arguments(results, first=44), new)
    with pytest.raises(SystemExit, match="sft_restart of seed 42 already"):
        running.refuse_known("epochs", arguments(results), new)
    running.refuse_known("controls", arguments(results), tmp_path)  # it is resumed
    running.refuse_known("controls", arguments(results, only=["sft_compute"]), new)
    running.refuse_known("controls", arguments(results, first=45), new)
    running.refuse_known("core", arguments(results), new)


def test_missing_methods_of_the_core_run_with_the_reference(results):
    ((command, folder),) = running.commands("core", arguments(results, only=["wmss_frozen", "wdjt_only"]))
    assert command[-1] == "sft_restart,wdjt_only,wmss_frozen" and folder.name.endswith("core-s42-wmss_frozen-wdjt_only")
    assert running.collected_as("core", arguments(results, only=["wdjt_only"]))[-1] == "s42-wdjt_only"
    with pytest.raises(SystemExit, match="core has no wms; it has sft_restart, sft, wmss"):
        commands("core", arguments(results, only=["wms"]))


def test_epochs_run_only_as_far_as_their_rule_needs(results, tmp_path):
    args = arguments(results, only=["e3", "e2"], output=tmp_path / "runs")
    ((command, folder),) = running.commands("epochs", args)
    (axis,) = axes_of([command[command.index("--grid") + 1]])
    assert [choice.name for choice in axis.choices] == ["e3", "e2"] and running.VALIDATION in command
    assert command[command.index("--seeds") + 1] == "1" and folder.name == f"{STUDENT}-epochs-e3-e2"
    assert not [word for word in commands("epochs", arguments(results, first=45))[0] if word.startswith("seed=")]
    assert next(running.commands("epochs", arguments(results)))[1].name == f"{STUDENT}-epochs"


def test_a_study_without_points_takes_none(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run", STUDENT, "rate", "--output", "runs", "--only", "r1e-5"])
    with pytest.raises(SystemExit):
        running.main()
    assert "--only is for epochs, core, variants" in capsys.readouterr().err


def test_a_study_has_the_seeds_of_the_protocol(results):
    protocol = dict.fromkeys(("core", "controls", "saturated"), "5") | {"alone": "1"}
    protocol |= dict.fromkeys(("published", "exploratory", "sizes"), "3")
    for study, seeds in protocol.items():
        (command,) = commands(study, arguments(results))
        assert command[command.index("--seeds") + 1] == seeds
        (command,) = commands(study, arguments(results, seeds=2))
        assert command[command.index("--seeds") + 1] == "2"


def test_a_given_rate_needs_no_results(tmp_path):
    (command,) = commands("core", arguments(tmp_path, rate=3e-4))
    assert "joint.learning_rate=0.0003" in command
