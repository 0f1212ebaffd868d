"""A run that cannot fit in memory or on the disk is an error before training; not with --force."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from small_runs import Recorder, small_recipe
from weakdriven.errors import UserError
from weakdriven.models.load import EMBEDDED, locate_model
from weakdriven.pipeline.run import RunOptions, all_stages, carry_out
from weakdriven.planning import preflight
from weakdriven.planning.costs import Cost, Planner, disk_bytes
from weakdriven.planning.devices import DEVICES, GIB, MEASURED, Machine
from weakdriven.planning.memory import Memory
from weakdriven.runs.directory import WORK, work_folder
from weakdriven.runs.files import read_json, write_json
from weakdriven.runs.stage import Planned
from weakdriven.runs.take_over import Siblings
from weakdriven.stages.workload import Workload

SHORT = ("eval.benchmarks=[]", "data.limit=32", "baselines=[]", "sft.batch_size=32", "joint.batch_size=32")
NO_SCAN = "selection.enabled=false"


def with_memory(monkeypatch, gib: float, device: str = "CPU") -> None:
    """This computer, with less memory than it has."""
    small = Machine(replace(DEVICES[device], memory_gib=gib))
    monkeypatch.setattr(preflight, "machine_at_hand", lambda: small)


class Passed(Exception):
    """Raised where the first stage after the check would be computed."""


def checked(root, *overrides: str, force: bool = False) -> Recorder:
    noted = Recorder()

    def work(stages):
        if stages.run.computes:
            raise Passed
        all_stages(stages)

    with pytest.raises(Passed):
        carry_out(small_recipe(*SHORT, *overrides), root, noted, work, options=RunOptions(force=force, rehearsal=False))
    return noted


def test_a_run_that_cannot_fit_in_memory_is_an_error_before_the_first_stage(tmp_path, no_gpu, monkeypatch):
    with_memory(monkeypatch, 0.05)
    recorder = Recorder()
    with pytest.raises(UserError) as refusal:
        carry_out(small_recipe(*SHORT), tmp_path / "run", recorder, all_stages)
    assert list(recorder.ran) == ["data"] and not (tmp_path / "run/sft").exists()
    sentence = str(refusal.value)
    assert "GiB" in sentence and "this computer has 0.1" in sentence
    assert "weakdriven run --force" in sentence and "Set " in sentence


def test_force_turns_the_error_into_a_note_and_a_run_that_fits_has_none(tmp_path, no_gpu, monkeypatch):
    with_memory(monkeypatch, 0.05)
    assert any("--force" in text for text in checked(tmp_path / "run", force=True).notes)
    with_memory(monkeypatch, 8.0)
    assert not [text for text in checked(tmp_path / "run").notes if "GiB" in text]


def test_the_real_length_of_rows_counts_and_not_the_longest_allowed(tmp_path, no_gpu, monkeypatch):
    with_memory(monkeypatch, 1.0)
    checked(tmp_path / "run", "data.max_length=100000")


def test_an_example_longer_than_the_models_positions_is_an_error_before_training(tmp_path, no_gpu):
    shutil.copytree(locate_model(EMBEDDED), tmp_path / "model")
    config = read_json(tmp_path / "model/config.json")
    write_json(tmp_path / "model/config.json", config | {"max_position_embeddings": 40})
    short, recorder = ("data.long_prompts=drop", f"model={tmp_path / 'model'}"), Recorder()
    with pytest.raises(
        UserError, match=r"longest example has \d+ tokens, .* has only 40 positions .*data.max_length=40"
    ):
        carry_out(small_recipe(*SHORT, *short), tmp_path / "run", recorder, all_stages)
    assert list(recorder.ran) == ["data"]
    checked(tmp_path / "run", "data.max_length=40", *short)


def test_finished_and_reused_stages_are_not_checked():
    found = preflight.will_run(
        [Planned("sft", "k", ""), Planned("a", "k", "not run yet"), Planned("b", "k", "taken over", taken=Path("b"))]
    )
    assert found == {"a"}


def out_of_memory(*_, **__):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")


@pytest.mark.parametrize("module", ["wmss.entropy", "planning.rehearsal"])
def test_a_scan_out_of_memory_reports_what_smaller_batches_free(tmp_path, monkeypatch, module):
    monkeypatch.setattr(f"weakdriven.{module}.scan", out_of_memory)
    recipe, options = small_recipe(*SHORT, "data.limit=96"), RunOptions(rehearsal="rehearsal" in module)
    told = r"^entropy/base ran out of memory .*\(1\) selection\.batch_tokens=4096 frees \d+\.\d MiB"
    with pytest.raises(UserError, match=told):
        carry_out(recipe, tmp_path / "run", Recorder(), all_stages, options=options)


def test_remedies_suit_a_run_of_several_processes(tmp_path, monkeypatch):
    """Adapters are not supported under FSDP2, so they are not proposed."""
    several = Machine(replace(DEVICES[MEASURED], memory_gib=100), 2, "fsdp")
    monkeypatch.setattr(preflight, "machine_at_hand", lambda: several)
    monkeypatch.setattr("weakdriven.training.sft.train_supervised", out_of_memory)
    with pytest.raises(UserError, match=r"\(1\) sft\.micro_batch_size=8 frees") as error:
        carry_out(small_recipe(*SHORT, NO_SCAN), tmp_path / "run", Recorder(), all_stages)
    assert not any(word in str(error.value) for word in ("lora", "optimizer", "precision"))


def test_without_a_plan_of_the_model_the_error_names_the_settings_that_free_memory(tmp_path, monkeypatch):
    def unknown(*_):
        raise UserError("no such architecture")

    monkeypatch.setattr(Planner, "cost", unknown)
    monkeypatch.setattr("weakdriven.training.sft.train_supervised", out_of_memory)
    with pytest.raises(UserError, match=r"^sft: Out of memory. Halve micro_batch_size"):
        carry_out(small_recipe(*SHORT, NO_SCAN), tmp_path / "run", Recorder(), all_stages)


@pytest.mark.parametrize("reserved, told", [(5, "use 90.0 GiB of the GPU; without them it may fit."), (94, "")])
def test_cuda_says_how_much_memory_other_processes_hold(monkeypatch, reserved, told):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (5 * GIB, 100 * GIB))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda: reserved * GIB)
    assert preflight.held_by_others().endswith(told) and bool(preflight.held_by_others()) == bool(told)


def test_a_gpu_that_cannot_be_queried_holds_nothing_else(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", out_of_memory)
    assert preflight.held_by_others() == ""


@pytest.mark.parametrize("error, told", [(torch.OutOfMemoryError("CUDA out of memory."), True), (MemoryError(), False)])
def test_the_memory_of_other_processes_is_in_the_error_of_a_gpu(tmp_path, monkeypatch, error, told):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(preflight, "held_by_others", lambda: " Others hold it.")
    monkeypatch.setattr("weakdriven.training.sft.train_supervised", fail)
    with pytest.raises(UserError, match=r"\(1\) sft\.micro_batch_size=8 frees") as caught:
        carry_out(small_recipe(*SHORT, NO_SCAN), tmp_path / "run", Recorder(), all_stages)
    assert str(caught.value).endswith(" Others hold it.") == told


def needing(monkeypatch, gib: float) -> None:
    """Every stage needs so much."""
    needs = Memory(weights=gib * GIB)
    monkeypatch.setattr(Planner, "cost", lambda _, part: Cost(part, memory=needs, micro_batch=1))


def test_a_cpu_has_the_same_tolerance_as_a_gpu(tmp_path, no_gpu, monkeypatch):
    with_memory(monkeypatch, 1.0)
    needing(monkeypatch, 1.05)
    assert any("off by 10%" in text for text in checked(tmp_path / "near", "selection.match_steps=true").notes)
    needing(monkeypatch, 1.2)
    with pytest.raises(UserError, match=r"needs about 1\.2 GiB"):
        carry_out(small_recipe(*SHORT), tmp_path / "far", Recorder(), all_stages, options=RunOptions(rehearsal=False))


def test_a_drawn_set_of_fewer_rows_than_a_batch_is_no_error(tmp_path, no_gpu, monkeypatch):
    """Of 32 rows some 20 are drawn, and how micro-batches divide them is not known before."""
    whole = Planner.cost

    def only_joint(self, part):
        cost = whole(self, part)
        return replace(cost, memory=Memory(weights=9 * GIB)) if part.active else cost

    with_memory(monkeypatch, 4.0)
    monkeypatch.setattr(Planner, "cost", only_joint)
    assert any("may have fewer rows" in text for text in checked(tmp_path / "run").notes)
    with pytest.raises(UserError, match="round-1/strong needs about 9"):
        carry_out(small_recipe(*SHORT, "joint.batch_size=16"), tmp_path / "whole", Recorder(), all_stages)


def with_disk(monkeypatch, size: int) -> None:
    """A file system that has so many bytes free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size))


