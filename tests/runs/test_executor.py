"""The run directory: when a stage runs, what a try leaves behind, who may use a folder."""

import fcntl
import json
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from small_runs import Recorder
from weakdriven.errors import UserError
from weakdriven.runs.directory import claim_run
from weakdriven.runs.executor import DryRun, Run
from weakdriven.runs.files import append_jsonl, file_digest, read_jsonl, salvage_jsonl, write_text
from weakdriven.runs.machine import hardware, library_versions
from weakdriven.runs.stage import Planned
from weakdriven.runs.take_over import Siblings

SETTINGS, INPUTS = {"a": {"b": 1}, "betas": (0.9, 0.99)}, {"rows": "r1"}


class Work:
    """A compute that counts its calls, leaves a file in work and result, and fails the first `failures` times."""

    def __init__(self, text: str = "result", failures: int = 0):
        self.text, self.failures = text, failures
        self.found: list[list[str]] = []

    def __call__(self, work: Path, out: Path) -> dict:
        self.found.append(sorted(path.name for path in work.iterdir()))
        assert not list(out.iterdir())
        (work / f"try-{len(self.found)}").touch()
        (out / f"{self.text}.txt").write_text(self.text)
        if len(self.found) <= self.failures:
            later = 1000 + (work / f"try-{len(self.found)}").stat().st_mtime
            os.utime(work / f"try-{len(self.found)}", (later, later))  # as if this try had written for so long
            raise RuntimeError("killed")
        return {"calls": len(self.found)}


def stage(root: Path, work: Work, *, name: str = "part/one", settings=SETTINGS, inputs=INPUTS, **execution) -> Recorder:
    recorder = Recorder()
    Run(root, progress=recorder).stage(name, work, settings=settings, inputs=inputs, execution=execution)
    return recorder


def manifest(root: Path) -> dict:
    return json.loads((root / "part/one/manifest.json").read_text())


def contents(root: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def test_a_stage_computes_once_and_is_skipped_when_done(tmp_path):
    work = Work()
    assert stage(tmp_path, work).ran == {"part/one": "not run yet"}
    again = stage(tmp_path, work)
    assert (again.ran, again.skipped, len(work.found)) == ({}, ["part/one"], 1)
    assert (tmp_path / "part/one/result.txt").read_text() == "result"
    assert not list((tmp_path / ".work").iterdir())


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"settings": {**SETTINGS, "a": {"b": 2}}}, "a.b 1 -> 2"),
        ({"settings": {**SETTINGS, "c": "x"}}, "c None -> x"),
        ({"settings": {"a": {"b": 1}}}, "betas [0.9, 0.99] -> None"),
        ({"inputs": {"rows": "r2"}}, "input rows changed"),
        ({"settings": {**SETTINGS, "a": {"b": 0}}, "inputs": {}}, "a.b 1 -> 0, input rows changed"),
    ],
)
def test_a_stage_runs_again_and_names_the_setting_or_input_that_changed(tmp_path, change, reason):
    stage(tmp_path, Work())
    assert stage(tmp_path, Work(), **change).ran == {"part/one": reason}
    assert stage(tmp_path, Work(), **change).ran == {}


def test_execution_settings_do_not_change_the_key(tmp_path):
    stage(tmp_path, Work(), micro_batch_size=4)
    assert stage(tmp_path, Work(), micro_batch_size=8).ran == {}
    assert manifest(tmp_path)["execution"] == {"micro_batch_size": 4}


def test_a_dry_run_computes_nothing_and_lists_names_keys_and_reasons(tmp_path):
    stage(tmp_path, Work(), name="done")
    before, run, work = contents(tmp_path), DryRun(tmp_path), Work()
    done = run.stage("done", work, settings=SETTINGS, inputs=INPUTS)
    to_do = run.stage("to-do", work, settings={}, inputs={"done": done.key})
    assert run.planned == [Planned("done", done.key, ""), Planned("to-do", to_do.key, "not run yet")]
    assert to_do.path == tmp_path / "to-do" and to_do.key != done.key
    assert work.found == [] and contents(tmp_path) == before


def test_a_second_call_of_the_same_stage_in_one_run_returns_without_computing(tmp_path):
    work, recorder = Work(), Recorder()
    run = Run(tmp_path, progress=recorder)
    stages = [run.stage("one", work, settings=SETTINGS, inputs=INPUTS) for _ in range(2)]
    assert stages[0] == stages[1] and len(work.found) == 1 and len(run.planned) == 1 and recorder.skipped == []


