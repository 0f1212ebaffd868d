"""Secrets stay out of errors, tracebacks, logs, recipes and pages; names that only look a little like one stay in."""

import logging
import os
import subprocess
import sys

import pytest

from weakdriven.commands.app import main
from weakdriven.config.file import load_recipe
from weakdriven.errors import UserError, explain
from weakdriven.runs.files import read_json, write_json
from weakdriven.runs.redact import masked

HF = "hf_" + "aBcD3fGh1jKlMnOpQrStUvWxYz" + "01234567"
SECRETS = {
    HF: "hf_…",
    "sk-" + "a1B2" * 12: "sk-…",
    "sk-proj-" + "a1-B2_" * 8: "sk-proj-…",
    "sk-ant-api03-" + "x9_Y" * 20: "sk-ant-…",
    "ghp_" + "A1b2C3" * 6: "ghp_…",
    "github_pat_" + "11ABC_def" * 8: "github_pat_…",
    "AKIA" + "IOSFODNN7EXAMPLE": "AKIA…",
    "https://me:hunter2@example.com/x": "https://…@example.com/x",
    "s3://key:s3cr3t/with+odd=chars": "s3://key:s3cr3t/with+odd=chars",  # no @: a path with a colon
    "https://h/x?X-Amz-Signature=0f9a&part=2": "https://h/x?X-Amz-Signature=…&part=2",
    "https://h/x?a=1&token=abc": "https://h/x?a=1&token=…",
    "Authorization: Bearer abcdef123456": "Authorization: Bearer …",
    "{'authorization': 'Basic dXNlcjpwYXNz'}": "{'authorization': 'Basic …'}",
}
PLAIN = [
    "sk-learn",
    "sk-learn-tutorial-2024-edition-for-beginners",
    "task-hf_transformers_and_more",
    "Qwen/Qwen3-4B-Base",
    "meta-llama/Llama-3.1-8B-Instruct",
    "/data/keys/train.jsonl",
    "the token=3 of a sentence",
    "12:30@noon",
    "https://huggingface.co/datasets/a/b?split=train",
    "0123456789abcdef" * 4,  # a hash
]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_masked_wherever_it_stands(secret):
    assert masked(f"({secret})") == f"({SECRETS[secret]})"


@pytest.mark.parametrize("text", PLAIN)
def test_ordinary_names_stay_as_they_are(text):
    assert masked(text) == text


def test_values_of_the_environment_are_masked_by_their_names(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    monkeypatch.setenv("DB_PASSWORD", "Tr0ub4dor&3")
    monkeypatch.setenv("MODE_KEY", "production")
    monkeypatch.setenv("TLS_KEY", "/etc/ssl/private/host.pem")
    monkeypatch.setenv("SHORT_TOKEN", "ab12")
    monkeypatch.setenv("PLAIN_NAME", "Zx81Spectrum")
    said = "0123456789abcdef0123456789abcdef01234567 Tr0ub4dor&3 production /etc/ssl/private/host.pem ab12 Zx81Spectrum"
    assert masked(said) == "$WANDB_API_KEY… $DB_PASSWORD… production /etc/ssl/private/host.pem ab12 Zx81Spectrum"


def test_hostile_text_is_masked_in_linear_time():
    for piece in ("sk-or-", "://a:", "bearer ", "?token", "hf_", "-----BEGIN PRIVATE KEY-----", "authorization"):
        masked(piece * 20_000)  # pytest's timeout would tell


def test_error_sentences_are_masked():
    assert explain(UserError(f"The Hub refused {HF}.")) == "The Hub refused hf_…."


def test_files_of_a_run_are_masked(tmp_path):
    write_json(tmp_path / "manifest.json", {"counters": {"url": f"https://u:p@h?token={HF}"}})
    assert HF not in (tmp_path / "manifest.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("override", [f"model={HF}", f"data.path=https://u:{HF}@h/x.jsonl", f"report_to=[{HF}]"])
def test_a_recipe_that_holds_a_secret_is_refused_without_saying_it(override):
    with pytest.raises(UserError, match="environment variable") as caught:
        load_recipe("demo", [override])
    assert HF not in str(caught.value)


def test_a_traceback_is_printed_masked_and_the_error_itself_leaves_main(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["weakdriven", "run", str(tmp_path / f"{HF}.yaml"), "--debug"])
    with pytest.raises(UserError, match="hf_aB"):
        main()
    command = [sys.executable, "-m", "weakdriven", "run", f"{HF}.yaml", "--debug"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ})
    assert done.returncode == 1 and "Traceback" in done.stderr and "hf_…" in done.stderr and HF not in done.stderr


def test_what_libraries_log_is_masked(caplog):
    from weakdriven.runs.redact import mask_output

    mask_output()
    logging.getLogger("some.library").warning("GET %s", f"https://h/x?token={HF}")
    assert HF not in caplog.text and "token=…" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        'open "https://x.org/?token=abc" now',
        'say "Authorization: abcdef123" to them',
        'a "-----BEGIN PRIVATE KEY-----" in a text, and {"more": 1} of it',
        f'"{HF}"',
    ],
)
def test_a_file_of_json_stays_one_when_it_is_masked(text, tmp_path):
    write_json(tmp_path / "a.json", {"text": [text], "rest": "stays"})
    found = read_json(tmp_path / "a.json")
    assert found["rest"] == "stays" and len(found["text"]) == 1
    write_json(tmp_path / "a.json", {"text": text}, exact=True)
    assert read_json(tmp_path / "a.json") == {"text": text}


@pytest.mark.parametrize("text", ["authorization: required, by the bank", "bearer responsibilities of the office"])
def test_ordinary_words_after_such_words_stay(text):
    assert masked(text) == text
