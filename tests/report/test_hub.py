"""Pushing a run, through the real client of the Hub, to a server that speaks its API."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from hub_server import TOKEN, HubServer
from run_files import put
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
        {"stage": "round-1/strong", "key": KEY, "finished": "2026", "settings": {"a": "/home/me"}},
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


def weakdriven(*words: str, hub: str, **changes: str | None) -> subprocess.CompletedProcess:
    """The command in a process of its own, since the client reads these variables when it is imported."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": "/nowhere"}
    environment |= {key: value for key, value in changes.items() if value is not None}
    for key in (key for key, value in changes.items() if value is None):
        environment.pop(key)
    command = [sys.executable, "-m", "weakdriven", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_model_tokenizer_and_card_are_pushed_and_nothing_else(run):
    with HubServer() as hub:
        done = weakdriven("export", "hub", str(run), "lab/demo", "--private", hub=hub.url)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"Pushed: {hub.url}/lab/demo\n"
        again = weakdriven("export", "hub", str(run), "lab/demo", hub=hub.url)
        assert again.returncode == 0, "a repository that is there is used"
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


def test_an_adapter_over_a_folder_of_this_machine_names_that_folder_alone(tmp_path):
    run = make_run(tmp_path / "demo", str(tmp_path / "models/tiny"))
    put(run / "round-1/strong/adapter_config.json", {"r": 8, "base_model_name_or_path": str(tmp_path / "models/tiny")})
    with HubServer() as hub:
        assert weakdriven("export", "hub", str(run), "me/demo", hub=hub.url).returncode == 0
    assert json.loads(hub.files["adapter_config.json"]) == {"r": 8, "base_model_name_or_path": "tiny"}
    assert not any(str(tmp_path).encode() in content for content in hub.files.values())


def test_an_adapter_keeps_the_hub_id_of_its_base_where_the_run_tells_nothing_of_it(tmp_path):
    for model, expected in (("owner/base", b"owner/base"), ("/home/me/base", b"base")):
        path = tmp_path / "adapter_config.json"
        put(path, {"base_model_name_or_path": model})
        put(tmp_path / "config.json", {"_name_or_path": "models/tiny"})
        files = dict(files_to_push(tmp_path, None))
        adapter = files["adapter_config.json"]
        text = Path(adapter).read_bytes() if isinstance(adapter, str) else adapter
        assert json.loads(text)["base_model_name_or_path"].encode() == expected
        assert json.loads(files["config.json"]) == {"_name_or_path": "tiny"}


def test_private_without_a_push_is_refused_before_the_run(tmp_path):
    words = ("run", "demo", "--output", str(tmp_path / "run"), "--private")
    done = weakdriven(*words, hub="http://127.0.0.1:9")
    assert done.returncode == 2 and "add --push-to-hub OWNER/NAME, or leave --private out" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_push_that_fails_says_where_the_model_is_and_how_to_try_again(run):
    with HubServer(refused="/commit/") as hub:
        done = weakdriven("export", "hub", str(run), "lab/demo", "--private", hub=hub.url)
    assert done.returncode == 2 and f"The model is safe in {run / 'round-1/strong'}" in done.stderr
    assert f"Try again with: weakdriven export hub {run} lab/demo --private" in done.stderr
    assert "Traceback" not in done.stderr and TOKEN not in done.stderr and not hub.files


@pytest.mark.parametrize(
    ("repo", "role", "changes", "message"),
    [
        ("demo", "write", {}, "'demo' is not a name of a model on the Hub"),
        ("lab/a/b", "write", {}, "'lab/a/b' is not a name of a model on the Hub"),
        ("lab/demo", "read", {}, "The token of me may only read; log in with hf auth login"),
        ("others/demo", "write", {}, "me may not write to others/demo; give one of me, lab as owner"),
        (
            "lab/demo",
            "write",
            {"HF_TOKEN": "hf_wrong"},
            "There is no login here that the Hub accepts (Invalid user token",
        ),
        ("lab/demo", "write", {"HF_TOKEN": None}, "There is no login here that the Hub accepts"),
        ("lab/demo", "write", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ("lab/demo", "write", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "The Hub cannot be reached"),
    ],
)
def test_a_run_that_could_not_be_pushed_is_refused_before_it_starts(tmp_path, repo, role, changes, message):
    with HubServer(role) as hub:
        words = ("run", "demo", "--output", str(tmp_path / "run"), "--push-to-hub", repo)
        done = weakdriven(*words, hub=hub.url, **changes)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "hf_wrong" not in done.stderr
    assert not (tmp_path / "run").exists() and not hub.repos


def test_what_has_no_result_is_refused_before_the_hub_is_asked(tmp_path, run):
    (run / "round-1/strong/manifest.json").unlink()
    with HubServer() as hub:
        done = weakdriven("export", "hub", str(run), "lab/demo", hub=hub.url)
        assert done.returncode == 2 and "has no trained model yet" in done.stderr
        done = weakdriven("export", "hub", str(tmp_path), "lab/demo", hub=hub.url)
        assert done.returncode == 2 and "is not a run directory" in done.stderr
    assert not hub.requests
