"""`owner/name:configuration`: what `datasets` is asked for, and which configurations an error names."""

import json
from types import SimpleNamespace

import pytest

from helpers import write_rows
from weakdriven.data.rows import hub
from weakdriven.data.rows.files import count_rows, data_key, hub_rows, read_each, read_rows
from weakdriven.data.rows.sources import load_examples
from weakdriven.errors import UserError

ROW = {"question": "1+1?", "solution": "2"}


@pytest.mark.parametrize(
    "path, asked",
    [
        ("openai/gsm8k", ("openai/gsm8k", None)),
        ("openai/gsm8k:main", ("openai/gsm8k", "main")),
        ("a-m-team/AM-DeepSeek-R1-Distilled-1.4M:am_0.5M", ("a-m-team/AM-DeepSeek-R1-Distilled-1.4M", "am_0.5M")),
        ("squad:plain_text", ("squad", "plain_text")),
    ],
)
def test_a_configuration_after_a_colon_is_asked_for_by_all_readers(path, asked, monkeypatch):
    calls, commit = [], "a" * 40
    monkeypatch.setattr(hub, "_COMMITS", {path: commit})
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: calls.append((a, k)) or [ROW])
    assert list(read_rows(path, "test")) == list(read_each(path, "test")) == [ROW]
    assert count_rows(path, "test") == 1
    assert calls == [(asked, {"split": "test", "revision": commit})] * 3
    assert load_examples(path)[0].completion == "2" and calls[-1][1]["split"] == "train"


def test_the_key_of_the_rows_holds_the_commit_and_the_configuration(monkeypatch):
    commits = {"owner/name": "abc"}
    api = SimpleNamespace(dataset_info=lambda name, **_: SimpleNamespace(sha=commits[name]))
    monkeypatch.setattr(hub, "_COMMITS", {})
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    assert data_key("owner/name:one", "train") == "owner/name:one@abc/train"
    assert data_key("owner/name", "train") == "owner/name@abc/train"


def test_a_revision_after_an_at_is_read_at_its_commit(monkeypatch):
    asked, commit = [], "b" * 40
    info = lambda name, timeout, revision: SimpleNamespace(sha=asked.append((name, revision)) or commit)  # noqa: E731
    monkeypatch.setattr(hub, "_COMMITS", {})
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: SimpleNamespace(dataset_info=info))
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: asked.append((*a, k["revision"])) or [ROW])
    assert list(read_rows("owner/name:one@v1.0")) == [ROW]
    assert asked == [("owner/name", "v1.0"), ("owner/name", "one", commit)]
    assert data_key("owner/name:one@v1.0", "train") == f"owner/name:one@v1.0@{commit}/train"
    assert data_key(f"owner/name@{'c' * 40}", "train").endswith(f"@{'c' * 40}/train")
    assert asked[2:] == [], "a whole commit is not looked up"


def test_a_file_whose_name_holds_a_colon_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "set:1", [ROW])
    assert list(read_rows("set:1")) == [ROW]


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A folder as a dataset's repository is, with two configurations and no default."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub, "commit_of", lambda path: "of a folder")

    def make(default=""):
        for name in ("am_0.5M", "am_0.9M"):
            (tmp_path / "set" / name).mkdir(parents=True)
            write_rows(tmp_path / "set" / name / "train.jsonl", [ROW | {"id": name}])
        configs = [
            {"config_name": name, "data_files": f"{name}/*.jsonl", **({"default": True} if name == default else {})}
            for name in ("am_0.5M", "am_0.9M")
        ]
        (tmp_path / "set" / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
        return str(tmp_path / "set")

    return make


def test_datasets_reads_the_configuration_that_is_named(dataset):
    assert [row["id"] for row in hub_rows(f"{dataset()}:am_0.9M", "train")] == ["am_0.9M"]


@pytest.mark.parametrize("ending", [":am_1.4M", ""])
def test_a_configuration_that_is_not_there_is_an_error_that_lists_those_that_are(dataset, ending):
    path = dataset()
    with pytest.raises(UserError, match=r"(?s)am_0\.5M.*am_0\.9M.* after a colon: .*:configuration\.$") as error:
        hub_rows(path + ending, "train")
    assert str(error.value).startswith(path + ending)


@pytest.mark.parametrize("ending", ["", ":am_0.5M"])
def test_an_unknown_split_is_not_reported_as_a_missing_configuration(dataset, ending):
    path = dataset(default="am_0.9M")
    with pytest.raises(UserError, match=r"nor a dataset on the Hub \(Unknown split \"nope\""):
        hub_rows(path + ending, "nope")


def test_a_dataset_that_cannot_be_reached_is_reported_by_its_full_name():
    with pytest.raises(UserError, match=r"^nobody/nothing:main is not a local data file"):
        hub_rows("nobody/nothing:main", "train")
