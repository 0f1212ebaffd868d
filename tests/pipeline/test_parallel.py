"""Runs side by side: results and errors come back, places are shared, and a comparison is the same either way."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from conftest import Recorder
from fault_cases import one_sentence
from weakdriven.errors import UserError
from weakdriven.pipeline.parallel import run_parallel
from weakdriven.runs.files import read_json
from weakdriven.runs.signals import Stopped
from weakdriven.training.checkpoints import last_complete_checkpoint

SMALL = ["data.limit=16", "eval.limit=8", "eval.max_new_tokens=16"]


def surroundings(value, progress):
    import torch

    progress.note(f"working on {value}")
    print("printed")
    return value, os.getpid(), torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")


def fails(progress):
    raise UserError("nothing to do")


def breaks(progress):
    raise ZeroDivisionError("a fault of ours")


def dies(progress):
    os._exit(9)


def dies_and_leaves_a_child(progress):
    if os.fork() == 0:
        time.sleep(5)  # holds the pipe of the dead open
        os._exit(0)
    os._exit(9)


class Stubborn(Exception):
    """Cannot be made again from what is pickled of it."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def cannot_be_pickled(progress):
    raise Stubborn("one", "two")


def waits_for_ever(folder, name, progress):
    (folder / name).write_text(str(os.getpid()))
    try:
        time.sleep(600)
    finally:
        (folder / f"{name}-ended").touch()


def saves_when_told(folder, name, progress):
    (folder / name).write_text(str(os.getpid()))
    try:
        while True:
            time.sleep(0.05)
            progress.update(1, 2)
    except Stopped:
        (folder / f"{name}-saved").touch()
        raise


def outcomes(tasks, progress, logs, jobs=2):
    return {name: (result, why) for name, result, why in run_parallel(tasks, progress, jobs=jobs, logs=logs)}


def test_tasks_run_in_processes_of_their_own_with_a_share_of_the_cores_and_a_log(tmp_path):
    notes = Recorder()
    tasks = {"one": partial(surroundings, 1), "two": partial(surroundings, 2), "bad": fails}
    ended = outcomes(tasks, notes, tmp_path / "logs")
    found = [ended[name][0] for name in ("one", "two")]
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert [value for value, *_ in found] == [1, 2] and all(one[3] == threads == str(one[2]) for one in found)
    assert os.getpid() not in [process for _, process, *_ in found]
    assert ended["bad"] == (None, "nothing to do")
    assert (tmp_path / "logs/one.log").read_text().split() == ["working", "on", "1", "printed"]
    assert "bad: failed" in notes.notes and "one: done" in notes.notes


def test_a_killed_process_is_told_in_one_sentence_and_the_others_go_on(tmp_path):
    tasks = {"dead": dies, "beside": partial(surroundings, "beside")}
    tasks |= {"parent": dies_and_leaves_a_child, "after": partial(surroundings, "after")}
    ended = outcomes(tasks, Recorder(), tmp_path)
    for name in ("dead", "parent"):
        assert "was killed, perhaps for lack of memory; run again with fewer --jobs" in ended.pop(name)[1]
    assert {name: (found[0], why) for name, (found, why) in ended.items()} == {
        name: (name, "") for name in ("beside", "after")
    }


def test_an_error_that_cannot_be_pickled_is_reported_as_text(tmp_path):
    _, why = outcomes({"error": cannot_be_pickled}, Recorder(), tmp_path)["error"]
    assert "Stubborn: one and two" in why and "in cannot_be_pickled" in (tmp_path / "error.log").read_text()


SCRIPT = """
import sys, pathlib
from functools import partial
import test_parallel as tests
import weakdriven.commands.app

def work(**_):
    here = pathlib.Path(sys.argv[1])
    tasks = {name: partial(getattr(tests, sys.argv[2]), here, name) for name in ("a", "b", "c")}
    for name, *_ in tests.run_parallel(tasks, tests.Recorder(), jobs=2, logs=here / "logs"):
        (here / f"{name}-told").touch()

if __name__ == "__main__":
    weakdriven.commands.app.app = work
    weakdriven.commands.app.main()
"""


def told(tmp_path, task: str, sent: int, *, group: bool = False) -> tuple[int, str]:
    """Three tasks, two at once, whose first process gets a signal: its exit code and what it says."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    paths = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path), task]
    process = begin(command, env=environment)
    wait_for(process, tmp_path / "a", tmp_path / "b")
    return ended_by(process, sent, group=group)


def begin(command: list[str], **options) -> subprocess.Popen:
    """In a session of its own, so that what it leaves behind is found."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, **pipes, **options)


def wait_for(process: subprocess.Popen, *paths: Path) -> None:
    while process.poll() is None and not all(path.exists() for path in paths):
        time.sleep(0.05)


