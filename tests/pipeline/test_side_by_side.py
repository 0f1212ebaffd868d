"""Runs side by side: results and errors come back, places are shared, and a comparison is the same either way."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from conftest import Recorder
from weakdriven.errors import UserError
from weakdriven.files import read_json
from weakdriven.pipeline.side_by_side import outcome, side_by_side

SMALL = ["data.limit=16", "eval.limit=8", "eval.max_new_tokens=16"]


class Notes(Recorder):
    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)


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


def gives_what_cannot_be_pickled(progress):
    return lambda: None


def waits_for_ever(folder, name, progress):
    (folder / name).write_text(str(os.getpid()))
    try:
        time.sleep(600)
    finally:
        (folder / f"{name}-ended").touch()


def test_tasks_run_in_processes_of_their_own_with_a_share_of_the_cores_and_a_log(tmp_path):
    notes = Notes()
    tasks = {"one": partial(surroundings, 1), "two": partial(surroundings, 2), "bad": fails}
    ended = dict(side_by_side(tasks, notes, jobs=2, logs=tmp_path / "logs"))
    found = [ended[name]() for name in ("one", "two")]
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert [value for value, *_ in found] == [1, 2] and all(one[3] == threads == str(one[2]) for one in found)
    assert os.getpid() not in [process for _, process, *_ in found]
    with pytest.raises(UserError, match="nothing to do"):
        ended["bad"]()
    assert (tmp_path / "logs/one.log").read_text().split() == ["working", "on", "1", "printed"]
    assert "bad: failed" in notes.notes and "one: done" in notes.notes


def test_a_killed_process_is_told_in_one_sentence_and_the_others_go_on(tmp_path):
    tasks = {"dead": dies, "beside": partial(surroundings, "beside")}
    tasks |= {"parent": dies_and_leaves_a_child, "after": partial(surroundings, "after")}
    ended = {
        name: outcome(name, result, tmp_path) for name, result in side_by_side(tasks, Recorder(), jobs=2, logs=tmp_path)
    }
    for name in ("dead", "parent"):
        assert "was killed, perhaps for lack of memory; run again with fewer --jobs" in ended.pop(name)[1]
    assert {name: (found[0], why) for name, (found, why) in ended.items()} == {
        name: (name, "") for name in ("beside", "after")
    }


def test_what_a_pipe_cannot_carry_is_told_as_text(tmp_path):
    tasks = {"error": cannot_be_pickled, "result": gives_what_cannot_be_pickled}
    ended = {
        name: outcome(name, result, tmp_path)[1]
        for name, result in side_by_side(tasks, Recorder(), jobs=2, logs=tmp_path)
    }
    assert "Stubborn: one and two" in ended["error"] and "pickle" in ended["result"]
    assert "in cannot_be_pickled" in (tmp_path / "error.log").read_text()


def test_an_interrupt_ends_what_runs_and_begins_nothing_more(tmp_path):
    """Sent to the first process alone, as `kill -INT` does."""
    lines = ["import sys, pathlib", "from functools import partial", "import test_side_by_side as tests"]
    lines += ["here = pathlib.Path(sys.argv[1])", "if __name__ == '__main__':"]
    lines += ["  tasks = {name: partial(tests.waits_for_ever, here, name) for name in ('a', 'b', 'c')}"]
    lines += ["  list(tests.side_by_side(tasks, tests.Recorder(), jobs=2, logs=here / 'logs'))"]
    script = tmp_path / "script.py"
    script.write_text("\n".join(lines))
    paths = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment, stderr=subprocess.PIPE)
    try:
        while process.poll() is None and not all((tmp_path / name).exists() for name in ("a", "b")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0 and errors.count(b"Traceback") == 1, "the first process alone tells of it"
    assert all((tmp_path / f"{name}-ended").exists() for name in ("a", "b")) and not (tmp_path / "c").exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_outcome_says_why_there_is_none_and_keeps_the_traceback_of_a_fault(tmp_path, jobs):
    tasks = {"a/good": partial(surroundings, 1), "a/bad": fails, "a/broken": breaks}
    ended = {
        name: outcome(name, result, tmp_path)
        for name, result in side_by_side(tasks, Recorder(), jobs=jobs, logs=tmp_path)
    }
    assert ended["a/good"][0][0] == 1 and ended["a/good"][1] == "" and ended["a/bad"] == (None, "nothing to do")
    assert ended["a/broken"][1].startswith("ZeroDivisionError: a fault of ours")
    assert 'in breaks\n    raise ZeroDivisionError("a fault of ours")' in (tmp_path / "a/broken.log").read_text()


def test_one_job_works_in_this_process(tmp_path):
    ended = side_by_side({"one": lambda progress: os.getpid()}, Recorder(), jobs=1, logs=tmp_path / "logs")
    assert [result() for _, result in ended] == [os.getpid()] and not (tmp_path / "logs").exists()


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
