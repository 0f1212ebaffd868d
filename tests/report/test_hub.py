"""Pushing a run, through the real client of the Hub, to a server that speaks its API."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from huggingface_hub import ModelCard, constants

from hub_server import TOKEN, HubServer
from run_files import put
from weakdriven.commands.app import main
from weakdriven.report.card.hub import files_to_push

KEY = "ab12"


def make_run(run: Path, model: str = "owner/base") -> Path:
    facts = {"recipe": "demo", "weakdriven": "0.1.0", "created": "2026-11-15T03:00:00+00:00"}
    put(run / "run.json", facts | {"hub_models": ["owner/base"]})
    put(run / "recipe.yaml", yaml.safe_dump({"name": "demo", "method": "wmss", "model": model}))
    put(run / "plan.json", {"round-1/strong": KEY})
    strong = run / "round-1/strong"
    put(
        strong / "manifest.json",
        {
            "stage": "round-1/strong",
            "key": KEY,
            "finished": "2026",
            "versions": {},
            "counters": {},
            "settings": {"a": "/home/me"},
        },
    )
    put(strong / "config.json", {"model_type": "qwen3", "_name_or_path": "/home/me/base"})
    put(strong / "tokenizer.json", {"version": "1.0"})
    put(strong / "chat_template.jinja", "{{ messages }}")
    (strong / "model.safetensors").write_bytes(b"weights" * 1000)
    for name in (
        "metrics.jsonl",
        "optimizer.pt",
        "trainer_state.json",
        "weak/model.safetensors",
        "checkpoint-3/x.json",
    ):
        put(strong / name, "not for others")
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "demo")


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def weakdriven(monkeypatch, capsys) -> Callable[..., Ended]:
    """The command in this process, with what the Hub's client has read from the environment when it was imported."""

    def run_command(*words: str, hub: str, token: str | None = TOKEN, offline: bool = False) -> Ended:
        monkeypatch.setenv("HF_TOKEN", token) if token else monkeypatch.delenv("HF_TOKEN", raising=False)
        settings = {"ENDPOINT": hub, "HF_HUB_OFFLINE": offline, "HF_HUB_DISABLE_XET": True, "HF_TOKEN_PATH": "/nowhere"}
        for name, value in settings.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(sys, "argv", ["weakdriven", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code or 0, *capsys.readouterr())

    return run_command


def test_model_tokenizer_and_card_are_pushed_and_nothing_else(run, weakdriven):
    with HubServer() as hub:
        done = weakdriven("export", "hub", str(run), "lab/demo", "--private", hub=hub.url)
        assert done.code == 0, done.err
        assert done.out == f"Pushed: {hub.url}/lab/demo\n"
        again = weakdriven("export", "hub", str(run), "lab/demo", hub=hub.url)
        assert again.code == 0, "a repository that is there is used"
    assert hub.repos == {"lab/demo": {"name": "demo", "organization": "lab", "visibility": "private"}}
    names = {"README.md", "config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
    assert set(hub.files) == names
    assert hub.files["model.safetensors"] == b"weights" * 1000
    card = hub.files["README.md"].decode()
    assert ModelCard(card).data.base_model == "owner/base" and card in hub.cards, (
        "the Hub was asked whether it is valid"
    )
    assert json.loads(hub.files["config.json"]) == {"model_type": "qwen3", "_name_or_path": "owner/base"}
    assert not any(b"/home/me" in content for content in hub.files.values())
    assert json.loads((run / "round-1/strong/config.json").read_text())["_name_or_path"] == "/home/me/base"
    assert hub.messages == ["demo: trained with weakdriven"] * 2


def test_an_adapter_over_a_folder_of_this_machine_names_that_folder_alone(tmp_path, weakdriven):
    run = make_run(tmp_path / "demo", str(tmp_path / "models/tiny"))
    put(run / "round-1/strong/adapter_config.json", {"r": 8, "base_model_name_or_path": str(tmp_path / "models/tiny")})
    with HubServer() as hub:
        assert weakdriven("export", "hub", str(run), "me/demo", hub=hub.url).code == 0
    assert json.loads(hub.files["adapter_config.json"]) == {"r": 8, "base_model_name_or_path": "tiny"}
    assert not any(str(tmp_path).encode() in content for content in hub.files.values())


def test_an_adapter_keeps_the_hub_id_of_its_base_where_the_run_does_not_name_it(tmp_path):
    for model, expected in (("owner/base", b"owner/base"), ("/home/me/base", b"base")):
        path = tmp_path / "adapter_config.json"
        put(path, {"base_model_name_or_path": model})
        put(tmp_path / "config.json", {"_name_or_path": "models/tiny"})
        files = dict(files_to_push(tmp_path, None))
        adapter = files["adapter_config.json"]
        text = Path(adapter).read_bytes() if isinstance(adapter, str) else adapter
        assert json.loads(text)["base_model_name_or_path"].encode() == expected
        assert json.loads(files["config.json"]) == {"_name_or_path": "tiny"}


def test_private_without_a_push_raises_an_error_before_the_run(tmp_path, weakdriven):
    words = ("run", "demo", "--output", str(tmp_path / "run"), "--private")
    done = weakdriven(*words, hub="http://127.0.0.1:9")
    assert done.code == 2 and "needs --push-to-hub" in done.err
    assert not (tmp_path / "run").exists()


def test_a_push_that_fails_says_where_the_model_is_and_how_to_try_again(run, weakdriven):
    with HubServer(refused="/commit/") as hub:
        done = weakdriven("export", "hub", str(run), "lab/demo", "--private", hub=hub.url)
    assert done.code == 2 and f"The model is safe in {run / 'round-1/strong'}" in done.err
    assert f"Try again with: weakdriven export hub {run} lab/demo --private" in done.err
    assert "Traceback" not in done.err and TOKEN not in done.err and not hub.files


@pytest.mark.parametrize(
    ("repo", "role", "changes", "message"),
    [
        ("demo", "write", {}, "'demo' is not a valid model name on the Hub"),
        ("lab/a/b", "write", {}, "'lab/a/b' is not a valid model name on the Hub"),
        ("lab/demo", "read", {}, "The token of me is read-only; log in with hf auth login"),
        ("others/demo", "write", {}, "me cannot write to others/demo; choose an owner of me, lab"),
        ("lab/demo", "write", {"token": "hf_wrong"}, "The Hub accepts no login of this machine (Invalid user token"),
        ("lab/demo", "write", {"token": None}, "The Hub accepts no login of this machine"),
        ("lab/demo", "write", {"offline": True}, "HF_HUB_OFFLINE is set"),
        ("lab/demo", "write", {"hub": "http://127.0.0.1:9"}, "The Hub cannot be reached"),
    ],
)
def test_a_run_that_could_not_be_pushed_raises_an_error_before_it_starts(
    tmp_path, weakdriven, repo, role, changes, message
):
    with HubServer(role) as hub:
        words = ("run", "demo", "--output", str(tmp_path / "run"), "--push-to-hub", repo)
        done = weakdriven(*words, **{"hub": hub.url} | changes)
    assert done.code == 2 and message in done.err, done.err
    assert "Traceback" not in done.err and "hf_wrong" not in done.err
    assert not (tmp_path / "run").exists() and not hub.repos


def test_what_has_no_result_raises_an_error_before_a_request_to_the_hub(tmp_path, run, weakdriven):
    (run / "round-1/strong/manifest.json").unlink()
    with HubServer() as hub:
        done = weakdriven("export", "hub", str(run), "lab/demo", hub=hub.url)
        assert done.code == 2 and "has no trained model yet" in done.err
        done = weakdriven("export", "hub", str(tmp_path), "lab/demo", hub=hub.url)
        assert done.code == 2 and "is not a run directory" in done.err
    assert not hub.requests
