"""The pieces alone: the disk that a phase needs, signals, sealed lines, marks on checkpoints, inventories."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import save_file

from small_runs import run_small
from weakdriven.commands import app as cli
from weakdriven.commands import verify as cli_verify
from weakdriven.errors import UserError, is_out_of_memory
from weakdriven.planning import preflight
from weakdriven.runs.directory import Progress
from weakdriven.runs.disk import SMALL_FILES, disk_need, held, too_little_room
from weakdriven.runs.files import append_jsonl, salvage_jsonl, write_json
from weakdriven.runs.manifest import inventory, refuse_damage, refuse_damaged_model, rewriting
from weakdriven.runs.processes import OtherProcessFailed, ended_together
from weakdriven.runs.signals import Stopped, stop_here, stop_requested, stoppable
from weakdriven.training import callbacks, phase
from weakdriven.training.checkpoints import last_complete_checkpoint, seal, usable_checkpoint


def test_three_checkpoints_are_counted_where_as_many_are_written_and_fewer_where_not():
    facts = {"weights": 100, "optimizer": 200, "model": 50, "models": 1}
    small = disk_need(weights=0, optimizer=0, model=0, models=1, saves=3)
    assert disk_need(**facts, saves=9) - small == 3 * 300 + 50
    assert disk_need(**facts, saves=1) < disk_need(**facts, saves=2) < disk_need(**facts, saves=3)


@pytest.mark.slow
def test_the_checkpoints_of_a_pair_are_reckoned_as_two_models_and_as_they_are_written(tmp_path, monkeypatch):
    asked, written, planned = {}, {}, {}

    def note(folder, need, *, stage, checkpoint, saves):
        asked[stage] = need, checkpoint, saves
        return ""

    def weigh(place):
        written.setdefault(place.parents[2].name, held(place))  # the first; the last one has no optimizer
        seal(place)

    def plan(costs, *_, **__):
        planned.update({cost.workload.name: cost for cost in costs})

    monkeypatch.setattr(phase, "too_little_room", note)
    monkeypatch.setattr(callbacks, "seal", weigh)
    monkeypatch.setattr(preflight, "check_disk", plan)
    run_small(tmp_path, "data.limit=56", "baselines=[]", "eval.benchmarks=[]", "joint.save_steps=1", "sft.save_steps=1")
    (_, one, _), (need, two, saves) = asked["sft"], asked["round-1/strong"]
    assert two == 2 * one
    assert need == saves * (two + SMALL_FILES) + one // 3 + SMALL_FILES, "weights and two means of them in a checkpoint"
    for stage, checkpoint in (("sft", one), ("round-1/strong", two)):
        assert checkpoint < written[stage.replace("/", "--")] < checkpoint + SMALL_FILES
        assert planned[stage].work == pytest.approx(asked[stage][2] * checkpoint, rel=0.01)


def test_too_little_room_names_both_remedies_and_no_checkpoints_where_there_are_none(tmp_path):
    need = shutil.disk_usage(tmp_path).free + (1 << 40)
    both = too_little_room(tmp_path, need, stage="sft", checkpoint=1 << 30, saves=9)
    assert re.search(r"sft will need about .* GiB free; .* another disk, or raise save_steps", both)
    assert "save_steps" not in too_little_room(tmp_path, need, stage="sft", checkpoint=1 << 30, saves=0)
    assert too_little_room(tmp_path, 1, stage="sft", checkpoint=1, saves=9) == ""


def test_only_errors_of_memory_are_taken_for_such():
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"))
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not is_out_of_memory(RuntimeError("shapes differ")) and not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_leaves_a_mark_and_the_same_request_once_more_changes_nothing(number):
    before = signal.getsignal(number)
    with stoppable():
        stop_here()
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)  # from a launcher that was told too
        assert stop_requested() == signal.Signals(number).name
        with pytest.raises(Stopped, match="Stopped on SIG"):
            Progress().update(1, 2)
    assert signal.getsignal(number) == before and stop_requested() is None


def test_an_interrupt_says_how_to_resume(monkeypatch, capsys):
    def interrupted(run):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_verify, "check_stages", interrupted)
    monkeypatch.setattr(sys, "argv", ["weakdriven", "verify", "."])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == "Stopped; run the same command again to resume."


def test_a_later_signal_ends_at_once():
    code = "import os, signal, time, weakdriven.runs.signals as s\ns.MOMENT = 0.1\nwith s.stoppable():\n"
    code += "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(0.3)\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    assert subprocess.run([sys.executable, "-c", code + "    print('still here')\n"]).returncode == -signal.SIGTERM


CTRL_C = """
import os, signal
from weakdriven.runs import signals
signals.TWICE = 600.0
with signals.stoppable():
    with signals.saves_when_stopped(True):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # the terminal's and the launcher's
        print(signals.stop_requested(), flush=True)
        signals.TWICE = 0.0
        {again}
    try:
        signals.stop_here()
    except signals.Stopped as stop:
        print(stop.interrupted)
