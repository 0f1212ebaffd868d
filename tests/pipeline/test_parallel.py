"""Several runs in parallel: results and errors come back, cores are shared, and signals reach every process."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from parallel_tasks import (
    Notes,
    breaks,
    cannot_be_pickled,
    dies_and_leaves_a_child,
    environment,
    fails,
    lacks_a_method,
    outcomes,
)

from command_line import WHOLE
from fault_cases import one_sentence


def test_tasks_run_in_processes_of_their_own_and_each_outcome_comes_back(tmp_path):
    progress = Notes()
    tasks = {"one": partial(environment, 1), "killed": dies_and_leaves_a_child}
    ended = outcomes(tasks | {"part": lacks_a_method, "a/broken": cannot_be_pickled}, progress, tmp_path)
    value, process, threads, told = ended["one"][0]
    assert value == 1 and process != os.getpid()
    assert told == str(threads) == str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert "was killed, perhaps for lack of memory" in ended["killed"][1]
    assert "Stubborn: one and two" in ended["a/broken"][1]
    assert "in cannot_be_pickled" in (tmp_path / "a/broken.log").read_text()
    assert (tmp_path / "one.log").read_text().split() == ["working", "on", "1", "printed"]
    assert {"a/broken: failed", "one: done", "part: done, without wmss"} <= {*progress.notes}


def test_one_job_works_in_this_process(tmp_path):
    ended = outcomes({"one": lambda progress: os.getpid(), "bad": fails}, Notes(), tmp_path / "logs", jobs=1)
    assert ended == {"one": (os.getpid(), ""), "bad": (None, "nothing to do")} and not (tmp_path / "logs").exists()
    (_, why) = outcomes({"a/broken": breaks}, Notes(), tmp_path, jobs=1)["a/broken"]
    assert why.startswith("ZeroDivisionError") and "in breaks" in (tmp_path / "a/broken.log").read_text()


SCRIPT = """
import sys, pathlib
from functools import partial
import parallel_tasks as tasks
import weakdriven.commands.app

def work(**_):
    here = pathlib.Path(sys.argv[1])
    named = {name: partial(getattr(tasks, sys.argv[2]), here, name) for name in ("a", "b", "c")}
    for name, *_ in tasks.run_parallel(named, tasks.Notes(), jobs=2, logs=here / "logs"):
        (here / f"{name}-yielded").touch()

if __name__ == "__main__":
    weakdriven.commands.app.app = work
    weakdriven.commands.app.main()
"""


def stopped_by(sent: int, tmp_path: Path, task: str, *, group: bool = False) -> tuple[int, str]:
    """Three tasks, two at once, whose first process gets a signal: its exit code and stderr."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    paths = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    process = begin([sys.executable, str(script), str(tmp_path), task], env={**os.environ, "PYTHONPATH": paths})
    while process.poll() is None and not all((tmp_path / name).exists() for name in ("a", "b")):
        time.sleep(0.05)
    return ended_by(process, sent, group=group)


def begin(command: list[str], **options) -> subprocess.Popen:
    """In a session of its own, so that what it leaves behind is found."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, **pipes, **options)


def ended_by(process: subprocess.Popen, sent: int, *, group: bool = False) -> tuple[int, str]:
    """A signal to a process alone or to all that it has started too; nothing of it may be left."""
    try:
        os.killpg(process.pid, sent) if group else process.send_signal(sent)
        _, errors = process.communicate(timeout=300)
        deadline = time.monotonic() + 60
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


@pytest.mark.slow
def test_an_interrupt_ends_the_running_tasks_and_starts_no_other(tmp_path):
    """Sent to the first process alone, as `kill -INT` does."""
    code, errors = stopped_by(signal.SIGINT, tmp_path, "waits_for_ever")
    assert code == 130 and errors.count("\n") == 1, "only the first process reports it"
    assert all((tmp_path / f"{name}-ended").exists() for name in ("a", "b")) and not (tmp_path / "c").exists()


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True], ids=["alone", "all"])
def test_running_tasks_may_save_when_the_first_process_gets_sigterm(tmp_path, group):
    """Sent to the first process, or by a scheduler to all at once, when each has ended before we can ask it to."""
    code, errors = stopped_by(signal.SIGTERM, tmp_path, "saves_when_stopped", group=group)
    assert code == 143 and errors.startswith("Stopped on SIGTERM") and errors.count("\n") == 1
    assert all((tmp_path / f"{name}-saved").exists() for name in ("a", "b")) and not (tmp_path / "c").exists()
    assert not list(tmp_path.glob("*-yielded")), "a task that was stopped has not failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, group", [(["compare", "--methods", "sft"], False), (["sweep", "--grid", "joint.strong_weight=0.4"], True)]
)
def test_a_command_that_gets_sigterm_saves_what_it_trains_in_parallel(tmp_path, command, group):
    from weakdriven.training.checkpoints import last_complete_checkpoint  # imports torch, which no task above needs

    name, *options = command
    long = ["sft.epochs=200", "sft.save_steps=1000"]
    started = [sys.executable, "-m", "weakdriven", name, "demo", *WHOLE, *long, *options, "--seeds", "2", "--jobs", "2"]
    process = begin([*started, "--output", str(tmp_path / "runs")])
    while process.poll() is None and len(list(tmp_path.glob("**/.work/sft/*/metrics.jsonl"))) < 2:
        time.sleep(0.05)
    code, errors = ended_by(process, signal.SIGTERM, group=group)
    assert code == 143 and one_sentence(errors).startswith("Stopped on SIGTERM")
    trained = list(tmp_path.glob("**/.work/sft/*/checkpoints"))
    assert len(trained) == 2 and all(last_complete_checkpoint(folder) for folder in trained)
    assert not list(tmp_path.glob("runs/*.json")), "a run that was stopped has not failed"