def test_a_failed_try_leaves_no_result_and_the_next_one_resumes_from_its_work_folder(tmp_path):
    work = Work(failures=2)
    for tries in (1, 2):
        with pytest.raises(RuntimeError, match="killed"):
            stage(tmp_path, work)
        assert not (tmp_path / "part").exists()
        assert len(list((tmp_path / ".work/part--one/work").iterdir())) == tries
    stage(tmp_path, work)
    assert work.found == [[], ["try-1"], ["try-1", "try-2"]]
    record = manifest(tmp_path)
    assert record["resumed"] == 2 and record["counters"] == {"calls": 3}
    assert record["wall_seconds"] >= 2000  # both lost tries count
    assert sorted(path.name for path in (tmp_path / "part/one").iterdir()) == ["manifest.json", "result.txt"]


def test_another_key_starts_with_an_empty_work_folder(tmp_path):
    work = Work(failures=1)
    with pytest.raises(RuntimeError):
        stage(tmp_path, work)
    stage(tmp_path, work, settings={})
    assert work.found == [[], []]
    assert manifest(tmp_path)["resumed"] == 0 and manifest(tmp_path)["wall_seconds"] < 1000


def test_a_new_result_replaces_the_older_one_whole(tmp_path):
    stage(tmp_path, Work("old"))
    with pytest.raises(RuntimeError):
        stage(tmp_path, Work("new", failures=1), settings={})
    assert (tmp_path / "part/one/old.txt").exists(), "the old result stays until the new one is whole"
    stage(tmp_path, Work("new"), settings={})
    assert sorted(path.name for path in (tmp_path / "part/one").iterdir()) == ["manifest.json", "new.txt"]


def test_a_finished_result_that_was_killed_before_its_rename_is_renamed_without_computing(tmp_path):
    home = tmp_path / ".work/part--one"
    for change, calls in (({}, 0), ({"settings": {}}, 1)):  # the same key, another one
        stage(tmp_path, Work())
        home.mkdir()
        (tmp_path / "part/one").rename(home / "out")
        work = Work()
        assert stage(tmp_path, work, **change).ran == {"part/one": "not run yet"}
        assert len(work.found) == calls and stage(tmp_path, work, **change).ran == {} and not home.exists()


def test_a_setting_that_looks_like_a_secret_is_compared_like_any_other(tmp_path):
    secret = "hf_" + "aB3" * 11
    settings = {**SETTINGS, "model": secret}
    stage(tmp_path, Work(), settings=settings)
    assert stage(tmp_path, Work(), settings=settings).skipped == ["part/one"]
    file = tmp_path / "part/one/manifest.json"
    file.write_text(file.read_text().replace(secret, "hf_…"))  # as earlier versions wrote it
    assert stage(tmp_path, Work(), settings=settings).skipped == ["part/one"]
    changed = stage(tmp_path, Work(), settings={**settings, "a": {"b": 2}})
    assert changed.ran["part/one"].startswith("a.b 1 -> 2")
    assert stage(tmp_path, Work(), settings=settings).ran == {"part/one": "taken back from .replaced"}


@pytest.mark.parametrize("text", [b"", b"{", b"{}", b"[]", b"\xff", b'{"key": "k"}', b'{"key": 1, "settings": []}'])
def test_a_damaged_manifest_raises_an_error_and_nothing_is_computed_again(tmp_path, text):
    stage(tmp_path, Work())
    (tmp_path / "part/one/manifest.json").write_bytes(text)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"manifest.json is damaged .* delete the folder"):
        stage(tmp_path, Work())
    assert contents(tmp_path) == before


def test_a_folder_without_a_manifest_is_no_result(tmp_path):
    stage(tmp_path, Work())
    (tmp_path / "part/one/manifest.json").unlink()
    assert stage(tmp_path, Work()).ran == {"part/one": "not run yet"}


def test_the_manifest_records_settings_inputs_versions_and_files(tmp_path):
    made = Run(tmp_path, seed=7).stage("part/one", Work(), settings=SETTINGS, inputs=INPUTS, execution={"save": 3})
    record = manifest(tmp_path)
    assert datetime.fromisoformat(record.pop("finished")).utcoffset() is not None
    assert record.pop("wall_seconds") >= 0 and record.pop("peak_memory_bytes") > 1e6
    assert library_versions().keys() > {"torchao", "liger-kernel", "bitsandbytes"}
    assert record == {
        "stage": "part/one",
        "key": made.key,
        "settings": {"a": {"b": 1}, "betas": [0.9, 0.99]},
        "execution": {"save": 3},
        "inputs": INPUTS,
        "versions": library_versions(),
        "hardware": hardware(),
        "seed": 7,
        "resumed": 0,
        "counters": {"calls": 1},
        "files": {"result.txt": {"bytes": 6, "sha256": file_digest(tmp_path / "part/one/result.txt")}},
    }


