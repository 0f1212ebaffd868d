"""`weakdriven select pairing`: how far each weak model is from the strong one, over the same examples."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from command_line import WHOLE, weakdriven
from small_runs import Recorder
from weakdriven.commands.select import print_separations
from weakdriven.config.file import load_recipe
from weakdriven.errors import UserError
from weakdriven.models.load import locate_model
from weakdriven.pipeline.weak_candidates import pair_checkpoints
from weakdriven.report import write_report
from weakdriven.wmss.score_files import read_scores

BASE = locate_model("embedded:base")


@pytest.fixture(scope="session")
def models(whole_run) -> dict[str, Path]:
    """Checkpoints of one run, and where it is."""
    root, _ = whole_run
    return {"run": root, "m1": root / "sft", "m2": root / "round-1/strong", "sft": root / "baselines/sft"}


@pytest.fixture
def root(models, tmp_path) -> Path:
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(models["run"], tmp_path / "run"))


def pair(root: Path, *overrides: str, weak=(), strong=None, examples=8, progress=None):
    recipe = load_recipe("demo", [*WHOLE, *overrides])
    weak, strong = [str(path) for path in weak], strong and str(strong)
    return pair_checkpoints(recipe, root, progress or Recorder(), weak=weak, strong=strong, examples=examples)


def entropies(run: Path, model: str) -> np.ndarray:
    return read_scores(run / f"entropy/{model}/scores.parquet")["entropy"].to_numpy()


def test_separations_are_those_of_the_entropies_and_finished_scores_are_kept(models, tmp_path):
    root = tmp_path / "run"
    first = pair(root, strong=models["m1"], examples=32)
    recorder = Recorder()
    base, checkpoint = pair(root, strong=models["m1"], weak=[models["m2"]], examples=32, progress=recorder)
    assert first == [base], "a second call scores only the further checkpoint"
    assert len(recorder.ran) == 1 and next(iter(recorder.ran)).startswith("pairing/round-1-strong-")
    strong_N, weak_N = entropies(models["run"], "sft"), entropies(models["run"], "base")
    change_N = strong_N - weak_N
    assert base.examples == 32 and base.weak == "base" and checkpoint.weak == str(models["m2"])
    assert base.weak_entropy == pytest.approx(weak_N.mean(), abs=1e-6)
    assert base.strong_entropy == checkpoint.strong_entropy == pytest.approx(strong_N.mean(), abs=1e-6)
    assert base.change == pytest.approx(change_N.mean(), abs=1e-6)
    assert base.distance == pytest.approx(abs(change_N).mean(), abs=1e-6)
    assert base.error == pytest.approx(change_N.std(ddof=1) / 32**0.5, abs=1e-6)
    reused = pair(tmp_path / "reused", f"selection.reuse=[{models['run']}]", strong=models["m1"], examples=32)
    assert reused == first, "whole score files of other runs are not mistaken for these"


def test_every_model_is_scored_on_the_same_examples_and_the_seed_determines_which(models, tmp_path):
    drawn = []
    for seed in (42, 43):
        pair(tmp_path / str(seed), f"seed={seed}", strong=models["m2"])
        tables = [read_scores(path) for path in sorted((tmp_path / f"{seed}/pairing").glob("*/scores.parquet"))]
        assert len(tables) == 2 and tables[0]["id"] == tables[1]["id"]
        drawn.append(tables[0]["id"].to_pylist())
    assert drawn[0] != drawn[1] and len(set(drawn[0])) == 8


def test_the_strong_model_is_the_m1_of_the_recipe_unless_one_is_given(models, root, tmp_path):
    before = {path: path.read_bytes() for path in root.rglob("*.json")}
    recorder = Recorder()
    [trained] = pair(root, "joint.rounds=2", progress=recorder)
    assert list(recorder.ran) == ["pairing/sft", "pairing/base"]
    with pytest.raises(UserError, match=r"data of the existing run would be recomputed \(limit 32 -> 16\)"):
        pair(root, "data.limit=16", strong=models["m1"])
    after = {path: path.read_bytes() for path in root.rglob("*.json") if "pairing" not in path.parts}
    assert after == before, "the run itself does not change"
    page = write_report(root).read_text()
    assert "from an older recipe" not in page and "pairing/" not in page
    assert not [name for name in json.loads((root / "plan.json").read_text()) if "pairing" in name]
    [given] = pair(tmp_path / "given", strong=models["m1"])
    [ready] = pair(tmp_path / "ready", f"sft.model={models['m1']}")
    assert given == ready == trained


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, r"sft must be trained first \(not run yet\)"),
        ({"strong": BASE, "examples": 1}, "--examples is 1, expected at least 2"),
        ({"strong": BASE, "weak": ["./nowhere"]}, "no model folder"),
    ],
)
def test_a_mistake_leaves_nothing(tmp_path, options, words):
    with pytest.raises(UserError, match=words):
        pair(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_checkpoints_of_the_same_name_are_kept_apart_and_one_too_close_is_warned_of(models, tmp_path, capsys):
    places = [Path(shutil.copytree(models[m], tmp_path / m / "out/checkpoint-9")) for m in ("m2", "sft")]
    found = base, itself, other = pair(tmp_path / "run", strong=models["m2"], weak=places)
    assert [itself.weak, other.weak] == [str(place) for place in places]
    stages = [path.name for path in (tmp_path / "run/pairing").iterdir() if path.name.startswith("out-checkpoint-9-")]
    assert len(stages) == 2 and itself.weak_entropy != other.weak_entropy
    assert (itself.distance, itself.change, itself.correlation) == (0, 0, pytest.approx(1))
    assert itself.too_close and not base.too_close
    print_separations(list(found[:2]))
    words = " ".join(capsys.readouterr().out.split())
    assert words.count("too close") == 1 and words.count("Warning: ") == 1
    assert f"Warning: the entropies of {places[0]} differ from the strong model's by only 0.0%" in words


def test_the_command_prints_one_row_for_each_weak_model(models, tmp_path):
    words = ["demo", *WHOLE, f"sft.model={models['m1']}", "--examples", "8", "--weak", models["m2"]]
    done = weakdriven("select", "pairing", *words, "--output", tmp_path / "run", "--quiet")
    assert (done.code, done.err) == (0, "") and "nats per token over 8 examples." in done.out
    rows = [line for line in done.out.splitlines() if "±" in line]
    assert [row.split()[1] for row in rows] == ["base", "round-1/strong"]
