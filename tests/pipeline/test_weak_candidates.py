"""`weakdriven select pairing`: how far each weak model lies from the strong one, over the same examples."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import SMALL, Recorder, small_recipe
from weakdriven.commands.app import main
from weakdriven.commands.select import print_separations
from weakdriven.errors import UserError
from weakdriven.models.load import locate_model
from weakdriven.pipeline.weak_candidates import pair_checkpoints
from weakdriven.report import write_report
from weakdriven.runs.directory import Progress
from weakdriven.wmss.score_files import read_scores

BASE = locate_model("embedded:base")


@pytest.fixture(scope="module")
def models(two_round_run) -> dict[str, Path]:
    """Checkpoints of one run, and where it is."""
    root, _ = two_round_run
    return {"run": root, "sft": root / "sft", "m2": root / "round-1/strong", "m3": root / "round-2/strong"}


def pair(root: Path, *overrides: str, weak=(), strong=None, examples=16, progress=None):
    recipe = small_recipe(*overrides)
    weak, strong = [str(path) for path in weak], strong and str(strong)
    return pair_checkpoints(recipe, root, progress or Progress(), weak=weak, strong=strong, examples=examples)


def entropies(run: Path, model: str) -> np.ndarray:
    return read_scores(run / f"entropy/{model}/scores.parquet")["entropy"].to_numpy()


def test_the_numbers_are_those_of_the_entropies_over_all_examples(models, tmp_path):
    base, checkpoint = pair(tmp_path, strong=models["m2"], weak=[models["sft"]], examples=96)
    strong_N = entropies(models["run"], "round-1")
    for found, weak_N in ((base, entropies(models["run"], "base")), (checkpoint, entropies(models["run"], "sft"))):
        change_N = strong_N - weak_N
        assert found.examples == 96
        assert found.weak_entropy == pytest.approx(weak_N.mean(), abs=1e-6)
        assert found.strong_entropy == pytest.approx(strong_N.mean(), abs=1e-6)
        assert found.change == pytest.approx(change_N.mean(), abs=1e-6)
        assert found.distance == pytest.approx(abs(change_N).mean(), abs=1e-6)
        assert found.error == pytest.approx(change_N.std(ddof=1) / 96**0.5, abs=1e-6)
    assert [found.weak for found in (base, checkpoint)] == ["base", str(models["sft"])]


def test_every_model_is_asked_about_the_same_examples_and_the_seed_decides_which(models, tmp_path):
    def ids(root, *overrides):
        pair(root, *overrides, strong=models["m3"], weak=[models["m2"]], examples=8)
        tables = [read_scores(path) for path in sorted((root / "pairing").glob("*/scores.parquet"))]
        assert len(tables) == 3 and all(table["id"] == tables[0]["id"] for table in tables)
        return tables[0]["id"].to_pylist()

    first = ids(tmp_path / "a")
    assert len(set(first)) == 8
    assert ids(tmp_path / "b", "seed=43") != first


def test_the_strong_model_is_the_m1_of_the_recipe_unless_one_is_given(models, tmp_path):
    [given] = pair(tmp_path / "given", strong=models["sft"])
    [ready] = pair(tmp_path / "ready", f"sft.model={models['sft']}")
    assert given == ready
    root = Path(shutil.copytree(models["run"], tmp_path / "trained"))
    recorder = Recorder()
    [trained] = pair(root, "joint.rounds=2", progress=recorder)
    assert trained == given
    assert list(recorder.ran) == ["pairing/sft", "pairing/base"]
    assert not [stage for stage in recorder.ran if stage.startswith("entropy")]


def test_an_m1_that_is_not_trained_is_refused_and_leaves_no_trace(tmp_path):
    with pytest.raises(UserError, match=r"sft has to be trained first \(not run yet\)"):
        pair(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("examples", [1, 0, -5])
def test_a_separation_needs_two_examples(examples, tmp_path):
    with pytest.raises(UserError, match=f"--examples is {examples}; a separation needs at least 2"):
        pair(tmp_path / "run", strong=BASE, examples=examples)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="no model folder"):
        pair(tmp_path / "run", strong=BASE, weak=["./nowhere"])


def test_a_checkpoint_is_too_close_to_itself_and_the_table_warns(models, tmp_path, capsys):
    base, itself = pair(tmp_path, strong=models["m2"], weak=[models["m2"]])
    assert (itself.distance, itself.change, itself.correlation) == (0, 0, pytest.approx(1))
    assert itself.too_close and not base.too_close
    print_separations([base, itself])
    words = " ".join(capsys.readouterr().out.split())
    assert words.count("too close") == 1 and words.count("Warning: ") == 1
    assert f"Warning: {models['m2']} is 0.0% of the strong model's entropy away" in words


def test_checkpoints_in_folders_of_the_same_name_are_told_apart(models, tmp_path):
    places = [Path(shutil.copytree(models[m], tmp_path / m / "out/checkpoint-9")) for m in ("m2", "m3")]
    _, one, other = pair(tmp_path / "run", strong=models["sft"], weak=places)
    assert [one.weak, other.weak] == [str(place) for place in places]
    assert one.weak_entropy != other.weak_entropy
    stages = [path.name for path in (tmp_path / "run/pairing").iterdir() if path.name.startswith("out-checkpoint-9-")]
    assert len(stages) == 2


def test_asking_again_scores_nothing_and_one_more_checkpoint_only_that(models, tmp_path):
    first = pair(tmp_path, strong=models["m3"])
    recorder = Recorder()
    again = pair(tmp_path, strong=models["m3"], weak=[models["m2"]], progress=recorder)
    assert again[:1] == first
    [ran] = recorder.ran
    assert ran.startswith("pairing/round-1-strong-")


def test_whole_score_files_of_other_runs_are_no_hindrance(models, tmp_path):
    found = pair(tmp_path, f"selection.reuse=[{models['run']}]", strong=models["m2"])
    assert found == pair(tmp_path, strong=models["m2"])


def test_what_was_paired_beside_a_run_is_no_leftover_of_it(models, tmp_path):
    root = Path(shutil.copytree(models["run"], tmp_path / "run"))
    pair(root, "joint.rounds=2", weak=[models["m2"]])
    assert len(list(root.glob("pairing/*/manifest.json"))) == 3
    page = write_report(root).read_text()
    assert "from an older recipe" not in page and "pairing/" not in page
    assert set(json.loads((root / "plan.json").read_text())) == {
        path.parent.relative_to(models["run"]).as_posix() for path in models["run"].glob("**/manifest.json")
    }


def test_the_command_prints_one_row_for_each_weak_model(models, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    command = ["weakdriven", "select", "pairing", "demo", *SMALL, f"sft.model={models['sft']}", "--examples", "16"]
    command += ["--weak", str(models["m2"]), "--weak", str(models["m3"]), "--output", str(tmp_path / "run"), "--quiet"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert (stop.value.code, printed.err) == (0, "")
    assert "nats per token over 16 examples." in printed.out
    rows = [line for line in printed.out.splitlines() if "±" in line]
    assert [row.split()[1] for row in rows] == ["base", "round-1/strong", "round-2/strong"]


def test_a_run_that_is_there_is_not_changed_by_comparing_checkpoints_with_other_settings(models, tmp_path):
    root = Path(shutil.copytree(models["run"], tmp_path / "run"))
    before = {path: path.read_bytes() for path in root.rglob("*.json")}
    with pytest.raises(UserError, match=r"data of the existing run would be computed again \(limit 96 -> 50\)"):
        pair(root, "joint.rounds=2", "data.limit=50", strong=models["sft"])
    pair(root, "joint.rounds=1", strong=models["sft"])
    after = {path: path.read_bytes() for path in root.rglob("*.json") if "pairing" not in path.parts}
    assert after == before
    assert "rounds: 2" in (root / "recipe.yaml").read_text()