def test_salvage_cuts_a_torn_last_line_and_keeps_the_whole_ones(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert salvage_jsonl(path) == [] and not path.exists()
    whole = '{"id": "é"}\n{"id": 2}\n'.encode()
    for torn in (b"", b'{"id": ', b'{"id": 3}', '{"id": "é'.encode()[:-1]):
        path.write_bytes(whole + torn)
        assert salvage_jsonl(path) == [{"id": "é"}, {"id": 2}]
        assert path.read_bytes() == whole


def test_any_text_and_date_is_read_back_from_appended_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    texts = ["half a pair \ud800", "\\\udc00", "line\nbreak\u2028\x85", "日本語 😀"]
    for text in texts:
        append_jsonl(path, [{"text": text}])
    append_jsonl(path, [{"text": datetime(2026, 11, 15)}])
    assert [row["text"] for row in read_jsonl(path)] == [*texts, "2026-11-15 00:00:00"]
    assert salvage_jsonl(path) == list(read_jsonl(path))


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(OSError, match="File too large"):
            write_text(path, "new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new" and [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("thesis.tex", b"precious", "contains files, but no run of weakdriven"),
        ("run.json", b'{"recipe": "other"}', "contains a run of recipe 'other', not 'demo'"),
        *(("run.json", text, r"run\.json cannot be read") for text in (b"", b"{", b"{}", b"[]", b"5", b"\xff")),
    ],
)
def test_a_directory_of_something_else_is_left_alone(name, text, message, tmp_path):
    (tmp_path / name).write_bytes(text)
    with pytest.raises(UserError, match=message), claim_run(tmp_path, "demo"):
        pass
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == {name: text}


def test_a_half_written_run_file_does_not_stop_the_next_run(tmp_path):
    (tmp_path / "run.json.part").write_text('{"rec')
    with claim_run(tmp_path, "demo"):
        assert json.loads((tmp_path / "run.json").read_text())["recipe"] == "demo"


def test_a_second_process_raises_an_error_while_the_first_holds_the_directory(tmp_path):
    with claim_run(tmp_path, "demo"), (tmp_path / ".work/lock").open() as other:
        with pytest.raises(BlockingIOError):  # what another process would meet
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        before = contents(tmp_path)
        with pytest.raises(UserError, match="Another process is running in"), claim_run(tmp_path, "demo"):
            pass
        assert contents(tmp_path) == before
    with claim_run(tmp_path, "demo"):
        pass


def refuse(root: Path) -> None:
    """A run that finds out, once it holds the directory, that its recipe is wrong."""
    with pytest.raises(UserError, match="wrong"), claim_run(root, "demo"):
        write_text(root / "recipe.yaml", "name: demo")
        (root / ".work/data/work").mkdir(parents=True)
        raise UserError("wrong")


@pytest.mark.parametrize("name", ["run", "runs/demo"])
def test_a_new_run_that_raises_an_error_leaves_neither_its_directory_nor_parents(name, tmp_path):
    refuse(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_new_run_that_raises_an_error_leaves_an_empty_folder_empty_however_it_is_named(tmp_path, monkeypatch):
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    monkeypatch.chdir(folder)
    for root in (folder, link, Path()):
        refuse(root)
        assert folder.is_dir() and link.is_symlink() and list(folder.iterdir()) == []


def test_finished_stages_stay_when_a_run_raises_an_error_later(tmp_path):
    with pytest.raises(UserError, match="wrong"), claim_run(tmp_path, "demo"):
        stage(tmp_path, Work())
        raise UserError("wrong")
    assert manifest(tmp_path)["stage"] == "part/one" and (tmp_path / "run.json").exists()
    before = contents(tmp_path)
    with pytest.raises(UserError, match="wrong"), claim_run(tmp_path, "demo"):
        raise UserError("wrong")
    assert contents(tmp_path) == before


class Together:
    """The main process and another on one directory; one that waits once too often or too seldom breaks the barrier."""

    def __init__(self, root: Path):
        self.root, self.barrier, self.events = root, threading.Barrier(2, timeout=120), {True: [], False: []}

    def work(self, name: str, is_main: bool):
        def compute(work: Path, out: Path) -> dict:
            self.events[is_main].append(f"compute {name}")
            if is_main:
                (out / "result.txt").write_text(name)
            else:
                assert work.is_dir() and out.is_dir(), "the main process has made the folders"
            return {}

        return compute

    def process(self, is_main: bool) -> Recorder:
        def agree(value):
            self.events[is_main].append("meet")
            if is_main:
                self.said = value
            self.barrier.wait()
            said = self.said
            self.barrier.wait()  # all have heard it before the next one is said
            return said

        recorder = Recorder()
        run = Run(self.root, progress=recorder, is_main=is_main, agree=agree)
        for name, shared in (("data", False), ("entropy/base", True), ("entropy/sft", True), ("active", False)):
            run.stage(name, self.work(name, is_main), settings=SETTINGS, inputs=INPUTS, shared=shared)
            run.stage(name, self.work(name, is_main), settings=SETTINGS, inputs=INPUTS, shared=shared)  # a second time
        return recorder

    def run(self) -> tuple[Recorder, Recorder]:
        with ThreadPoolExecutor(2) as pool:
            main, other = (pool.submit(self.process, is_main) for is_main in (True, False))
            return main.result(), other.result()


def test_other_processes_wait_for_the_main_one_at_every_stage_and_compute_shared_ones_only(tmp_path):
    both = Together(tmp_path)
    main, other = both.run()
    assert main.ran == other.ran and list(main.ran) == ["data", "entropy/base", "entropy/sft", "active"]
    assert [event for event in both.events[True] if event != "meet"] == [f"compute {name}" for name in main.ran]
    assert [event for event in both.events[False] if event != "meet"] == ["compute entropy/base", "compute entropy/sft"]
    assert both.events[True].count("meet") == both.events[False].count("meet") == 2 * 4 + 2 * 5
    assert (tmp_path / "entropy/sft/result.txt").read_text() == "entropy/sft"
    assert not list((tmp_path / ".work").iterdir())


def test_other_processes_skip_finished_stages_as_the_main_one_does(tmp_path):
    Together(tmp_path).run()
    shared = json.loads((tmp_path / "entropy/sft/manifest.json").read_text())
    (tmp_path / "entropy/sft/manifest.json").unlink()
    before = contents(tmp_path / "data")
    both = Together(tmp_path)
    main, other = both.run()
    assert main.skipped == other.skipped == ["data", "entropy/base", "active"]
    assert both.events[True] == ["meet"] * 2 + ["meet"] * 3 + ["compute entropy/sft", "meet"] + ["meet"]
    assert both.events[False] == both.events[True]
    assert contents(tmp_path / "data") == before
    assert json.loads((tmp_path / "entropy/sft/manifest.json").read_text())["key"] == shared["key"]


def test_a_finished_result_is_renamed_by_the_main_process_alone(tmp_path):
    Together(tmp_path).run()
    home = tmp_path / ".work/entropy--sft"
    home.mkdir()
    os.rename(tmp_path / "entropy/sft", home / "out")
    both = Together(tmp_path)
    both.run()
    assert set(both.events[True]) == set(both.events[False]) == {"meet"}
    assert both.events[True] == both.events[False]
    assert (tmp_path / "entropy/sft/manifest.json").is_file() and not home.exists()


def test_a_process_that_is_not_the_main_one_writes_nothing(tmp_path):
    met = []

    def agree(value):
        met.append(value)
        return value

    run = Run(tmp_path, is_main=False, agree=agree)
    work = Work()
    run.stage("part/one", work, settings=SETTINGS, inputs=INPUTS)
    assert work.found == [] and len(met) == 5
    assert list(tmp_path.iterdir()) == []


def test_a_process_follows_what_the_main_one_found_and_not_what_it_sees_itself(tmp_path):
    """A file system that shows things late must not lead two processes along different paths."""
    seen = []

    def agree(value):
        seen.append(value)
        return (value[0], "", False, None) if value else value

    recorder = Recorder()
    run = Run(tmp_path, is_main=False, agree=agree, progress=recorder)
    run.stage("part/one", Work(), settings=SETTINGS, inputs=INPUTS, shared=True)
    assert seen[0][1] == "not run yet" and recorder.skipped == ["part/one"]


def test_a_process_takes_over_what_the_main_one_found_in_another_run(tmp_path):
    theirs, work, recorder, met = tmp_path / "theirs", Work(), Recorder(), []

    def agree(value):
        met.append(value)
        return theirs if len(met) == 2 else value

    run = Run(tmp_path / "mine", is_main=False, siblings=Siblings([theirs]), agree=agree, progress=recorder)
    run.stage("part/one", work, settings=SETTINGS, inputs=INPUTS, shared=True)
    assert met[1:] == [None] * 3, "itself it does not see it yet"
    assert recorder.ran == {"part/one": "taken over from theirs"} and work.found == []


def test_a_process_with_other_inputs_raises_an_error(tmp_path):
    run = Run(tmp_path, is_main=False, agree=lambda value: ("another key", "not run yet", False, None))
    with pytest.raises(
        UserError, match="part/one: this process and the main process have different settings or inputs"
    ):
        run.stage("part/one", Work(), settings=SETTINGS, inputs=INPUTS)