"""


@pytest.mark.parametrize(
    "again, printed", [("", ["SIGINT", "True"]), ("os.kill(os.getpid(), signal.SIGINT)", ["SIGINT"])]
)
def test_ctrl_c_where_something_saves_is_a_request_and_a_second_one_ends_it(again, printed):
    done = subprocess.run([sys.executable, "-c", CTRL_C.format(again=again)], capture_output=True, text=True)
    assert done.stdout.split() == printed and done.stderr.count("Ctrl-C again stops at once") == 1
    assert done.returncode == 0 if not again else "KeyboardInterrupt" in done.stderr


@pytest.mark.parametrize("failure, seen", [(Stopped("SIGTERM"), Stopped), (OSError(28, "full"), OtherProcessFailed)])
def test_others_hear_once_of_what_ends_the_first_process(failure, seen):
    told = []

    def fail():
        raise failure

    def work():
        return ended_together(fail, told.append)

    with pytest.raises(type(failure)):
        ended_together(work, told.append)
    assert len(told) == 1
    with pytest.raises(seen):
        ended_together(lambda: None, lambda _: told[0])


def test_another_thread_leaves_the_handlers_alone():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with stoppable():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_any_changed_bit_of_a_sealed_line_is_noticed_and_the_lines_before_it_stay(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"id": "a", "text": "é \ud800"}, {"id": "b", "text": "7", "tokens": 1.5}]
    append_jsonl(path, rows, sealed=True)
    assert salvage_jsonl(path) == rows
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    for place in range(start, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert salvage_jsonl(path) == rows[:1], place


def checkpoint(folder, step):
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    save_file({"weight": torch.full((8,), float(step))}, place / "model.safetensors")
    torch.save({"step": step}, place / "optimizer.pt")
    write_json(place / "trainer_state.json", {"global_step": step})
    return place


def test_older_checkpoints_are_removed_by_step_and_only_after_a_newer_one_is_sealed(tmp_path):
    for step in (8, 9, 10):
        place = checkpoint(tmp_path, step)
        assert last_complete_checkpoint(tmp_path) != place
        seal(place)
    os.utime(tmp_path / "checkpoint-10", (0, 0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-9"]
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


def test_a_checkpoint_that_cannot_be_read_back_gets_no_mark_and_costs_no_older_one(tmp_path):
    for step in (1, 2):
        seal(checkpoint(tmp_path, step))
    torn = checkpoint(tmp_path, 3)
    os.truncate(torn / "model.safetensors", 70)
    with pytest.raises(UserError, match="right after it was written"):
        seal(torn)
    assert usable_checkpoint(tmp_path, Progress()) == tmp_path / "checkpoint-2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2"]


def finished(folder):
    (folder / "snapshots/50").mkdir(parents=True)
    for name in ("model.bin", "snapshots/50/model.bin", "scores.json"):
        (folder / name).write_text(name)
    (folder / "README.md").write_text("card")
    write_json(folder / "manifest.json", {"stage": "sft", "key": "k", "files": inventory(folder)})
    return folder


def test_added_files_and_the_card_are_no_damage_and_lists_may_be_missing(tmp_path):
    stage = finished(tmp_path / "stage")
    (stage / "mixture").mkdir()
    (stage / "mixture/more.bin").touch()
    (stage / "README.md").write_text("edited")
    refuse_damage(stage)
    write_json(stage / "manifest.json", {"key": "k"})
    (stage / "model.bin").unlink()
    refuse_damage(stage)


def test_a_damaged_snapshot_is_no_concern_of_the_model_beside_it(tmp_path):
    stage = finished(tmp_path / "stage")
    (stage / "snapshots/50/model.bin").write_text("snapshots/50/model.bim")
    refuse_damaged_model(stage)
    with pytest.raises(UserError, match="different content"):
        refuse_damaged_model(stage / "snapshots/50")


@pytest.mark.parametrize("content", ['{"files": ["a"]}', '{"files": {"m/x.bin": "abc"}}', "[]", "{"])
def test_what_another_program_calls_a_manifest_is_none(content, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "manifest.json").write_text(content)
    refuse_damaged_model(tmp_path / "model")


def test_a_kill_while_a_file_is_written_anew_is_not_taken_for_damage(tmp_path):
    stage = finished(tmp_path / "stage")
    with pytest.raises(KeyboardInterrupt), rewriting(stage, "scores.json"):
        (stage / "scores.json").write_text("half")
        raise KeyboardInterrupt
    refuse_damage(stage)
    with rewriting(stage, "scores.json") as manifest:
        (stage / "scores.json").write_text("graded again")
        manifest["counters"] = {"correct": 1}
    refuse_damage(stage)
    assert json.loads((stage / "manifest.json").read_text())["counters"] == {"correct": 1}
    (stage / "scores.json").write_text("graded agaim")
    with pytest.raises(UserError, match=r"scores\.json has different content"):
        refuse_damage(stage)
