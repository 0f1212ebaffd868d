"""Stages that another run has finished under the same key, and stages that failed in this one."""

import json
import os
import threading
from pathlib import Path

import pytest

from small_runs import Recorder
from weakdriven.errors import UserError
from weakdriven.runs.directory import RUN_FILE, runs_in
from weakdriven.runs.executor import Run
from weakdriven.runs.files import write_text
from weakdriven.runs.take_over import Siblings

SETTINGS, INPUTS = {"rate": 0.1}, {"rows": "r1"}


class Work:
    """A compute that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, work: Path, out: Path) -> dict:
        self.calls += 1
        (out / "result.txt").write_text("result")
        return {}


def manifest(root: Path) -> dict:
    return json.loads((root / "part/one/manifest.json").read_text())


def run_with(root: Path, work: Work, *siblings: Path, settings=SETTINGS) -> Recorder:
    recorder = Recorder()
    Run(root, progress=recorder, siblings=Siblings(siblings)).stage("part/one", work, settings=settings, inputs=INPUTS)
    return recorder


def test_a_finished_stage_of_another_run_with_the_same_key_is_taken_over(tmp_path):
    mine, theirs, work = tmp_path / "mine", tmp_path / "theirs", Work()
    run_with(theirs, work)
    assert run_with(mine, work, tmp_path / "nothing", theirs).ran == {"part/one": "taken over from theirs"}
    assert work.calls == 1 and manifest(mine)["taken_from"] == str(theirs / "part/one")
    assert manifest(mine) == manifest(theirs) | {"taken_from": manifest(mine)["taken_from"]}
    assert (mine / "part/one/result.txt").samefile(theirs / "part/one/result.txt")
    assert run_with(mine, work, theirs).skipped == ["part/one"]
    assert run_with(mine, work, theirs, settings={"a": 2}).ran and work.calls == 2, "another key is another result"
    assert (theirs / "part/one/result.txt").read_text() == "result"


def test_of_two_parallel_runs_one_computes_and_the_other_waits_for_it(tmp_path):
    begun, waiting, work = threading.Event(), threading.Event(), Work()

    class Waits(Recorder):
        def note(self, text):
            assert text == "part/one: another run is computing it; waiting for the result"
            waiting.set()

    def slow(*folders):
        begun.set()
        assert waiting.wait(300), "the second run never asked"
        return work(*folders)

    def run(name, other, compute, progress):
        one = Run(tmp_path / name, progress=progress, siblings=Siblings([tmp_path / other], tmp_path / "locks"))
        one.stage("part/one", compute, settings=SETTINGS, inputs=INPUTS)

    first = threading.Thread(target=run, args=("first", "second", slow, Recorder()))
    first.start()
    assert begun.wait(300)
    run("second", "first", work, recorder := Waits())
    first.join()
    assert work.calls == 1 and recorder.ran == {"part/one": "taken over from first"}
    assert "taken_from" in manifest(tmp_path / "second") and "taken_from" not in manifest(tmp_path / "first")


def test_a_file_that_is_replaced_here_stays_what_it_was_there(tmp_path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    run_with(theirs, Work())
    run_with(mine, Work(), theirs)
    write_text(mine / "part/one/result.txt", "graded again")
    assert (theirs / "part/one/result.txt").read_text() == "result"


def test_without_hard_links_the_files_are_copied(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError("no hard links here")

    run_with(tmp_path / "theirs", Work())
    monkeypatch.setattr(os, "link", refused)
    run_with(tmp_path / "mine", Work(), tmp_path / "theirs")
    mine, theirs = (tmp_path / name / "part/one/result.txt" for name in ("mine", "theirs"))
    assert mine.read_text() == theirs.read_text() and not mine.samefile(theirs)


def test_a_kill_in_the_middle_of_taking_over_leaves_no_half_result(tmp_path, monkeypatch):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    run_with(theirs, Work())

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "link", killed)
        run_with(mine, Work(), theirs)
    assert not (mine / "part/one").exists()
    assert run_with(mine, Work(), theirs).ran == {"part/one": "taken over from theirs"}
    assert (mine / "part/one/result.txt").read_text() == "result"


def test_a_stage_that_failed_raises_its_error_again_and_no_older_result_is_used(tmp_path):
    def fails(work: Path, out: Path) -> dict:
        raise UserError("no memory")

    run_with(tmp_path, Work())
    run = Run(tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match="no memory"):
            run.stage("part/one", fails, settings={"rate": 0.2}, inputs=INPUTS)
    assert manifest(tmp_path)["settings"] == SETTINGS, "what was there stays until there is something new"


def test_runs_are_found_in_the_folders_that_commands_write(tmp_path):
    runs = [tmp_path / name for name in ("run", "compared/seed-42", "swept/point/seed-42", "swept/point/seed-43")]
    for run in runs:
        run.mkdir(parents=True)
        write_text(run / RUN_FILE, "{}")
    assert runs_in([tmp_path / "run", tmp_path / "compared", tmp_path / "swept"]) == runs
    assert sorted(runs_in([tmp_path])) == sorted(runs)
    (tmp_path / "empty").mkdir()
    for nothing in ("empty", "mistyped"):
        with pytest.raises(UserError, match=f"{nothing} is not a run directory and contains none: no {RUN_FILE} in it"):
            runs_in([tmp_path / "run", tmp_path / nothing])
