"""A changed setting on a finished run: nothing that was finished is replaced unless `--replace` asks for it."""

import shlex
import shutil
from pathlib import Path

import pytest

from command_line import WHOLE, assert_user_error, weakdriven
from fault_cases import FORKED, killed_at, results
from small_runs import Recorder
from weakdriven.config.file import load_recipe
from weakdriven.pipeline import run as pipeline
from weakdriven.pipeline.run import RunOptions, all_stages, carry_out, existing_losses, run_recipe
from weakdriven.runs.directory import REPLACED, work_folder
from weakdriven.runs.files import read_json, write_json
from weakdriven.stages.model_loader import Loader

OTHER = [*WHOLE, "joint.strong_weight=0.7"]
CHANGED = {"round-1/strong/model.safetensors", "round-1/strong/metrics.jsonl", "eval/round-1/arithmetic/samples.jsonl"}


@pytest.fixture
def run(whole_run, tmp_path) -> Path:
    """A copy of the finished run, whose joint training took two hours."""
    root = Path(shutil.copytree(whole_run[0], tmp_path / "run"))
    file = root / "round-1/strong/manifest.json"
    write_json(file, read_json(file) | {"wall_seconds": 7200.0})
    return root


def differing(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


def test_a_changed_setting_stops_with_the_stages_and_their_cost_and_changes_no_file(run, monkeypatch):
    def load(*_, **__):
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(Loader, "load", load)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    stopped = weakdriven("run", "demo", *OTHER, "--output", run)
    assert_user_error(stopped, f"{run}/round-1/strong (2.0 hours): strong_weight 0.5 -> 0.7", "eval/round-1/arithmetic")
    assert "2 finished stages" in stopped.err and f"{run}/sft" not in stopped.err
    given = f"weakdriven run demo {shlex.join(OTHER)}"
    assert f"{given} --output {run} --replace\n" in stopped.err
    assert f"{given} --output {run}-2 --take-from {run}\n" in stopped.err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@FORKED
def test_with_replace_the_run_goes_on_after_a_kill_too_and_keeps_nothing_of_the_old_result(run):
    before = results(run)
    checkpoint = work_folder(run, "round-1/strong") / "work/checkpoints/checkpoint-2/complete"
    words = ["run", "demo", *OTHER, "--output", run, "--replace"]
    killed_at(checkpoint, *words)
    assert checkpoint.exists() and results(run) == before, "the old result stays until the new one is whole"
    resumed = weakdriven(*words)
    assert resumed.code == 0, resumed.err
    assert read_json(run / "round-1/strong/manifest.json")["resumed"] == 1
    assert differing(before, results(run)) >= CHANGED and not (run / REPLACED).exists()
    kept = {name for name in before if name.startswith(("sft/", "entropy/", "baselines/", "round-1/active/"))}
    assert kept.isdisjoint(differing(before, results(run)))


def test_the_old_setting_takes_back_what_was_replaced_before_the_run_was_finished(run, monkeypatch):
    before, evaluate = results(run), pipeline.evaluate_models

    def interrupted(context, models):
        if context.run.computes:
            raise KeyboardInterrupt
        evaluate(context, models)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pipeline, "evaluate_models", interrupted)
        run_recipe(load_recipe("demo", OTHER), run, Recorder(), RunOptions(replace=True))
    assert (run / REPLACED / "round-1/strong/model.safetensors").is_file()
    assert "round-1/strong/model.safetensors" in differing(before, results(run))
    recorder = Recorder()
    carry_out(load_recipe("demo", WHOLE), run, recorder, all_stages, evaluates=True)
    assert recorder.ran == {"round-1/strong": "taken back from .replaced"}
    ours = {name: value for name, value in results(run).items() if not name.startswith(REPLACED)}
    assert ours == {name: value for name, value in before.items() if name in ours}
    assert "taken_from" not in read_json(run / "round-1/strong/manifest.json")
    assert any(".replaced contains" in note for note in recorder.notes), (
        "what was begun with the other setting is kept too"
    )


def test_another_output_takes_over_what_is_the_same(run):
    before = results(run)
    done = weakdriven("run", "demo", *OTHER, "--output", f"{run}-2", "--take-from", run)
    assert done.code == 0 and done.out.count("taken over from run") == 9, done.out
    assert results(run) == before


def test_what_is_only_added_replaces_nothing(run):
    for added in ("joint.rounds=2", "baselines=[sft,sft_restart]", "baselines=[]", "sft.save_steps=7"):
        wanted = load_recipe("demo", [*WHOLE, added])
        # a second round makes the control that is trained for as many epochs longer
        expected = {"baselines/sft", "eval/baseline-sft/arithmetic"} if "rounds" in added else set()
        found = existing_losses(wanted, run, all_stages, RunOptions())
        assert {Path(one.place).relative_to(run).as_posix() for one in found} == expected, added


def test_rows_alone_are_replaced_unasked(tmp_path):
    few = load_recipe("demo", [*WHOLE, "method=sft", "baselines=[]"])
    with pytest.raises(InterruptedError):
        carry_out(few, tmp_path / "run", Recorder(), after_the_rows)
    with pytest.raises(InterruptedError):
        carry_out(
            few.model_copy(update={"data": few.data.model_copy(update={"limit": 24})}),
            tmp_path / "run",
            recorder := Recorder(),
            after_the_rows,
        )
    assert recorder.ran["data"] == "limit 32 -> 24"


def after_the_rows(context):
    if context.run.computes:
        raise InterruptedError
    all_stages(context)
