"""A run whose output is an address: the copy is complete, another machine continues from it, no fault loses work."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from small_runs import SMALL, Recorder, small_recipe
from weakdriven.commands.app import app
from weakdriven.commands.run import places
from weakdriven.errors import UserError
from weakdriven.pipeline.run import RunOptions, run_recipe
from weakdriven.runs.directory import claim_run, work_folder
from weakdriven.runs.executor import DryRun, Run
from weakdriven.runs.manifest import rewriting
from weakdriven.runs.signals import Stopped, stoppable
from weakdriven.runs.take_over import Siblings
from weakdriven.stages import remote_copy as mirror_module
from weakdriven.stages.remote_copy import RemoteCopy, default_folder

QUICK = ["method=sft", "baselines=[]", "data.limit=8", "eval.limit=1", "eval.max_new_tokens=2"]


class Store(MemoryFileSystem):
    """Objects in memory that remember what was done to them, and fail as they are told to."""

    protocol = "teststore"
    store, pseudo_dirs, cachable = {}, [""], False
    done: ClassVar[list[tuple[str, str]]] = []
    failures: ClassVar[list[tuple[str, int, Exception]]] = []
    """Ending of a name, how often, and with what."""
    cut = ""
    """Ending of a name whose last byte is lost once, without a word."""

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("teststore://").strip("/")

    def put_file(self, lpath, rpath, *more, **options):
        for place, (ending, times, error) in enumerate(self.failures):
            if rpath.endswith(ending) and times:
                self.failures[place] = (ending, times - 1, error)
                self.pipe_file(rpath, b"half")
                raise error
        super().put_file(lpath, rpath, *more, **options)
        if self.cut and rpath.endswith(self.cut):
            Store.cut = ""
            self.pipe_file(rpath, self.cat_file(rpath)[:-1])
        self.done.append(("put", rpath))

    def get_file(self, rpath, lpath=None, *more, **options):
        super().get_file(rpath, lpath, *more, **options)
        self.done.append(("get", rpath))

    def rm_file(self, path):
        super().rm_file(path)
        self.done.append(("rm", path))


fsspec.register_implementation("teststore", Store, clobber=True)
ADDRESS = "teststore://bucket/run"


@pytest.fixture(autouse=True)
def empty_store(monkeypatch):
    for kept in (Store.store, Store.done, Store.failures):
        kept.clear()
    Store.pseudo_dirs, Store.cut = [""], ""
    waits = []
    monkeypatch.setattr(mirror_module.time, "sleep", waits.append)
    return waits


def two_stages(
    root: Path, text: str = "one", *near: Path, address: str = ADDRESS, recipe: str = "demo", finish: bool = True
):
    """A run of two small stages, the second from the first, as `carry_out` runs a recipe."""

    def work(run: Run) -> None:
        def compute(name: str):
            def write(_: Path, out: Path) -> dict:
                (out / "inner").mkdir()
                (out / "inner/part.txt").write_text(f"{name} {text}")
                (out / f"{text}.bin").write_bytes(b"x" * 1000)
                return {}

            return write

        first = run.stage("first", compute("first"), settings={"text": text}, inputs={})
        run.stage("part/second", compute("second"), settings={}, inputs={"first": first.key})

    progress = Recorder()
    copy = RemoteCopy(address, root, progress.note)
    with claim_run(root, recipe):
        copy.open(recipe)
        dry = DryRun(root, siblings=Siblings(near))
        work(dry)
        copy.bring(dry.planned)
        work(Run(root, progress=progress, copy=copy.send, siblings=Siblings(near)))
        (root / "report.html").write_text("report")
        if finish:
            copy.finish()
    return progress


def there() -> dict[str, bytes]:
    return {path.removeprefix("/bucket/run/"): bytes(file.getvalue()) for path, file in Store.store.items()}


def here(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and not {".work", ".replaced"} & set(path.parts))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_the_address_holds_what_the_folder_does_and_each_manifest_came_last(tmp_path):
    two_stages(tmp_path / "a")
    assert there() == here(tmp_path / "a") and "part/second/inner/part.txt" in there()
    puts = [path.removeprefix("/bucket/run/") for _, path in Store.done]
    assert puts[0] == "run.json", "what cannot be written is told before anything is computed"
    for stage in ("first", "part/second"):
        own = [name for name in puts if name.startswith(f"{stage}/")]
        assert len(own) == 3 and own[-1] == f"{stage}/manifest.json"
    assert puts.index("first/manifest.json") < puts.index("part/second/one.bin"), "as soon as it is finished"


def test_another_machine_downloads_everything_and_computes_nothing(tmp_path):
    two_stages(tmp_path / "a")
    Store.done.clear()
    again = two_stages(tmp_path / "b")
    assert (again.ran, again.skipped) == ({}, ["first", "part/second"])
    assert again.notes[1:] == [f"{stage}: fetched from {ADDRESS}" for stage in ("first", "part/second")]
    assert here(tmp_path / "b") == here(tmp_path / "a"), "when it began, too"
    assert not [name for done, name in Store.done if done == "put" and "/first/" in name], "nothing goes back"
    assert not list((tmp_path / "b/.work").glob("*/out"))


def test_files_that_a_local_run_has_are_linked_and_not_downloaded(tmp_path):
    two_stages(tmp_path / "a")
    before = there()
    Store.done.clear()
    again = two_stages(tmp_path / "b", "one", tmp_path / "a")
    assert not [name for done, name in Store.done if done == "get"] and again.ran == {} and there() == before
    assert again.notes[1] == f"first: fetched from {ADDRESS} (2 of 2 files linked from {tmp_path}/a/first)"
    assert here(tmp_path / "b") == here(tmp_path / "a"), "the manifest is that of the address: nothing was taken over"
    assert (tmp_path / "b/first/one.bin").samefile(tmp_path / "a/first/one.bin")


@pytest.mark.parametrize("told", [True, False], ids=["made anew", "damaged"])
def test_files_that_differ_in_a_local_run_are_downloaded_and_the_address_stays_as_it_was(tmp_path, told):
    """What lies there was made from it; what is taken instead would have to be sent, in its place."""
    two_stages(tmp_path / "a")
    before, other = there(), tmp_path / "other"
    shutil.copytree(tmp_path / "a", other)
    if told:
        with rewriting(other / "first", "one.bin"):
            (other / "first/one.bin").write_bytes(b"y" * 1000)
    else:
        (other / "first/one.bin").write_bytes(b"y" * 1000)
    Store.done.clear()
    assert two_stages(tmp_path / "b", "one", other).ran == {}
    assert [name for done, name in Store.done if done == "get"] == ["/bucket/run/first/one.bin"]
    assert here(tmp_path / "b") == here(tmp_path / "a") and there() == before


def test_files_that_a_local_run_loses_meanwhile_are_downloaded(tmp_path, monkeypatch):
    two_stages(tmp_path / "a")
    whole = mirror_module.damage

    def removed_after(folder, *args, **kwargs):
        found = whole(folder, *args, **kwargs)
        if folder == tmp_path / "a/first":
            shutil.rmtree(folder)
        return found

    monkeypatch.setattr(mirror_module, "damage", removed_after)
    Store.done.clear()
    assert two_stages(tmp_path / "b", "one", tmp_path / "a").ran == {}
    assert ("get", "/bucket/run/first/one.bin") in Store.done


def test_only_missing_stages_are_uploaded(tmp_path):
    two_stages(tmp_path / "a")
    for path in [path for path in Store.store if path.startswith("/bucket/run/first/")]:
        del Store.store[path]
    Store.done.clear()
    assert two_stages(tmp_path / "a").ran == {}
    assert [name for _, name in Store.done if "part/second" in name] == []
    assert there() == here(tmp_path / "a")


def test_an_older_result_is_removed_manifest_first_and_not_downloaded(tmp_path):
    two_stages(tmp_path / "a", "one")
    Store.done.clear()
    assert list(two_stages(tmp_path / "b", "two").ran) == ["first", "part/second"]
    assert there() == here(tmp_path / "b") and "first/one.bin" not in there()
    own = [(done, path.rpartition("/")[2]) for done, path in Store.done if path.startswith("/bucket/run/first/")]
    assert own[0] == ("rm", "manifest.json") and own[-1] == ("put", "manifest.json")


def test_an_older_manifest_that_cannot_be_removed_is_not_left_over_new_files(tmp_path, monkeypatch):
    two_stages(tmp_path / "a", "one")
    remove, before = Store.rm_file, there()

    def denied(self, path):
        raise PermissionError("denied")

    monkeypatch.setattr(Store, "rm_file", denied)
    with pytest.raises(UserError, match="could not store"):
        two_stages(tmp_path / "a", "two")
    changed = {name for name, content in there().items() if before.get(name) != content}
    assert changed <= {"run.json", "report.html"}, "tried twice, and both times nothing was laid under it"
    monkeypatch.setattr(Store, "rm_file", remove)
    assert two_stages(tmp_path / "a", "two").ran == {} and there() == here(tmp_path / "a")


def test_a_rewritten_file_is_uploaded_again(tmp_path):
    two_stages(tmp_path / "a")
    (tmp_path / "a/first/README.md").write_text("card")
    (tmp_path / "a/report.html").write_text("report 2")
    manifest = json.loads((tmp_path / "a/first/manifest.json").read_text())
    (tmp_path / "a/first/manifest.json").write_text(json.dumps(manifest | {"graded": 2}))
    two_stages(tmp_path / "a")
    assert there()["first/README.md"] == b"card" and json.loads(there()["first/manifest.json"])["graded"] == 2
    two_stages(tmp_path / "b")
    assert (tmp_path / "b/first/README.md").read_text() == "card"


def test_a_stage_that_is_graded_again_after_it_was_copied_keeps_its_card_there(tmp_path):
    two_stages(tmp_path / "a")
    (tmp_path / "a/first/README.md").write_text("card")
    copy = RemoteCopy(ADDRESS, tmp_path / "a", stages=["first"])
    copy.open("demo")
    copy.finish()
    manifest = tmp_path / "a/first/manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"graded": 2}))
    copy.finish()
    assert there() == here(tmp_path / "a") and there()["first/README.md"] == b"card"


def test_a_transient_error_is_retried_and_a_truncated_upload_is_noticed(tmp_path, empty_store):
    Store.failures.append(("first/one.bin", 2, ConnectionResetError(104, "reset")))
    Store.cut = "second/one.bin"
    assert two_stages(tmp_path / "a").notes == [f"working in {tmp_path}/a, copying to {ADDRESS}"]
    assert there() == here(tmp_path / "a") and empty_store == [1.0, 5.0, 1.0]


def test_a_run_continues_while_the_address_is_unreachable_and_copies_later(tmp_path):
    Store.failures.append(("first/one.bin", 4, ConnectionResetError(104, "reset")))
    ran = two_stages(tmp_path / "a")
    [note] = ran.notes[1:]
    assert note.startswith(f"{ADDRESS} could not store first (ConnectionResetError: [Errno 104] reset)")
    assert list(ran.ran) == ["first", "part/second"] and there() == here(tmp_path / "a")


@pytest.mark.parametrize("error, tries", [(TimeoutError("slow"), 4), (PermissionError("denied"), 1)])
def test_an_upload_that_fails_keeps_the_work_and_the_next_run_copies_it(tmp_path, error, tries):
    Store.failures.append(("second/one.bin", 1000, error))
    with pytest.raises(UserError, match=rf"could not store part/second .* complete in {tmp_path}/a; run the same"):
        two_stages(tmp_path / "a")
    assert 1000 - Store.failures[0][1] == 2 * tries, "once after the stage and once at the end"
    assert "first/manifest.json" in there() and "part/second/manifest.json" not in there()
    other = two_stages(tmp_path / "b", finish=False)
    assert (other.skipped, list(other.ran)) == (["first"], ["part/second"]), "half a stage is none"
    Store.failures.clear()
    assert two_stages(tmp_path / "a").ran == {} and there() == here(tmp_path / "a")


def test_an_address_that_cannot_be_written_is_an_error_before_anything_is_computed(tmp_path):
    Store.failures.append(("run.json", 1, PermissionError("denied")))
    with pytest.raises(UserError, match=rf"^{ADDRESS} cannot be written \(PermissionError: denied\); check"):
        two_stages(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def damage_there(name: str, content: bytes | None) -> None:
    if content is None:
        del Store.store[f"/bucket/run/{name}"]
    else:
        Store("teststore").pipe_file(f"/bucket/run/{name}", content)


@pytest.mark.parametrize(
    "name, content, found",
    [
        ("first/one.bin", b"y" * 1000, "one.bin has different content"),
        ("first/one.bin", b"x" * 999, "one.bin has 999 bytes, but had 1,000"),
        ("first/inner/part.txt", None, "first/inner/part.txt cannot be read"),
        ("first/manifest.json", b"{", "first/manifest.json is damaged"),
        ("first/manifest.json", b'{"key": "k", "files": {"../x": {"bytes": 1, "sha256": ""}}}', "is damaged"),
        ("first/manifest.json", b'{"key": "k", "files": {"/x": {"bytes": 1, "sha256": ""}}}', "is damaged"),
        ("first/manifest.json", b'{"key": "k", "files": {"x": {"bytes": 1}}}', "is damaged"),
        ("first/manifest.json", b'{"key": "k"}', "is damaged"),
    ],
)
def test_a_damaged_remote_stage_is_an_error_and_not_put_in_place(tmp_path, name, content, found):
    two_stages(tmp_path / "a")
    damage_there(name, content)
    with pytest.raises(UserError) as refused:
        two_stages(tmp_path / "b")
    told = str(refused.value)
    assert told.startswith(f"{ADDRESS}/") and found in told and str(tmp_path) not in told
    assert told.endswith(f"or delete {ADDRESS}/first to compute it again.")
    assert not (tmp_path / "b/first").exists() and not (tmp_path / "x").exists()


def test_a_damaged_local_stage_is_not_uploaded(tmp_path):
    Store.failures.append(("first/one.bin", 1000, PermissionError("denied")))
    with pytest.raises(UserError, match="could not store"):
        two_stages(tmp_path / "a")
    Store.failures.clear()
    (tmp_path / "a/first/one.bin").write_bytes(b"y" * 1000)
    with pytest.raises(UserError, match=r"a/first/one.bin has different content"):
        two_stages(tmp_path / "a")
    assert "first/manifest.json" not in there()


def test_an_address_with_another_recipe_or_other_files_is_an_error(tmp_path):
    two_stages(tmp_path / "a")
    before = there()
    with pytest.raises(UserError, match="contains a run of recipe 'demo', not 'other'"):
        two_stages(tmp_path / "b", recipe="other")
    with pytest.raises(UserError, match="holds files but no run"):
        two_stages(tmp_path / "b", address="teststore://bucket")
    assert there() == before and not (tmp_path / "b").exists()


def test_a_signal_stops_the_copy_between_two_files_and_nothing_is_lost(tmp_path, monkeypatch):
    put = Store.put_file

    def signalled(self, source, target, **options):
        put(self, source, target, **options)
        if target.endswith("first/inner/part.txt"):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Store, "put_file", signalled)
    with stoppable(), pytest.raises(Stopped):
        two_stages(tmp_path / "a")
    assert (tmp_path / "a/first/manifest.json").is_file() and "first/manifest.json" not in there()
    monkeypatch.setattr(Store, "put_file", put)
    assert list(two_stages(tmp_path / "a").ran) == ["part/second"]
    assert there() == here(tmp_path / "a")


def test_an_interrupted_download_starts_over(tmp_path):
    two_stages(tmp_path / "a")
    left = work_folder(tmp_path / "b", "first") / "out"
    left.mkdir(parents=True)
    (left / "one.bin").write_bytes(b"half")
    (left / "junk").touch()
    assert two_stages(tmp_path / "b").ran == {}
    assert here(tmp_path / "b") == here(tmp_path / "a")


def test_file_addresses_are_addresses_too(tmp_path):
    address = f"file://{tmp_path}/shared/run"
    assert places(address, tmp_path / "a") == (tmp_path / "a", address)
    two_stages(tmp_path / "a", address=address)
    assert here(tmp_path / "shared/run") == here(tmp_path / "a")
    assert two_stages(tmp_path / "b", address=address).ran == {}


def test_secrets_of_an_address_are_in_no_message_folder_or_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    address = "teststore://me:hunter22@bucket/run?token=abc123"
    Store.failures.append(("first/one.bin", 1000, PermissionError("me:hunter22@bucket says no to ?token=abc123")))
    with pytest.raises(UserError, match="could not store") as refused:
        two_stages(default_folder(address), address=address)
    assert refused.value.__suppress_context__
    told = str(refused.value) + "".join(map(str, tmp_path.rglob("*")))
    files = b"".join(here(tmp_path).values()).decode(errors="replace")
    assert not [secret for secret in ("hunter22", "abc123") if secret in told + files]
    assert default_folder(address) == default_folder("teststore://me:other@bucket/run/")
    assert default_folder(address) != default_folder("teststore://bucket/run2")


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["verify", "s3://me:hunter22@bucket/run"], "^s3://bucket/run is a URL, but this command needs"),
        (["report", "gs://bucket/run"], "^gs://bucket/run is a URL"),
        (["report", "compare", "runs", "gs://bucket/run"], "^gs://bucket/run is a URL"),
        (["select", "demo", "--output", "s3://bucket/run"], "^s3://bucket/run is a URL"),
        (["sweep", "demo", "--output", "s3://bucket/run"], "^s3://bucket/run is a URL"),
        (["run", "demo", "--work", "here"], "^--work here needs a URL"),
        (["run", "demo", "--output", "s3://bucket/run", "--work", "s3://bucket/x"], "^s3://bucket/x is a URL"),
        (["run", "demo", "--output", "https://me:hunter22@host/run"], "^https://host/run is read-only"),
        (["run", "demo", "--output", "nonsense://host/run", "--work", "w"], "^nonsense://host/run cannot be read"),
    ],
)
def test_what_cannot_be_done_at_an_address_is_an_error(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert not list(tmp_path.iterdir())


def test_several_machines_need_a_shared_work_folder(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="give --work DIR, a directory that all of them share"):
        places(ADDRESS, None)
    assert places(ADDRESS, Path("shared")) == (Path("shared"), ADDRESS)


def run_copied(root: Path, address: str, *overrides: str) -> Recorder:
    recorder = Recorder()
    copy = RemoteCopy(address, root, recorder.note)
    run_recipe(small_recipe(*QUICK, *overrides), root, recorder, RunOptions(replace=True, remote=copy))
    return recorder


def test_a_recipe_continues_from_its_address_in_an_empty_folder(tmp_path):
    first, again = (run_copied(tmp_path / name, ADDRESS) for name in ("a", "b"))
    stages = ["data", "baselines/sft", "eval/base/arithmetic", "eval/baseline-sft/arithmetic"]
    assert list(first.ran) == stages and (again.ran, again.skipped) == ({}, stages)
    assert [entry.reason for entry in again.planned] == [""] * 4, "the plan that is shown knows of it"
    found = {name: content for name, content in there().items() if name != "report.html"}
    assert found == {name: content for name, content in here(tmp_path / "b").items() if name != "report.html"}
    assert {"report.html", "recipe.yaml", "plan.json", "baselines/sft/README.md"} <= there().keys()


@pytest.mark.slow
@pytest.mark.xdist_group("alone")
def test_of_two_processes_the_first_one_copies_and_both_continue_from_the_address(tmp_path):
    address = f"file://{tmp_path}/shared/run"
    run_copied(tmp_path / "a", address, "eval.benchmarks=[]")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", "weakdriven", "run", "demo", *SMALL, *QUICK, "--output", address, "--work", str(tmp_path / "b")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for once in ("baselines/sft: fetched from", "] eval/base/arithmetic\n", f"Copied: {address}"):
        assert done.stdout.count(once) == 1
    assert here(tmp_path / "shared/run") == here(tmp_path / "b")