def ended_by(process: subprocess.Popen, sent: int, *, group: bool = False) -> tuple[int, str]:
    """A signal to a process alone or to all that it has started too; nothing of it may be left."""
    try:
        os.killpg(process.pid, sent) if group else process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
        deadline = time.monotonic() + 10
        while (left := of_session(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
        return process.returncode, errors
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def of_session(number: int) -> list[str]:
    """Command lines of processes that live and are of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, session = (folder / "stat").read_text().rpartition(") ")[2].split()[:4]
            if int(session) == number and state != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


def test_an_interrupt_ends_what_runs_and_begins_nothing_more(tmp_path):
    """Sent to the first process alone, as `kill -INT` does."""
    code, errors = told(tmp_path, "waits_for_ever", signal.SIGINT)
    assert code == 130 and errors.count("\n") == 1, "the first process alone tells of it"
    assert all((tmp_path / f"{name}-ended").exists() for name in ("a", "b")) and not (tmp_path / "c").exists()


@pytest.mark.parametrize("group", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["alone", "all"])
def test_those_that_run_may_save_when_the_first_process_is_told_to_stop(tmp_path, group):
    """Sent to the first process, or by a scheduler to all at once, when each has ended before we can ask it to."""
    code, errors = told(tmp_path, "saves_when_told", signal.SIGTERM, group=group)
    assert code == 143 and errors.startswith("Stopped on SIGTERM") and errors.count("\n") == 1
    assert all((tmp_path / f"{name}-saved").exists() for name in ("a", "b")) and not (tmp_path / "c").exists()
    assert not list(tmp_path.glob("*-told")), "one that was stopped counts as failed"


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_outcome_says_why_there_is_none_and_keeps_the_traceback_of_a_fault(tmp_path, jobs):
    tasks = {"a/good": partial(surroundings, 1), "a/bad": fails, "a/broken": breaks}
    ended = outcomes(tasks, Recorder(), tmp_path, jobs)
    assert ended["a/good"][0][0] == 1 and ended["a/good"][1] == "" and ended["a/bad"] == (None, "nothing to do")
    assert ended["a/broken"][1].startswith("ZeroDivisionError: a fault of ours")
    assert 'in breaks\n    raise ZeroDivisionError("a fault of ours")' in (tmp_path / "a/broken.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, group", [(["compare", "--methods", "sft"], False), (["sweep", "--grid", "joint.strong_weight=0.4"], True)]
)
def test_a_command_that_is_told_to_stop_saves_what_it_trains_side_by_side(tmp_path, command, group):
    name, *options = command
    long = ["sft.epochs=200", "sft.save_steps=1000"]
    started = [sys.executable, "-m", "weakdriven", name, "demo", *SMALL, *long, *options, "--seeds", "2", "--jobs", "2"]
    process = begin([*started, "--output", str(tmp_path / "runs")])
    while process.poll() is None and len(list(tmp_path.glob("**/.work/sft/*/metrics.jsonl"))) < 2:
        time.sleep(0.05)
    code, errors = ended_by(process, signal.SIGTERM, group=group)
    assert code == 143 and one_sentence(errors).startswith("Stopped on SIGTERM")
    trained = list(tmp_path.glob("**/.work/sft/*/checkpoints"))
    assert len(trained) == 2 and all(last_complete_checkpoint(folder) for folder in trained)
    assert not list(tmp_path.glob("runs/*.json")), "a run that was stopped counts as failed"


def test_one_job_works_in_this_process(tmp_path):
    ended = outcomes({"one": lambda progress: os.getpid()}, Recorder(), tmp_path / "logs", jobs=1)
    assert ended == {"one": (os.getpid(), "")} and not (tmp_path / "logs").exists()


def test_seeds_side_by_side_give_the_comparison_of_seeds_in_turn(tmp_path):
    from weakdriven.pipeline.compare import compare_methods  # takes seconds, which every task above would pay

    found = []
    for jobs in (1, 2):
        root = tmp_path / f"jobs-{jobs}"
        compare_methods("demo", SMALL, root, Recorder(), methods=["wmss"], seeds=2, jobs=jobs)
        found.append(read_json(root / "comparison.json"))
    rows = [
        [{key: row.get(key) for key in ("method", "seeds", "score", "by_seed")} for row in one["rows"]] for one in found
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    for stage in ("data", "entropy/base", "eval/base/arithmetic"):
        seeds = [f"seed-{n}" for n in (42, 43)]
        manifests = [read_json(tmp_path / "jobs-2" / seed / stage / "manifest.json") for seed in seeds]
        computed, taken = sorted(("taken_from" in one, seed) for one, seed in zip(manifests, seeds, strict=True))
        assert (computed[0], taken[0]) == (False, True), "whoever comes second waits for the first"
        assert f"{stage}: taken over from {computed[1]}" in (tmp_path / f"jobs-2/logs/{taken[1]}.log").read_text()
