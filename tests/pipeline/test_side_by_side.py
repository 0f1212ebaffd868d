"""Runs side by side: results and errors come back, places are shared, and a comparison is the same either way."""

import os
from functools import partial

import pytest

from conftest import Recorder
from weakdriven.errors import UserError
from weakdriven.pipeline.compare import compare_methods
from weakdriven.pipeline.side_by_side import side_by_side
from weakdriven.rundir import read_json

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
    return value, os.getpid(), torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]


def fails(progress):
    raise UserError("nothing to do")


def dies(progress):
    os._exit(9)


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


def test_a_killed_process_is_told_in_one_sentence(tmp_path):
    ((_, result),) = side_by_side({"one": dies}, Recorder(), jobs=2, logs=tmp_path)
    with pytest.raises(UserError, match="was killed, perhaps for lack of memory; run again with fewer --jobs"):
        result()


def test_one_job_works_in_this_process(tmp_path):
    ended = side_by_side({"one": lambda progress: os.getpid()}, Recorder(), jobs=1, logs=tmp_path / "logs")
    assert [result() for _, result in ended] == [os.getpid()] and not (tmp_path / "logs").exists()


def test_seeds_side_by_side_give_the_comparison_of_seeds_in_turn(tmp_path):
    found = []
    for jobs in (1, 2):
        root = tmp_path / f"jobs-{jobs}"
        compare_methods("demo", SMALL, root, Recorder(), methods=["wmss"], seeds=2, jobs=jobs)
        found.append(read_json(root / "comparison.json"))
    rows = [
        [{key: row.get(key) for key in ("method", "seeds", "score", "by_seed")} for row in one["rows"]] for one in found
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    assert "taken_from" in read_json(tmp_path / "jobs-2/seed-43/entropy/base/manifest.json")
    log = (tmp_path / "jobs-2/logs/seed-43.log").read_text()
    assert "entropy/base: taken over from seed-42" in log and "round-1/strong: not run yet" in log