def test_a_run_that_the_disk_cannot_hold_is_an_error_before_the_first_stage(tmp_path, no_gpu, monkeypatch):
    with_disk(monkeypatch, 8 << 20)
    recorder = Recorder()
    with pytest.raises(UserError, match=r"^The run will need about .* 8\.0 MiB free; free .* MiB more") as refusal:
        carry_out(small_recipe(*SHORT), tmp_path / "run", recorder, all_stages)
    assert list(recorder.ran) == ["data"] and not (tmp_path / "run/sft").exists()
    assert "checkpoints of round-1/strong" in str(refusal.value) and "weakdriven run --force" in str(refusal.value)
    noted = checked(tmp_path / "run", force=True)
    assert any(text.startswith("The run will need") and "--force" in text for text in noted.notes)


def test_force_is_honoured_by_the_check_before_each_phase_too(tmp_path, no_gpu, monkeypatch):
    with_disk(monkeypatch, 1 << 20)
    recorder = Recorder()
    options = RunOptions(force=True, rehearsal=True)
    few = [
        "data.limit=8",
        *(f"{one}.{size}=8" for one in ("sft", "joint") for size in ("batch_size", "micro_batch_size")),
    ]
    carry_out(small_recipe(*SHORT, *few, NO_SCAN), tmp_path / "run", recorder, all_stages, options=options)
    assert (tmp_path / "run/round-1/strong/model.safetensors").is_file()
    for stage in ("The run", "sft", "round-1/strong"):
        assert any(text.startswith(f"{stage} will need") and "(--force)" in text for text in recorder.notes), stage


