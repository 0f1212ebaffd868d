"""Secrets stay out of what is printed and logged, and out of recipes; names that only look similar stay in."""

import logging
import os
import subprocess
import sys

import pytest
from rich.console import Console

from command_line import assert_user_error, weakdriven
from weakdriven.config.file import load_recipe
from weakdriven.errors import UserError
from weakdriven.pipeline.parallel import attempt
from weakdriven.runs.redact import redact, redact_output

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
    "authorization: required, by the bank",
    "bearer responsibilities of the office",
]


def test_secrets_are_redacted_within_any_text_and_ordinary_words_stay():
    for secret, shown in SECRETS.items():
        assert redact(f"({secret})") == f"({shown})"
    for text in PLAIN:
        assert redact(text) == text


def test_values_of_the_environment_are_redacted_by_their_names(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    monkeypatch.setenv("DB_PASSWORD", "Tr0ub4dor&3")
    monkeypatch.setenv("MODE_KEY", "production")
    monkeypatch.setenv("TLS_KEY", "/etc/ssl/private/host.pem")
    monkeypatch.setenv("SHORT_TOKEN", "ab12")
    monkeypatch.setenv("PLAIN_NAME", "Zx81Spectrum")
    said = "0123456789abcdef0123456789abcdef01234567 Tr0ub4dor&3 production /etc/ssl/private/host.pem ab12 Zx81Spectrum"
    assert redact(said) == "$WANDB_API_KEY… $DB_PASSWORD… production /etc/ssl/private/host.pem ab12 Zx81Spectrum"


def test_hostile_text_is_redacted_in_linear_time():
    for piece in ("sk-or-", "://a:", "bearer ", "?token", "hf_", "-----BEGIN PRIVATE KEY-----", "authorization"):
        redact(piece * 20_000)  # pytest's timeout would tell


def test_the_error_of_a_failed_run_is_redacted_since_a_table_shows_it(tmp_path):
    def fail(error):
        raise error

    log = tmp_path / "run.log"
    assert attempt(lambda: fail(UserError(f"The Hub assert_user_error {HF}.")), log) == (
        None,
        "The Hub assert_user_error hf_….",
    )
    _, sentence = attempt(lambda: fail(KeyError(HF)), log)
    assert HF not in sentence + log.read_text(encoding="utf-8")


@pytest.mark.parametrize("override", [f"model={HF}", f"data.path=https://u:{HF}@h/x.jsonl", f"report_to=[{HF}]"])
def test_a_recipe_that_holds_a_secret_raises_an_error_without_it(override):
    with pytest.raises(UserError, match="environment variable") as caught:
        load_recipe("demo", [override])
    assert HF not in str(caught.value)


def test_errors_and_tracebacks_are_printed_redacted(tmp_path):
    """`main` itself raises the error as it is; the interpreter prints its traceback."""
    with pytest.raises(UserError, match="hf_aB"):
        weakdriven("run", tmp_path / f"{HF}.yaml", "--debug")
    quiet = weakdriven("run", f"{HF}.yaml", "--quiet")
    assert_user_error(quiet, "hf_…")
    command = [sys.executable, "-m", "weakdriven", "run", f"{HF}.yaml", "--debug"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ})
    assert done.returncode == 1 and "Traceback" in done.stderr and "hf_…" in done.stderr
    assert HF not in done.stderr + quiet.err


def test_stdout_stderr_and_log_records_are_redacted(capsys, caplog):
    redact_output()
    Console().print("a note about", HF, markup=False)
    print(HF, file=sys.stderr)
    logging.getLogger("some.library").warning("GET %s", f"https://h/x?token={HF}")
    printed = capsys.readouterr()
    assert "hf_…" in printed.out and "hf_…" in printed.err and HF not in printed.out + printed.err
    assert HF not in caplog.text and "token=…" in caplog.text
    assert sys.stdout.encoding and not sys.stdout.isatty(), "the rest of the stream does not change"
