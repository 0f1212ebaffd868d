"""A Hub dataset is read at the commit of its key, and a Hub that does not answer changes no key."""

import json
import shutil

import pytest

from hub_server import HubServer
from small_runs import Recorder, small_recipe
from weakdriven.data.rows import hub as home
from weakdriven.data.rows.files import count_rows, data_key, read_rows
from weakdriven.errors import UserError
from weakdriven.models.load import locate_model
from weakdriven.pipeline.run import RunOptions, all_stages, carry_out
from weakdriven.runs.files import digest, read_json, read_jsonl, write_json
from weakdriven.stages.data import data_stage
from weakdriven.stages.remote_copy import RemoteCopy

OLD, NEW = "a" * 40, "b" * 40
RECIPE = ("data.path=lab/rows", "eval.benchmarks=[]", "method=sft", "baselines=[]", "data.limit=8")
FAULTS = ("503", "unreachable", "offline")


def rows_of(commit):
    rows = [{"question": f"{i}+1?", "solution": str(i + 1), "id": f"{commit[0]}{i}"} for i in range(8)]
    return {"train.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()}


def talk_to(patch, server, offline=False):
    """What the libraries have read from the environment when they were imported."""
    patch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr("datasets.config.HF_ENDPOINT", server.url)
    for place in ("huggingface_hub.constants", "datasets.config"):
        patch.setattr(f"{place}.HF_HUB_OFFLINE", offline)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub with one dataset of one commit, and empty caches."""
    with HubServer() as server:
        server.datasets["lab/rows"] = {OLD: rows_of(OLD)}
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
        monkeypatch.setattr(home, "_COMMITS", {})
        talk_to(monkeypatch, server)
        home.network_fault.cache_clear()
        yield server
        home.network_fault.cache_clear()


def fail(server, patch, fault):
    if fault == "503":
        server.down = 503
    elif fault == "offline":
        talk_to(patch, server, offline=True)
    else:
        patch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")


def run(root, *overrides, work=data_stage, recorder=None, remote=None):
    recorder = recorder or Recorder()
    options = RunOptions(remote=remote and RemoteCopy(remote, root))
    carry_out(small_recipe(*RECIPE, *overrides), root, recorder, work, options=options)
    return recorder


def ids(root):
    return [row["id"] for row in read_jsonl(root / "data/examples.jsonl")]


def key_of(root):
    return read_json(root / "data/manifest.json")["inputs"]["rows"]


def test_a_finished_run_is_skipped_whole_when_the_hub_does_not_answer(hub, tmp_path):
    assert run(tmp_path / "run", work=all_stages).ran.keys() == {"data", "baselines/sft"}
    assert key_of(tmp_path / "run") == f"lab/rows@{OLD}/train"
    for fault in FAULTS:
        with pytest.MonkeyPatch.context() as patch:
            fail(hub, patch, fault)
            again = run(tmp_path / "run", work=all_stages)
            assert (again.ran, set(again.skipped)) == ({}, {"data", "baselines/sft"}), fault


def test_on_another_machine_the_commit_is_that_of_the_runs_copy(hub, tmp_path, monkeypatch):
    address = f"file://{tmp_path}/copy"
    run(tmp_path / "here", remote=address)
    fail(hub, monkeypatch, "503")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "empty")
    assert run(tmp_path / "there", remote=address).ran == {}
    assert key_of(tmp_path / "there") == f"lab/rows@{OLD}/train"


def test_the_rows_are_those_of_the_key_when_the_dataset_changes_before_they_are_read(hub, tmp_path):
    class Moves(Recorder):
        def plan(self, planned):
            hub.datasets["lab/rows"][NEW] = rows_of(NEW)

    run(tmp_path / "run", recorder=Moves())
    assert (key_of(tmp_path / "run"), ids(tmp_path / "run")[0]) == (f"lab/rows@{OLD}/train", "a0")
    again = run(tmp_path / "run")
    assert again.ran == {"data": "input rows changed"}
    assert (key_of(tmp_path / "run"), ids(tmp_path / "run")[0]) == (f"lab/rows@{NEW}/train", "b0")


def test_readers_without_a_run_read_one_commit_too(hub):
    key = data_key("lab/rows", "train")
    hub.datasets["lab/rows"][NEW] = rows_of(NEW)
    assert next(read_rows("lab/rows"))["id"] == "a0" and count_rows("lab/rows") == 8
    assert data_key("lab/rows", "train") == key == f"lab/rows@{OLD}/train"


def test_offline_a_new_run_reads_the_commit_in_the_local_cache(hub, tmp_path, monkeypatch):
    list(read_rows("lab/rows"))
    hub.datasets["lab/rows"][NEW] = rows_of(NEW)
    fail(hub, monkeypatch, "offline")
    monkeypatch.setattr(home, "_COMMITS", {})
    run(tmp_path / "run")
    assert (key_of(tmp_path / "run"), ids(tmp_path / "run")[0]) == (f"lab/rows@{OLD}/train", "a0")


@pytest.mark.parametrize("fault", ["offline", "unknown name"])
def test_a_dataset_of_no_known_commit_is_an_error_and_leaves_no_run(hub, tmp_path, monkeypatch, fault):
    if fault == "offline":
        fail(hub, monkeypatch, "offline")
    hub.datasets.clear()
    with pytest.raises(UserError, match="lab/rows is n"):
        run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_of_another_commit_than_the_key_are_never_read(hub, tmp_path, monkeypatch):
    run(tmp_path / "run")
    hub.datasets["lab/rows"][NEW] = rows_of(NEW)
    monkeypatch.setattr(home, "_COMMITS", {})
    list(read_rows("lab/rows"))
    fail(hub, monkeypatch, "offline")
    with pytest.raises(UserError, match=f"cannot be read at commit {OLD}.*local cache has {NEW}"):
        run(tmp_path / "run", "data.max_length=400")
    shutil.rmtree(tmp_path / f"datasets/lab___rows/default/0.0.0/{NEW}")
    assert run(tmp_path / "run", "data.max_length=400").ran.keys() == {"data"}
    assert key_of(tmp_path / "run") == f"lab/rows@{OLD}/train"


def test_a_run_that_was_keyed_without_a_commit_stays_finished(hub, tmp_path, monkeypatch):
    run(tmp_path / "run")
    manifest = read_json(tmp_path / "run/data/manifest.json")
    manifest["inputs"]["rows"] = "lab/rows@cached/train"
    manifest["key"] = digest({name: manifest[name] for name in ("settings", "inputs")})
    write_json(tmp_path / "run/data/manifest.json", manifest)
    assert run(tmp_path / "run").ran == {}
    fail(hub, monkeypatch, "offline")
    assert run(tmp_path / "run").ran == {}
    with pytest.raises(UserError, match=r"did not record their commit.*Delete the folder data"):
        run(tmp_path / "run", "data.max_length=400")


def test_without_network_the_hub_is_not_tried_again_and_again(hub, tmp_path, monkeypatch):
    list(read_rows("lab/rows"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: pytest.fail("the client waits"))
    monkeypatch.setattr(home, "_COMMITS", {})
    home.network_fault.cache_clear()
    assert home.commit_of("lab/rows") == OLD
    with pytest.raises(UserError, match=r"hub.invalid cannot be reached: .* the local cache has none"):
        home.find_commit("lab/others")
    with pytest.raises(UserError, match=r"some/model is neither .*hub.invalid cannot be reached"):
        locate_model("some/model")


def test_a_network_that_fails_keeps_its_retries(hub, monkeypatch):
    waits = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waits.append)
    fail(hub, monkeypatch, "503")
    assert home.network_fault() == ""
    with pytest.raises(UserError):
        home.find_commit("lab/rows")
    assert len(waits) >= 5