def test_without_checkpoints_no_room_is_asked_for_them(tmp_path, no_gpu, monkeypatch):
    asked = []
    monkeypatch.setattr(preflight, "check_disk", lambda costs, *_, **__: asked.append(costs))
    for steps in (100_000, 0):
        saves = [f"{phase}.save_steps={steps}" for phase in ("sft", "joint")]
        checked(tmp_path / str(steps), *saves)
    one, none = ([cost.work for cost in costs] for costs in asked)
    assert none == [0, 0] and all(work > 1 << 20 for work in one), "a signal writes one, however many steps there are"


def test_files_already_on_the_disk_need_no_space_again(tmp_path):
    put(work_folder(tmp_path, "sft") / "work/checkpoints/checkpoint-1/optimizer.pt", 30)
    put(tmp_path / "sft/model.safetensors", 10)  # an older result, which is kept until the run is finished
    costs = [Cost(Workload(name, "train"), kept=10, work=60) for name in ("sft", "round-1/strong")]
    first, second = (preflight.still_to_write(cost, tmp_path) for cost in costs)
    assert disk_bytes([first]) == (10 - 30, 10 + 60 - 30)
    assert disk_bytes([first, second]) == (-10, 50)


def without_links(monkeypatch) -> None:
    """What is taken over lies on another disk."""

    def refused(*_):
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)


def test_stages_reused_from_another_disk_need_space_before_the_first_stage(tmp_path, no_gpu, monkeypatch):
    recipe, theirs, mine = small_recipe(*SHORT, "method=sft"), tmp_path / "theirs", tmp_path / "mine"
    carry_out(recipe, theirs, Recorder(), all_stages, options=RunOptions(rehearsal=False))
    (theirs / "data/large.bin").write_bytes(bytes(5 << 20))
    without_links(monkeypatch)
    with_disk(monkeypatch, 2 << 20)
    recorder = Recorder()
    told = r"^The run will need about 3\.\d MiB .* 2\.0 MiB free; .* Reused stages of 3\.\d MiB must be copied"
    with pytest.raises(UserError, match=told) as refusal:
        carry_out(recipe, mine, recorder, all_stages, options=RunOptions(Siblings([theirs]), rehearsal=False))
    assert list(recorder.ran) == ["data"] and "save_steps" not in str(refusal.value)
    with_disk(monkeypatch, 4 << 20)
    carry_out(recipe, mine, recorder, all_stages, options=RunOptions(Siblings([theirs]), rehearsal=False))
    assert recorder.ran["baselines/sft"] == "taken over from theirs"


def test_copied_stages_count_with_models_in_the_order_of_the_run_and_links_do_not(tmp_path, monkeypatch):
    for folder in (tmp_path / "theirs/sft", tmp_path / "theirs/baselines/sft"):
        put(folder / "model.safetensors", 3 << 20)
    (tmp_path / "mine" / WORK).mkdir(parents=True)
    trained = [Cost(Workload("round-1/strong", "train"), kept=3 << 20, work=6 << 20)]
    names = ("sft", "round-1/strong", "baselines/sft")
    planned = [Planned(name, "k", "", taken=tmp_path / "theirs" / name) for name in names]
    planned[1] = Planned("round-1/strong", "k", "not run yet")

    def short(size: int) -> str:
        with_disk(monkeypatch, size << 20)
        noted = Recorder()
        preflight.check_disk(trained, planned, tmp_path / "mine", noted, force=True)
        return " ".join(noted.notes)

    assert not short(9) and "about 9.0 MiB" in short(8) and "must be copied" not in short(8)
    without_links(monkeypatch)
    assert not short(12), "the last copy comes when the checkpoints are gone"
    assert (
        "about 12.0 MiB" in short(11)
        and "raise save_steps" in short(11)
        and "stages of 6.0 MiB must be copied" in short(11)
    )
    assert not list((tmp_path / "mine" / WORK).iterdir())


def put(path, size: int) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(size))
